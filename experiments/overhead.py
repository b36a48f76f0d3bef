"""What the cache costs and gives in a worker, as JSON: ``python -m hybridcache.experiments.overhead``.

Medians of one run, in one thread; throughput by the processor's time, since machines are shared. Compare
figures of one output.
``--quick`` takes shorter prompts and fewer repeats.
"""

import argparse
import json
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from time import perf_counter, process_time

import numpy as np

from hybridcache.engine import Engine
from hybridcache.lease import StateCopy
from hybridcache.pool import Ids
from hybridcache.sampling_params import SamplingParams
from hybridcache.step import Runner, StepBatch, StepResult
from hybridcache.worker import Worker

Figures = dict[str, float]
ONE = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


class TimedRunner(Runner):
    """A runner that notes when its steps begin and end."""

    def __init__(self, runner: Runner) -> None:
        self.inner = runner
        self.steps: list[tuple[int, float, float]] = []
        """Tokens, begin and end (seconds) of each step."""

    def execute(self, step: StepBatch) -> StepResult:
        begin = perf_counter()
        result = self.inner.execute(step)
        self.steps.append((sum(len(s.tokens) for s in step.sequences), begin, perf_counter()))
        return result

    def release(self, freed_blocks: Ids, freed_slots: Ids) -> None:
        self.inner.release(freed_blocks, freed_slots)

    def copy(self, state_copies: Sequence[StateCopy]) -> None:
        self.inner.copy(state_copies)


def ttft(worker: Worker, cached: int, new: int, repeats: int) -> Figures:
    """Time to the first token: a hit of ``cached`` and ``new`` tokens more, and both cold.

    One after the other, so that what else the machine does falls on all three alike.
    """
    rng = np.random.default_rng(0)
    found: dict[str, list[float]] = {"hit": [], "cold_short": [], "cold_long": []}
    for _ in range(repeats):
        # A prompt's checkpoint stands before its last token, and serves whatever comes instead of that.
        prefix = rng.integers(16, 4_096, cached + 1)
        worker.generate(prefix, ONE)
        base = prefix[:-1]
        prompts = {
            "hit": np.concatenate((base, rng.integers(16, 4_096, new))),
            "cold_short": rng.integers(16, 4_096, new),
            "cold_long": rng.integers(16, 4_096, cached + new),
        }
        for name, prompt in prompts.items():
            (output,) = worker.generate(prompt, ONE)
            assert output.num_cached_tokens == (cached if name == "hit" else 0), output
            assert output.ttft_seconds is not None
            found[name].append(output.ttft_seconds)
    seconds = {name: median(values) for name, values in found.items()}
    return {
        **{f"{name}_seconds": value for name, value in seconds.items()},
        "hit_to_cold_short": seconds["hit"] / seconds["cold_short"],
        "cold_long_to_hit": seconds["cold_long"] / seconds["hit"],
    }


def throughput(workers: dict[str, Worker], prompts: int, length: int, answer: int, pairs: int) -> Figures:
    """Tokens a second of the processor's time, of prompts that share nothing.

    Both workers answer the same batch, one right after the other, which of them first by turns; the ratio is
    the median over the pairs, so that what else the machine does falls on both alike. A pair goes before.
    """
    rng = np.random.default_rng()
    params = SamplingParams(max_tokens=answer, temperature=0.0, ignore_eos=True)
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    for pair in range(pairs + 1):
        batch = [rng.integers(16, 4_096, length) for _ in range(prompts)]
        for name in sorted(workers, reverse=pair % 2 == 1):
            start = process_time()
            outputs = workers[name].generate(batch, params)
            seconds[name].append(process_time() - start)
            assert not any(output.num_cached_tokens for output in outputs)
    counted = {name: values[1:] for name, values in seconds.items()}
    ratios = [off / on for off, on in zip(counted["off"], counted["on"], strict=True)]
    low, middle, high = np.percentile(ratios, (25, 50, 75)).tolist()
    return {
        **{
            f"{name}_tokens_per_cpu_second": prompts * (length + answer) / median(values)
            for name, values in counted.items()
        },
        "pairs": pairs,
        "on_to_off": middle,
        "on_to_off_p25": low,
        "on_to_off_p75": high,
    }


def bookkeeping(worker: Worker, running: int, answer: int) -> Figures:
    """Decoding steps with so many requests: from one to the next, and what of it is not the model's."""
    rng = np.random.default_rng(2)
    timed = worker.in_engine(_timed)
    params = SamplingParams(max_tokens=answer, temperature=0.0, ignore_eos=True)
    worker.generate([rng.integers(16, 4_096, 64) for _ in range(running)], params)
    worker.in_engine(_untimed)
    full = [
        (end - begin, after - end)
        for (tokens, begin, end), (after_tokens, after, _) in pairwise(timed.steps)
        if tokens == after_tokens == running
    ]
    model, between = (median(values) for values in zip(*full, strict=True))
    return {
        "running_requests": running,
        "step_seconds": model + between,
        "bookkeeping_seconds": between,
        "bookkeeping_to_step": median(gap / (own + gap) for own, gap in full),
    }


def _timed(engine: Engine) -> TimedRunner:
    timed = engine.runner = TimedRunner(engine.runner)
    return timed


def _untimed(engine: Engine) -> None:
    assert isinstance(engine.runner, TimedRunner)
    engine.runner = engine.runner.inner


def main() -> None:
    """Print all figures as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="tiny-30m", help="a preset or a checkpoint folder")
    parser.add_argument("--threads", type=int, default=1, help="torch's")
    parser.add_argument("--quick", action="store_true", help="shorter prompts, fewer repeats")
    settings = parser.parse_args()
    repeats, cached, pairs = (2, 512, 4) if settings.quick else (5, 2_048, 40)
    workers = {
        name: Worker(settings.model, budget_gb=1.0, threads=settings.threads, cache=name == "on")
        for name in ("off", "on")
    }
    figures = {
        "ttft": ttft(workers["on"], cached, 32, repeats),
        "throughput_at_no_hits": throughput(workers, 4, 256, 16, pairs),
        "bookkeeping": bookkeeping(workers["on"], 32, 8 if settings.quick else 32),
    }
    for worker in workers.values():
        worker.close()
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
