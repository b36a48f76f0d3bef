"""The worker's answers do not depend on the cache, on eviction, on preemption, on chunks or on the batch."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest

from hybridcache.engine import Engine
from hybridcache.worker import Worker
from tests.hybrid_runs import quick_for
from tests.worker_setup import GREEDY, Given, MakeWorker, given, in_engine, make_worker, serve, tokens

__all__ = ["make_worker"]

families = quick_for("bamba", "jamba")
MANY = 1 << 20
"""Tokens of a step: every prompt in one chunk."""


def conversation() -> list[list[int]]:
    """Prompts of mixed lengths that share beginnings: turns, siblings, a repetition, strangers."""
    system, document = tokens(70, 1), tokens(150, 2)
    first = system + tokens(33, 3)
    return [
        first,
        first + tokens(12, 4) + tokens(20, 5),
        system + tokens(64, 6),
        system + document,
        system + document + tokens(3, 7),
        document,
        tokens(1, 8),
        tokens(17, 9),
        first,
        system + document + tokens(48, 10),
        tokens(200, 11),
        system[:40] + tokens(25, 12),
        system[:64],
        tokens(16, 13),
        tokens(257, 14),
        system + tokens(64, 6) + tokens(5, 15),
    ]


@pytest.fixture(scope="module")
def cold(checkpoint: Callable[[str], Path]) -> Callable[[str], list[Given]]:
    """Calling it with a family gives the answers of a worker without a cache, one prompt at a time."""

    @cache
    def answers(family: str) -> list[Given]:
        with Worker(checkpoint(family), budget_gb=0.05, threads=1, cache=False) as worker:
            found = given(serve(worker, conversation(), together=False))
            stats = worker.stats()
            assert stats.cache.hit_tokens == 0 and stats.usage.free == stats.usage.budget
            return found

    return answers


@families
@pytest.mark.parametrize(
    ("chunk", "together"),
    [
        (64, True),
        (256, True),
        (MANY, True),
        (MANY, False),
        pytest.param(64, False, marks=pytest.mark.full),
        pytest.param(256, False, marks=pytest.mark.full),
    ],
)
def test_answers_are_the_cold_ones(
    make_worker: MakeWorker,
    checkpoint: Callable[[str], Path],
    cold: Callable[[str], list[Given]],
    family: str,
    chunk: int,
    together: bool,
) -> None:
    worker = make_worker(checkpoint(family), max_num_batched_tokens=chunk, max_num_seqs=16)
    ask = partial(serve, worker, conversation(), together=together)
    first, again = ask(), ask()
    assert given(first) == cold(family)
    assert given(again) == cold(family)
    # The first time one prompt is a repetition and others go on from one; the second, all are known.
    assert sum(output.num_cached_tokens for output in first) > 200
    assert all(o.num_cached_tokens == o.num_prompt_tokens - 1 for o in again if o.num_prompt_tokens > 1)


@families
def test_eviction_and_preemption_change_no_answer(
    make_worker: MakeWorker,
    checkpoint: Callable[[str], Path],
    cold: Callable[[str], list[Given]],
    family: str,
) -> None:
    worker = make_worker(checkpoint(family))
    serve(worker, conversation())
    spec, usage = worker._spec, worker.stats().usage
    # The longest request, the state it resumes from, and a checkpoint besides.
    least = 18 * 16 * spec.kv_bytes_per_token + 3 * spec.checkpoint_bytes
    small = make_worker(
        checkpoint(family),
        budget_gb=max(usage.evictable / 10, least) / 1e9,
        max_num_batched_tokens=64,
        max_num_seqs=16,
    )
    for together in (True, False):
        assert given(serve(small, conversation(), together=together)) == cold(family)
    stats = small.stats()
    assert stats.cache.evictions > 0 and stats.peak_bytes <= stats.usage.budget


@families
def test_preemption_changes_no_answer(
    make_worker: MakeWorker,
    checkpoint: Callable[[str], Path],
    cold: Callable[[str], list[Given]],
    family: str,
) -> None:
    worker = make_worker(checkpoint(family), max_num_batched_tokens=64, max_num_seqs=8)
    jobs = [worker.submit(prompt, GREEDY) for prompt in conversation()]

    def preempt_one(engine: Engine) -> None:
        scheduler = engine.scheduler
        running = [request for request in scheduler.running if request.num_preemptions < 3]
        if running:
            scheduler.preempt(running[len(running) // 2], engine.clock.now())

    while not all(job.ended for job in jobs):
        in_engine(worker, preempt_one)
    assert given([job.result() for job in jobs]) == cold(family)
    assert worker.stats().scheduler.num_preemptions >= 10
