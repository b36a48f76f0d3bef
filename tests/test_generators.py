"""Generators: the same trace anywhere, with the prefix sharing each one promises."""

import hashlib
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml

from hybridcache.experiments.traces.generated import GeneratedTrace
from hybridcache.experiments.traces.open import FILE_KINDS, GENERATORS, open_trace
from hybridcache.experiments.traces.request import Trace, TraceRequest
from hybridcache.experiments.traces.sampler import Sampler
from hybridcache.experiments.traces.workload import Call, WorkloadSettings

CONF = Path(__file__).parents[1] / "conf" / "trace"
COMMON = {"kind", "path", "stitch", "every_kth_session", "min_blocks", "limit", "seed"}


def make(kind: str, **settings: object) -> Trace:
    opener: Callable[..., Trace] = open_trace
    return opener(kind, **settings)


def digest(trace: Trace) -> str:
    sha = hashlib.sha256()
    for r in trace:
        sha.update(f"{r.arrival!r} {r.session} {r.turn} {r.num_prompt} {r.boundaries.tolist()}".encode())
        sha.update(r.tokens.tobytes())
    return sha.hexdigest()


def by_session(trace: Trace) -> dict[int, list[TraceRequest]]:
    sessions: dict[int, list[TraceRequest]] = defaultdict(list)
    for request in trace:
        sessions[request.session].append(request)
    return sessions


def starts_with(whole: TraceRequest, start: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> bool:
    return np.array_equal(whole.prompt[: len(start)], start)


@pytest.mark.parametrize("kind", GENERATORS)
def test_requests_are_well_formed(kind: str) -> None:
    trace = make(kind)
    requests = list(trace)
    assert len(requests) == trace.num_requests
    assert 300 <= len(requests) <= 1500
    assert (trace.name, trace.has_outputs) == (kind, True)
    arrivals = [r.arrival for r in requests]
    assert arrivals[0] == 0.0
    assert arrivals == sorted(arrivals)
    turns: dict[int, int] = defaultdict(int)
    for r in requests:
        assert r.tokens.dtype == np.uint32
        assert r.tokens.max() < 2**31
        assert 1 <= r.num_prompt < len(r.tokens)
        assert r.boundaries[0] > 0
        assert r.boundaries[-1] == r.num_prompt
        assert (np.diff(r.boundaries) > 0).all()
        assert r.turn == turns[r.session]
        turns[r.session] += 1


@pytest.mark.parametrize("kind", GENERATORS)
def test_seeds(kind: str) -> None:
    trace = make(kind, limit=60, seed=5)
    assert digest(trace) == digest(trace) == digest(make(kind, limit=60, seed=5))
    assert digest(trace) != digest(make(kind, limit=60, seed=6))


def test_the_same_trace_in_another_process() -> None:
    here = {kind: digest(make(kind, limit=40, seed=1)) for kind in GENERATORS}
    code = (
        "import runpy, sys; m = runpy.run_path(sys.argv[1]);"
        "print(*(m['digest'](m['make'](k, limit=40, seed=1)) for k in m['GENERATORS']))"
    )
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code, __file__],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(CONF.parents[1])},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == list(here.values())


@pytest.mark.parametrize("kind", GENERATORS)
def test_thinning_keeps_whole_sessions(kind: str) -> None:
    whole = by_session(make(kind, requests=200))
    trace = make(kind, requests=200, every_kth_session=3)
    thinned = by_session(trace)
    assert list(thinned) == [session for session in whole if session % 3 == 0]
    assert sum(map(len, thinned.values())) == trace.num_requests
    for session, requests in thinned.items():
        assert [r.tokens.tolist() for r in requests] == [r.tokens.tolist() for r in whole[session]]
    assert make(kind, requests=200, every_kth_session=3, limit=2).num_requests == 2


@pytest.mark.parametrize("kind", ["chat", "agent"])
def test_the_next_turn_repeats_prompt_and_answer(kind: str) -> None:
    sessions = by_session(make(kind, requests=300))
    assert max(map(len, sessions.values())) > 3
    for requests in sessions.values():
        for before, after in pairwise(requests):
            assert starts_with(after, before.tokens)
            assert len(before.tokens) in after.boundaries
            assert after.arrival > before.arrival
    openings = {r[0].prompt[: int(r[0].boundaries[0])].tobytes() for r in sessions.values()}
    assert 1 < len(openings) <= 4  # system prompts are shared between sessions


def test_agent_context_is_bounded() -> None:
    assert max(r.num_prompt for r in make("agent", context_tokens=5000, requests=200)) <= 5000 + 8 * 350


@pytest.mark.parametrize("kept", [1, 4])
def test_edited_agents_leave_their_path_where_the_first_observation_was_cleared(kept: int) -> None:
    sessions = by_session(make("edited_agent", requests=400, kept_observations=kept, edit_tokens=4000))
    edits = 0
    for requests in sessions.values():
        for before, after in pairwise(requests):
            if starts_with(after, before.tokens):
                assert after.num_prompt <= 4000 or len(after.boundaries) <= 2 + 2 * kept or edits
                continue
            edits += 1
            shared = np.argmin(after.prompt[: before.num_prompt] == before.prompt[: after.num_prompt])
            assert int(shared) in before.boundaries and int(shared) in after.boundaries
            ends = after.boundaries.tolist()
            observations = [ends[i] - ends[i - 1] for i in range(3, len(ends), 2)]
            assert observations[:-kept].count(10) == len(observations[:-kept])
    assert edits > 30


