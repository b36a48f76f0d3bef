"""Runs steps without tensors: ids are checked as a real runner checks them, and time passes as modelled."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hybridcache.engine import Clock
from hybridcache.latency import LatencyModel
from hybridcache.lease import BlockCopy, StateCopy
from hybridcache.pool import Ids, MemoryBudget
from hybridcache.step import NO_TOKEN, Runner, ScheduledSequence, StepBatch, StepResult

NO_STATE = 0
"""Position of a slot that holds no state; every state stands behind one token at least."""

T = TypeVar("T", bound=np.generic)


class VirtualClock(Clock):
    """Time that passes when it is told to, seconds; it never runs backwards."""

    __slots__ = ("_now",)

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass. Raises ValueError for a negative or unknown duration."""
        if not seconds >= 0:
            raise ValueError(f"seconds={seconds!r}: time does not run backwards")
        self._now += seconds

    def advance_to(self, moment: float) -> None:
        """Skip what lies before ``moment``. Raises ValueError when that has passed."""
        if not moment >= self._now:
            raise ValueError(f"moment={moment!r} is over: it is {self._now!r}; time does not run backwards")
        self._now = moment


class SimRunner(Runner):
    """A runner that computes nothing. Its greedy tokens follow from the last token and its place; no logits.

    Remembers which blocks were written, and behind how many tokens the state of every slot stands, as
    ModelRunner and Storage do; ids are those of a cache of the same budget and block size. Token ids
    are not checked, since traces have vocabularies of their own.
    """

    def __init__(
        self,
        latency: LatencyModel,
        clock: VirtualClock,
        *,
        budget_bytes: float,
        block_size: int = 16,
        memory: str = "unified",
        kv_fraction: float = 0.5,
    ) -> None:
        self.latency = latency
        self.clock = clock
        self.block_size = block_size
        self.busy_seconds = 0.0
        """Of all steps and copies so far."""
        spec, limits = latency.spec, MemoryBudget(budget_bytes, memory, kv_fraction).limits
        self._num_blocks = _num_ids(limits["kv"], spec.kv_bytes_per_token * block_size)
        self._num_slots = _num_ids(limits["state"], spec.checkpoint_bytes)
        self._written: NDArray[np.bool_] = np.zeros(64, dtype=np.bool_)
        """Of each block seen so far."""
        self._state_at: NDArray[np.int64] = np.full(64, NO_STATE, dtype=np.int64)
        """Tokens before the state of each slot seen so far."""

    def execute(self, step: StepBatch) -> StepResult:
        """Raises ValueError for ids that are not there, or do not hold what the step reads."""
        for index, sequence in enumerate(step.sequences):
            self._check_ids(index, sequence)
        self._perform(step.state_copies, step.block_copies)
        self.release(step.freed_blocks, step.freed_slots)
        for index, sequence in enumerate(step.sequences):
            self._check_past(index, sequence)
        self._write(step.sequences)
        self._pass(self.latency.seconds(step))
        count = len(step.sequences)
        tokens = [self._next_token(s) if s.num_logits else NO_TOKEN for s in step.sequences]
        return StepResult(
            np.array(tokens, dtype=np.int64),
            np.empty((0, 0), dtype=np.float32),
            np.zeros(count + 1, dtype=np.int64),
        )

    def release(self, freed_blocks: Ids, freed_slots: Ids) -> None:
        """Raises ValueError for ids that are not there."""
        self._check_blocks(freed_blocks)
        self._check_slots(freed_slots)
        self._written[freed_blocks] = False
        self._state_at[freed_slots] = NO_STATE

    def copy(self, state_copies: Sequence[StateCopy]) -> None:
        """Raises ValueError for ids that are not there and for slots without a state."""
        self._perform(state_copies, ())
        self._pass(self.latency.copy_seconds(len(state_copies)))

    def _next_token(self, sequence: ScheduledSequence) -> int:
        """Any token of the vocabulary, the same for the same last token and position."""
        return (int(sequence.tokens[-1]) * 48_271 + sequence.stop * 16_807) % self.latency.spec.vocab_size

    def _pass(self, seconds: float) -> None:
        self.busy_seconds += seconds
        self.clock.advance(seconds)

    def _check_ids(self, index: int, sequence: ScheduledSequence) -> None:
        spec = self.latency.spec
        if (sequence.slot is None) != (spec.checkpoint_bytes == 0):
            raise ValueError(
                f"sequence {index} has slot {sequence.slot}, its state {spec.checkpoint_bytes} bytes: a "
                "running slot is what a model with recurrent layers needs, and no other"
            )
        needed = -(-sequence.stop // self.block_size) if spec.kv_bytes_per_token else 0
        if len(sequence.block_ids) < needed or (not needed and len(sequence.block_ids)):
            raise ValueError(
                f"sequence {index} has {len(sequence.block_ids)} blocks for {sequence.stop} tokens; "
                f"{needed} are needed"
            )
        self._check_blocks(sequence.block_ids)
        if sequence.slot is not None:
            self._check_slots([sequence.slot, *(slot for _, slot in sequence.emits)])

    def _check_blocks(self, ids: Sequence[int] | NDArray[np.int64]) -> None:
        if len(ids):
            self._written = _seen("blocks", self._written, ids, self._num_blocks)

    def _check_slots(self, ids: Sequence[int] | NDArray[np.int64]) -> None:
        if len(ids):
            self._state_at = _seen("slots", self._state_at, ids, self._num_slots)

    def _perform(self, state_copies: Sequence[StateCopy], block_copies: Sequence[BlockCopy]) -> None:
        for source, target in state_copies:
            self._check_slots([source, target])
            if source == target or self._state_at[source] == NO_STATE:
                raise ValueError(f"state copy {source} -> {target}: onto itself, or of no state")
            self._state_at[target] = self._state_at[source]
        for block_copy in block_copies:
            source, target, num_tokens = block_copy
            self._check_blocks([source, target])
            if source == target or not self._written[source] or not 1 <= num_tokens <= self.block_size:
                raise ValueError(f"{block_copy}: onto itself, of a block that nobody wrote, or of no tokens")
            self._written[target] = True

    def _check_past(self, index: int, sequence: ScheduledSequence) -> None:
        """The state at `start` and the KV of all tokens that are not written now must be there."""
        if sequence.has_state and self._state_at[sequence.slot] != sequence.start:
            raise ValueError(
                f"sequence {index} goes on from {sequence.start} tokens; slot {sequence.slot} holds the "
                f"state behind {self._state_at[sequence.slot]}"
            )
        known = min(max(sequence.start, sequence.kv_start), sequence.stop)
        past = sequence.block_ids[: -(-known // self.block_size)]
        if not self._written[past].all():
            raise ValueError(
                f"sequence {index} reads the blocks {past[~self._written[past]].tolist()}, which nobody wrote"
            )

    def _write(self, sequences: Sequence[ScheduledSequence]) -> None:
        blocks: list[int] = []
        slots: list[int] = []
        states: list[int] = []
        for sequence in sequences:
            first, stop = max(sequence.start, sequence.kv_start), sequence.stop
            if len(sequence.block_ids) and first < stop:
                size = self.block_size
                blocks += sequence.block_ids[first // size : -(-stop // size)].tolist()
            if sequence.slot is not None:
                slots += [sequence.slot, *(slot for _, slot in sequence.emits)]
                states += [stop, *(position for position, _ in sequence.emits)]
        for name, ids in (("block", blocks), ("slot", slots)):
            if len(set(ids)) != len(ids):
                raise ValueError(f"two sequences of the step write one {name}: it has one writer")
        self._written[blocks] = True
        self._state_at[slots] = states


def _num_ids(limit_bytes: float, bytes_per_id: int) -> float:
    return limit_bytes // bytes_per_id if bytes_per_id else 0


def _seen(name: str, facts: NDArray[T], ids: Sequence[int] | NDArray[np.int64], num_ids: float) -> NDArray[T]:
    """``facts`` with room for all of ``ids``. Raises ValueError when one does not exist."""
    array = np.asarray(ids)
    least, most = int(array.min()), int(array.max())
    if least < 0 or most >= num_ids:
        raise ValueError(f"{name} {least} to {most}: there are {num_ids:.0f}")
    if most < len(facts):
        return facts
    more = np.zeros(2 * most + 1, dtype=facts.dtype)
    more[: len(facts)] = facts
    return more
