"""The worker on the tiny model: the same chats with the cache off and on, and what that changed."""

import random
from argparse import ArgumentParser
from statistics import median
from typing import NamedTuple

from hybridcache.loss import LOSS_REASONS
from hybridcache.request_output import RequestOutput
from hybridcache.sampling_params import SamplingParams
from hybridcache.worker import Worker

SESSIONS, TURNS = 6, 4
SYSTEM_TOKENS, TURN_TOKENS, ANSWER_TOKENS = 256, 48, 16
BUDGET_GB = 0.05


class Run(NamedTuple):
    """One workload through one worker."""

    outputs: list[RequestOutput]
    computed_tokens: int


def main() -> None:
    """Run both workers and print the comparison; an AssertionError when their tokens differ."""
    print(
        f"\nworker: model tiny, {SESSIONS} chats of {TURNS} turns under one system prompt of {SYSTEM_TOKENS} "
        f"tokens, {ANSWER_TOKENS} tokens an answer, greedy"
    )
    off, on = (run_chats(cache=cache) for cache in (False, True))
    print(f"\n{'':28}{'cache off':>12}{'cache on':>12}")
    rows = {
        "TTFT, median ms": [1e3 * median(_ttft(run)) for run in (off, on)],
        "TTFT of later turns, ms": [1e3 * median(_ttft(run)[SESSIONS:]) for run in (off, on)],
    }
    for name, values in rows.items():
        print(f"{name:28}" + "".join(f"{value:12.1f}" for value in values))
    counts = {
        "prompt tokens": [sum(output.num_prompt_tokens for output in run.outputs) for run in (off, on)],
        "prompt tokens cached": [
            sum(output.num_cached_tokens for output in run.outputs) for run in (off, on)
        ],
        "tokens computed": [run.computed_tokens for run in (off, on)],
    }
    for name, numbers in counts.items():
        print(f"{name:28}" + "".join(f"{number:12,}" for number in numbers))
    rates = [cached / prompt for cached, prompt in zip(*list(counts.values())[1::-1], strict=True)]
    print(f"{'token hit rate':28}" + "".join(f"{rate:12.1%}" for rate in rates))
    for reason in LOSS_REASONS:
        lost = [sum(output.miss.get(reason, 0) for output in run.outputs) for run in (off, on)]
        if any(lost):
            print(f"{'lost: ' + reason:28}" + "".join(f"{number:12,}" for number in lost))
    answers = [[output.token_ids for output in run.outputs] for run in (off, on)]
    assert answers[0] == answers[1], "the cache changed an answer"
    print(f"\nboth gave the same {sum(map(len, answers[0])):,} tokens")


def run_chats(*, cache: bool) -> Run:
    """All chats, turn by turn; the chats of one turn are submitted together."""
    rng = random.Random(0)
    params = SamplingParams(max_tokens=ANSWER_TOKENS, temperature=0.0, ignore_eos=True)
    with Worker("tiny", budget_gb=BUDGET_GB, cache=cache) as worker:
        worker.generate([[1, 2, 3]], params)  # the first request pays for what is compiled on first use
        worker.flush()
        before = worker.stats().engine.computed_tokens
        system = _tokens(rng, SYSTEM_TOKENS)
        chats = [list(system) for _ in range(SESSIONS)]
        outputs: list[RequestOutput] = []
        for _ in range(TURNS):
            for chat in chats:
                chat.extend(_tokens(rng, TURN_TOKENS))
            answers = worker.generate(chats, params)
            for chat, answer in zip(chats, answers, strict=True):
                chat.extend(answer.token_ids)
            outputs += answers
        return Run(outputs, worker.stats().engine.computed_tokens - before)


def _ttft(run: Run) -> list[float]:
    return [output.ttft_seconds for output in run.outputs if output.ttft_seconds is not None]


def _tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(16, 4_096) for _ in range(count)]


if __name__ == "__main__":
    ArgumentParser(prog="python -m hybridcache.experiments.worker_demo", description=__doc__).parse_args()
    main()