def test_few_shot_shares_examples_only() -> None:
    trace = make("few_shot", tasks=3, requests=60)
    examples = {r.prompt[: int(r.boundaries[-2])].tobytes() for r in trace}
    assert len(examples) == 3
    assert len({r.prompt.tobytes() for r in trace}) == 60
    assert {len(r.boundaries) for r in trace} == {9}


def documents_of(request: TraceRequest) -> list[bytes]:
    ends = request.boundaries.tolist()
    return [request.prompt[a:b].tobytes() for a, b in pairwise(ends[:4])]


def test_rag_shuffles_popular_documents() -> None:
    firsts = [requests[0] for requests in by_session(make("rag", documents=5, requests=300)).values()]
    orders = {tuple(documents_of(r)) for r in firsts}
    assert len({document for order in orders for document in order}) == 5
    assert len(orders) > len({frozenset(order) for order in orders})  # the same set, in several orders
    assert len({r.prompt[: int(r.boundaries[0])].tobytes() for r in firsts}) == 1


def test_tree_search_branches_from_stems() -> None:
    sessions = by_session(make("tree_search", requests=300, sessions_per_second=0.01))
    search = sessions[0]
    assert len(search) == 3 + 3 * 9
    levels = [search[:3], search[3:12], search[12:21], search[21:]]
    for above, level in pairwise(levels):
        stems = {r.prompt.tobytes() for r in level}
        assert len(stems) == 3
        assert stems <= {r.tokens.tobytes() for r in above}
    assert len({r.tokens.tobytes() for r in search}) == len(search)


def test_scan_mixes_one_off_and_reused() -> None:
    counts: dict[bytes, int] = defaultdict(int)
    requests = list(make("scan", documents=4, requests=300))
    for r in requests:
        counts[r.prompt[: int(r.boundaries[0])].tobytes()] += 1
    reused = [count for count in counts.values() if count > 1]
    assert len(reused) == 4
    assert 0.2 < (len(requests) - sum(reused)) / len(requests) < 0.4
    assert sum(r.num_prompt for r in make("scan", scan_fraction=0, requests=50)) < 50 * 8 * 3000


class _Endless:
    """Counts sessions started; each has two calls."""

    def __init__(self) -> None:
        self.settings = WorkloadSettings(requests=10**9, sessions_per_second=1.0)
        self.started = 0

    def session(self, seed: int, sampler: Sampler) -> Iterator[Call]:
        self.started += 1
        for _ in range(2):
            yield Call(1.0, [sampler.text(3)], sampler.text(1))


def test_sessions_are_made_when_they_arrive() -> None:
    workload = _Endless()
    requests = iter(GeneratedTrace("endless", workload, seed=0))
    times = [next(requests).arrival for _ in range(200)]
    assert 100 <= workload.started < 120
    assert 60 < times[-1] < 160  # 100 sessions at one a second


def test_starts_in_bursts() -> None:
    poisson, bursts = (
        np.diff([r.arrival for r in make("few_shot", requests=4000, sessions_per_burst=burst)])
        for burst in (1.0, 20.0)
    )
    assert np.mean(bursts) == pytest.approx(np.mean(poisson), rel=0.3) == pytest.approx(0.5, rel=0.3)
    assert np.median(poisson) > 0.3 and np.median(bursts) < 0.03
    # Of an exponential wait the deviation is the mean; pauses of 19 means, one time in 20, make 6 of it.
    assert np.std(poisson) / np.mean(poisson) == pytest.approx(1.0, abs=0.1)
    assert np.std(bursts) / np.mean(bursts) == pytest.approx(6.0, abs=1.0)


@pytest.mark.parametrize(
    ("kind", "setting", "problem"),
    [
        ("chat", {"requests": 0}, "requests must be positive"),
        ("chat", {"requests": 1.5}, "requests must be int"),
        ("chat", {"requests": True}, "requests must be int"),
        ("chat", {"turns": float("nan")}, "turns must be float"),
        ("chat", {"turns": 0.5}, "turns must be 1 or more"),
        ("chat", {"sessions_per_burst": 0.5}, "sessions_per_burst must be 1 or more"),
        ("chat", {"system_tokens": "many"}, "system_tokens must be float"),
        ("chat", {"vocab_size": 2**31 + 1}, r"at most 2\*\*31"),
        ("scan", {"scan_fraction": 1.1}, r"lie in \[0, 1\]"),
        ("rag", {"popularity_exponent": -1}, "0 .all alike. or more"),
        ("rag", {"documents": 2}, "documents_per_question = 3 exceeds"),
    ],
)
def test_bad_settings(kind: str, setting: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make(kind, **setting)


@pytest.mark.parametrize("setting", [{"path": "x"}, {"stitch": True}, {"min_blocks": 2}])
def test_settings_that_do_nothing_are_named(setting: dict[str, object]) -> None:
    with pytest.warns(UserWarning, match=rf"trace.{next(iter(setting))}=.* is ignored: trace=chat"):
        make("chat", **setting)


@pytest.mark.parametrize("kind", [*FILE_KINDS, *GENERATORS])
def test_every_kind_has_its_file_of_defaults(kind: str, recwarn: pytest.WarningsRecorder) -> None:
    conf = yaml.safe_load((CONF / f"{kind}.yaml").read_text())
    assert conf["kind"] == kind
    assert set(conf) >= COMMON
    if kind in GENERATORS:
        settings_type, _ = GENERATORS[kind]
        own = {key: value for key, value in conf.items() if key not in COMMON}
        defaults = settings_type()
        assert own == {field.name: getattr(defaults, field.name) for field in fields(settings_type)}
        assert make(**conf).num_requests == conf["requests"]
    else:
        with pytest.raises(ValueError, match=r"set trace.path=FILE"):
            make(**conf)
    assert not recwarn.list
