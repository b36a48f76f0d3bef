"""The planner's sample: whole families, all along the trace, in proportion to it."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from hybridcache.experiments import trace_sample
from hybridcache.experiments.trace_command import model_of
from hybridcache.experiments.trace_sample import SHARED_BY, sample_trace
from hybridcache.experiments.traces.open import open_trace
from hybridcache.experiments.traces.request import TraceRequest

SPEC = model_of("nvidia_hybrid_7b")


class Requests:
    """A trace that counts how often it is read."""

    name, has_outputs = "requests", True

    def __init__(self, requests: Sequence[TraceRequest]) -> None:
        self.requests = requests
        self.num_reads = 0

    @property
    def num_requests(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[TraceRequest]:
        self.num_reads += 1
        return iter(self.requests)


@pytest.fixture(scope="module")
def chats() -> Requests:
    trace = open_trace(
        "chat", requests=4_000, sessions_per_second=5.0, answer_tokens=20.0, system_tokens=200.0
    )
    return Requests(list(trace))


def test_families_stay_whole_all_along_the_trace(chats: Requests) -> None:
    sample = sample_trace(chats, SPEC, group=8)
    kept = {request.session for request in sample.requests}
    assert len(kept) == sample.num_sampled == pytest.approx(sample.num_sessions / 8, abs=2)
    assert sample.num_sessions == len({request.session for request in chats.requests})
    expected = [request for request in chats.requests if request.session in kept]
    assert [r.arrival for r in sample.requests] == [r.arrival for r in expected]
    begun = list(dict.fromkeys(request.session for request in chats.requests))
    for start in range(0, len(begun) - 64, 64):
        assert len(kept.intersection(begun[start : start + 64])) == 8
    assert not sample.whole


@pytest.mark.parametrize("seed", range(3))
def test_the_sample_stands_for_the_trace(chats: Requests, seed: int) -> None:
    sample = sample_trace(chats, SPEC, group=8, seed=seed)
    assert sample.rate == pytest.approx(1 / 8, rel=0.05)
    assert len(sample.requests) == pytest.approx(500, rel=0.05)
    assert sample.own_scale == pytest.approx(1.0, abs=0.04)
    other = sample_trace(chats, SPEC, group=8, seed=seed + 1)
    assert {r.session for r in other.requests} != {r.session for r in sample.requests}


def test_what_many_sessions_begin_with_is_common(chats: Requests) -> None:
    sample = sample_trace(chats, SPEC, group=8)
    # Four system prompts.
    prompts = {request.tokens[:16].tobytes() for request in chats.requests}
    assert len(prompts) == 4
    assert sample.common_checkpoints == 4
    assert 0 < sample.common.min() <= sample.common.max() < sample.common_tokens
    # Hardly any session has them alone.
    assert sample_trace(chats, SPEC, group=8 * len(chats.requests) // SHARED_BY).common_tokens == 0


def test_common_texts_are_new_in_each_sample() -> None:
    requests = list(open_trace("few_shot", requests=1_200, tasks=3))
    sample = sample_trace(Requests(requests), SPEC, group=4)
    assert (sample.common > 0).all()
    share = 1 - 1 / np.mean([len(requests) / 3 - 2, len(requests) / 3])  # two of each task miss, of all
    of_sample = 1 - 1 / np.mean([len(sample.requests) / 3 - 2, len(sample.requests) / 3])
    assert sample.common_scale > 1.0
    assert sample.common_scale == pytest.approx(share / of_sample, rel=0.02)


def test_all_of_it_is_the_trace_itself(chats: Requests) -> None:
    sample = sample_trace(chats, SPEC, group=1)
    assert sample.whole
    assert len(sample.requests) == 4_000
    assert (sample.rate, sample.own_scale, sample.common_scale) == (1.0, 1.0, 1.0)


def test_a_long_trace_is_read_again_and_not_held(chats: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    chats.num_reads = 0
    held = sample_trace(chats, SPEC, group=8)
    assert chats.num_reads == 1
    monkeypatch.setattr(trace_sample, "MOST_HELD", 10_000)
    again = sample_trace(chats, SPEC, group=8)
    assert chats.num_reads == 3
    assert [r.arrival for r in again.requests] == [r.arrival for r in held.requests]
    assert again[2:] == held[2:]


def test_the_group_follows_the_number_of_sessions(chats: Requests) -> None:
    num_sessions = len({request.session for request in chats.requests})
    sample = sample_trace(chats, SPEC)
    assert num_sessions >= 600
    assert sample.num_sampled >= trace_sample.LEAST_SESSIONS
    assert sample.rate == pytest.approx(1 / (num_sessions // trace_sample.LEAST_SESSIONS), rel=0.1)
    few = Requests(chats.requests[:200])
    assert sample_trace(few, SPEC).whole
