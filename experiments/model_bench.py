"""Whole models beside transformers, as JSON: ``python -m hybridcache.experiments.model_bench [--threads 1]``.

The same weights in both, medians of one run in which the two take turns; with one thread, CPU seconds of the
process. Achieved rates are the model's FLOPs (`ModelSpec`) and the bytes of its weights over those seconds,
beside what this machine reaches in a plain matrix product and a copy. Machines are shared: compare ratios.
"""

import argparse
import inspect
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, Final

import numpy as np
import torch

from hybridcache.kernels.dispatch import build_ops
from hybridcache.lease import BlockCopy, StateCopy
from hybridcache.models.load import LoadedModel, load_model
from hybridcache.models.presets import preset_folder, write_checkpoint
from hybridcache.runner import ModelRunner
from hybridcache.step import ScheduledSequence, StepBatch
from hybridcache.storage import Storage
from hybridcache.tokens import TokenIds

BLOCK_SIZE = 16  # tokens
SEQUENCES = 8  # that decode together
SUFFIX = 64  # tokens behind a checkpoint
DECODE_STEPS = 15
RESUMED_STEPS = 41
JAMBA_30M: Final[Mapping[str, Any]] = {
    "hidden_size": 512,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "attn_layer_period": 4,
    "attn_layer_offset": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "mamba_d_state": 16,
    "mamba_dt_rank": 32,
}
"""31 million parameters: 6 Mamba-1 and 2 attention layers, 4 experts in every other."""

Clock = Callable[[], float]


def take_turns(runs: Sequence[Callable[[], object]], repeats: int, clock: Clock) -> list[float]:
    """Median seconds of each; every round runs all of them, after one round that warms up."""
    seconds: list[list[float]] = [[] for _ in runs]
    for turn in range(repeats + 1):
        for run, taken in zip(runs, seconds, strict=True):
            start = clock()
            run()
            if turn:
                taken.append(clock() - start)
    return [median(taken) for taken in seconds]


