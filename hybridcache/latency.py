"""Seconds that a step takes on a device, modelled from its FLOPs and bytes."""

from typing import NamedTuple

from hybridcache.hardware import HardwareProfile
from hybridcache.spec import ModelSpec
from hybridcache.step import ScheduledSequence, StepBatch
from hybridcache.weight_counts import WeightCounts, parts_of


class StepCost(NamedTuple):
    """What a step asks of the device."""

    flops: float
    num_bytes: float
    """Read and written."""


class LatencyModel:
    """The roofline model (Williams, Waterman and Patterson, 2009) of a whole step, on one device::

        seconds = step_overhead_seconds
                  + max(FLOPs / (peak_flops * compute_fraction), bytes / (bytes_per_second * memory_fraction))

    FLOPs: `ModelSpec.flops` of the new tokens given those before them, and the LM head for each row of
    logits.

    Bytes: the weights, read once however many tokens there are (of the routed experts, those that so many
    tokens are expected to pick); the KV of every sequence up to its last new token, read once (in a windowed
    layer, what the window reaches), and that of its new tokens, written; its state, read and written once;
    every state emitted on the way, written; every state and every token's KV copied, read and written.

    Left out: activations, norms, transfers between devices. Reading and arithmetic are taken to overlap
    wholly, so that the model is too fast where both take about as long. Against published measurements of
    Llama 7B on an A100 (tests/test_latency.py): first token of 2,048, decoding and throughput within 20%,
    first token of 128 in 62% of the time measured.
    """

    __slots__ = ("spec", "hardware", "weights", "_kv_by_window")

    def __init__(self, spec: ModelSpec, hardware: HardwareProfile) -> None:
        self.spec = spec
        self.hardware = hardware
        self.weights = WeightCounts.of(spec)
        by_window: dict[int | None, int] = {}
        for layer in spec.layers:
            for part in parts_of(layer):
                if part.kv_bytes_per_token:
                    windows = [term.window for term in part.flop_terms if term.per_pair]
                    window = windows[0] if windows else None
                    by_window[window] = by_window.get(window, 0) + part.kv_bytes_per_token
        self._kv_by_window = tuple(by_window.items())
        """Bytes of KV a token of the layers that have this window (tokens; None: all of the past)."""

    def seconds(self, step: StepBatch) -> float:
        """Of one step; copies alone are one too. Modifies nothing."""
        return self.hardware.step_overhead_seconds + self._roofline(self.cost(step))

    def copy_seconds(self, num_states: int) -> float:
        """Of copying so many states between steps."""
        return self._roofline(StepCost(0.0, 2.0 * num_states * self.spec.checkpoint_bytes))

    def cost(self, step: StepBatch) -> StepCost:
        """FLOPs and bytes of one step."""
        spec = self.spec
        num_tokens = num_logits = 0
        flops = 0.0
        moved = 2.0 * len(step.state_copies) * spec.checkpoint_bytes
        moved += 2.0 * sum(copy.num_tokens for copy in step.block_copies) * spec.kv_bytes_per_token
        for sequence in step.sequences:
            num_tokens += len(sequence.tokens)
            num_logits += sequence.num_logits
            flops += spec.flops(sequence.start, sequence.stop)
            moved += self._sequence_bytes(sequence)
        if num_tokens:
            flops += num_logits * spec.head_flops
            moved += self.weights.read(num_tokens, num_logits) * self.hardware.weight_bytes
        return StepCost(flops, moved)

    def _sequence_bytes(self, sequence: ScheduledSequence) -> float:
        spec, stop = self.spec, sequence.stop
        moved = max(stop - max(sequence.start, sequence.kv_start), 0) * spec.kv_bytes_per_token
        for window, kv_bytes in self._kv_by_window:
            reach = stop if window is None else min(stop, len(sequence.tokens) + window - 1)
            moved += reach * kv_bytes
        if sequence.slot is not None:
            moved += (1 + sequence.has_state + len(sequence.emits)) * spec.checkpoint_bytes
        return moved

    def _roofline(self, cost: StepCost) -> float:
        hardware = self.hardware
        return max(cost.flops / hardware.flops_per_second, cost.num_bytes / hardware.reached_bytes_per_second)