class Bench:
    """One checkpoint in both."""

    def __init__(self, folder: Path, tokens: int, clock: Clock) -> None:
        from transformers import AutoModelForCausalLM

        self.loaded: LoadedModel = load_model(folder, ops=build_ops("cpu"))
        self.theirs: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        signature = inspect.signature(type(self.theirs).forward)
        self.cache_name = "cache" if "cache" in signature.parameters else "past_key_values"
        self.tokens, self.clock = tokens, clock
        self.weight_bytes = 4 * sum(p.numel() for p in self.theirs.parameters())
        spec = self.loaded.spec
        self.blocks = -(-(tokens + DECODE_STEPS + 2 + SUFFIX) // BLOCK_SIZE)  # of each sequence
        block_bytes = BLOCK_SIZE * spec.kv_bytes_per_token
        budget = (SEQUENCES + 1) * (self.blocks * block_bytes + 2 * spec.checkpoint_bytes)
        self.runner = ModelRunner(self.loaded.model, Storage(spec, budget, BLOCK_SIZE))
        prompt = np.random.default_rng(0).integers(3, spec.vocab_size, tokens)
        self.prompt: TokenIds = prompt.astype(np.uint32)

    def sequence(self, index: int, tokens: TokenIds, start: int) -> ScheduledSequence:
        """Tokens of a sequence that has slot `index` and blocks of its own."""
        blocks = np.arange(self.blocks) + index * self.blocks
        return ScheduledSequence(tokens, start, index, blocks[: -(-(start + len(tokens)) // BLOCK_SIZE)])

    def prefill(self, repeats: int) -> dict[str, float]:
        """A cold prompt up to the last token's logits."""
        step = StepBatch([self.sequence(0, self.prompt, 0)])
        ids = torch.from_numpy(self.prompt.astype(np.int64))[None]
        ours, theirs = take_turns(
            [lambda: self.runner.execute(step), lambda: self.theirs(ids, logits_to_keep=1, use_cache=True)],
            repeats,
            self.clock,
        )
        flops = self.loaded.spec.flops(0, self.tokens)
        return self.compared(ours, theirs, flops, self.weight_bytes)

    def decode(self) -> dict[str, float]:
        """One token for each of 8 sequences behind a context of `tokens`."""
        for index in range(SEQUENCES):
            self.runner.execute(StepBatch([self.sequence(index, self.prompt, 0)]))
        ids = torch.from_numpy(self.prompt.astype(np.int64))[None]
        cache = self.theirs(ids, logits_to_keep=1, use_cache=True)[self.cache_name]
        cache.reorder_cache(torch.zeros(SEQUENCES, dtype=torch.int64))  # 8 times the same
        ids = ids.expand(SEQUENCES, -1)
        at = {"ours": self.tokens, "theirs": self.tokens}

        def ours() -> None:
            step = [self.sequence(index, self.prompt[:1], at["ours"]) for index in range(SEQUENCES)]
            self.runner.execute(StepBatch(step))
            at["ours"] += 1

        def theirs() -> None:
            positions = torch.full((SEQUENCES, 1), at["theirs"])
            self.theirs(ids[:, :1], position_ids=positions, use_cache=True, **{self.cache_name: cache})
            at["theirs"] += 1

        taken = take_turns([ours, theirs], DECODE_STEPS, self.clock)
        spec = self.loaded.spec
        moved = self.weight_bytes + SEQUENCES * (
            self.tokens * spec.kv_bytes_per_token + 2 * spec.checkpoint_bytes
        )
        flops = SEQUENCES * spec.flops(self.tokens, self.tokens + 1)
        return self.compared(taken[0], taken[1], flops, moved)

    def resume(self) -> dict[str, float]:
        """A suffix from a checkpoint (its state and its last block copied first) and without the copies."""
        slot, last = SEQUENCES, self.tokens // BLOCK_SIZE
        end = self.tokens - self.tokens % BLOCK_SIZE + BLOCK_SIZE // 2  # in the middle of a block
        prompt = np.resize(self.prompt, end)
        self.runner.execute(StepBatch([self.sequence(0, prompt, 0)]))
        self.runner.copy([StateCopy(0, slot)])
        blocks = np.concatenate((np.arange(last), slot * self.blocks + np.arange(last, self.blocks)))
        blocks = blocks[: -(-(end + SUFFIX) // BLOCK_SIZE)]
        suffix = ScheduledSequence(self.prompt[:SUFFIX], end, slot, blocks)
        copies = [StateCopy(0, slot)], [BlockCopy(last, int(blocks[last]), BLOCK_SIZE // 2)]

        def copied() -> None:
            self.runner.execute(StepBatch([suffix], *copies))

        def kept() -> None:
            self.runner.execute(StepBatch([suffix]))

        self.runner.execute(StepBatch([suffix], *copies))
        taken: list[list[float]] = [[], []]
        for _ in range(RESUMED_STEPS):
            # Outside of the clock: the state goes back to where the suffix starts.
            self.runner.copy([StateCopy(0, slot)])
            for run, seconds in zip((kept, copied), taken, strict=True):
                start = self.clock()
                run()
                seconds.append(self.clock() - start)
        without, with_copies = map(median, taken)
        added = median(b - a for a, b in zip(*taken, strict=True))
        return {
            "suffix_tokens": SUFFIX,
            "without_ms": _ms(without),
            "with_copies_ms": _ms(with_copies),
            "added_percent": round(100 * added / without, 2),
        }

    def compared(self, ours: float, theirs: float, flops: float, num_bytes: float) -> dict[str, float]:
        """Seconds of both, their ratio, and the rates reached."""
        return {
            "ours_ms": _ms(ours),
            "transformers_ms": _ms(theirs),
            "ratio": round(theirs / ours, 2),
            "gflop_per_second": round(flops / ours / 1e9, 1),
            "gigabytes_per_second": round(num_bytes / ours / 1e9, 2),
        }


def machine(clock: Clock) -> dict[str, float]:
    """GFLOP/s of torch's matrix product of 1,024 and GB/s (read and written) of a copy of 64 MiB."""
    a, source, target = torch.randn(1_024, 1_024), torch.randn(1 << 24), torch.empty(1 << 24)
    product, copy = take_turns([lambda: a @ a, lambda: target.copy_(source)], 9, clock)
    return {
        "gflop_per_second": round(2 * 1_024**3 / product / 1e9, 1),
        "gigabytes_per_second": round(8 * source.numel() / copy / 1e9, 1),
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


@contextmanager
def checkpoints() -> Iterator[dict[str, Path]]:
    """The preset tiny-30m and a Jamba of the same size."""
    with tempfile.TemporaryDirectory() as scratch:
        jamba = write_checkpoint("jamba", Path(scratch) / "jamba-30m", **JAMBA_30M)
        yield {"tiny-30m": preset_folder("tiny-30m"), "jamba-30m": jamba}


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=2_048)
    parser.add_argument("--repeats", type=int, default=5, help="of each prefill")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = process_time if options.threads == 1 else perf_counter
    figures: dict[str, Any] = {"threads": options.threads, "tokens": options.tokens}
    figures["machine"] = machine(clock)
    with torch.inference_mode(), checkpoints() as folders:
        for name, folder in folders.items():
            bench = Bench(folder, options.tokens, clock)
            figures[name] = {
                "prefill": bench.prefill(options.repeats),
                f"decode_of_{SEQUENCES}": bench.decode(),
                "resume": bench.resume(),
            }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
