"""mode=worker: the requests of a trace through a real model, with the hits that a simulation has."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from hybridcache.experiments.bounds import find_bounds
from hybridcache.experiments.real_model import RealClock, RealModel
from hybridcache.experiments.replay_engine import replay_engine
from hybridcache.experiments.request_rows import TIMED_COLUMNS, Columns, RequestRows
from hybridcache.experiments.run import checkpoint_of, replay, spec_of
from hybridcache.experiments.simulation import Simulation, TimedEngine
from hybridcache.experiments.traces.open import open_trace
from hybridcache.experiments.traces.request import Trace, TraceRequest
from hybridcache.experiments.traces.vocabulary import VocabularyTrace
from hybridcache.loss import LOSS_REASONS
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.prefix_cache import PrefixCache
from hybridcache.scheduler import SchedulerConfig
from tests.simulated import config_group, profile

SMALL = {
    "seed": 0,
    "vocab_size": 5_000,
    "system_tokens": 100.0,
    "question_tokens": 20.0,
    "answer_tokens": 6.0,
}
SPEC = spec_of({"name": "tiny", "checkpoint": "tiny"})
SAME = ("index", "refused", "hit_tokens", "matched_tokens", *(f"lost_{reason}" for reason in LOSS_REASONS))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As the command has it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class AtOnce:
    """The requests of a trace, all of them there from the start."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def __iter__(self) -> Iterator[TraceRequest]:
        return (request._replace(arrival=0.0) for request in self.trace)


def workload(limit: int) -> Trace:
    settings = config_group("trace", "chat") | SMALL | {"limit": limit}
    return VocabularyTrace(open_trace(**settings), SPEC.vocab_size, 32_768)


def columns_of(
    build: Callable[[PrefixCache], TimedEngine], trace: AtOnce | Trace, gigabytes: float
) -> Columns:
    cache = PrefixCache(
        SPEC,
        budget_bytes=round(gigabytes * 1e9),
        eviction=build_eviction("lru"),
        admission=build_admission("branch_final_prompt"),
    )
    found: list[Columns] = []
    rows = RequestRows(None, found.append, TIMED_COLUMNS)
    replay_engine(trace, build(cache), SPEC, rows, speed=1e3)
    rows.close()
    cache.check()
    assert not cache.leases
    return {name: np.concatenate([columns[name] for columns in found]) for name in TIMED_COLUMNS}


@pytest.mark.filterwarnings("ignore:chat has token")
@pytest.mark.parametrize(("max_running", "gigabytes"), [(1, 1.0), (1, 0.002), (6, 1.0)])
def test_the_same_hits_as_simulated(max_running: int, gigabytes: float) -> None:
    """One at a time with and without evictions; and six at a time, which start from the same moment."""
    limits = SchedulerConfig(max_running, 256)
    trace = workload(14) if max_running == 1 else AtOnce(workload(14))
    folder = checkpoint_of("tiny")
    real = columns_of(lambda cache: RealModel.of(cache, folder, scheduler=limits), trace, gigabytes)
    simulated = columns_of(
        lambda cache: Simulation.of(cache, hardware=profile("none"), scheduler=limits), trace, gigabytes
    )
    for name in SAME:
        assert np.array_equal(real[name], simulated[name]), name
    assert real["hit_tokens"].sum() > 0
    assert (real["evictions"].sum() > 0) == (gigabytes < 1)
    assert (real["ttft_seconds"] > 0).all()


@pytest.mark.filterwarnings("ignore:chat has token")
def test_a_run_and_its_bounds(tmp_path: Path) -> None:
    """Through the command's own path; the folder's configuration names the checkpoint as its model."""
    values = {
        "trace": config_group("trace", "chat") | SMALL | {"limit": 8},
        "model": config_group("model", "nvidia_hybrid_7b"),
        "eviction": config_group("eviction", "lru"),
        "admission": config_group("admission", "branch_final_prompt"),
        "hardware": config_group("hardware", "h100"),
        "worker": {"model": "tiny"},
        "mode": "worker",
        "budget_gb": 0.5,
        "block_size": 16,
        "memory": "split",
        "kv_fraction": 0.5,
        "ttl_seconds": None,
        "max_num_batched_tokens": 512,
        "max_running": 1,
        "order": "fcfs",
        "max_wait_seconds": 5.0,
        "speed": 1e3,
        "seed": 0,
        "overwrite": False,
        "wandb": {"mode": "disabled", "project": "x", "group": None},
    }
    summary = replay(values, tmp_path)
    assert summary["config"]["model"] == {"name": "tiny", "checkpoint": "tiny"}
    assert summary["hit_tokens"] > 0
    assert {"ttft_seconds", "wall_seconds"} <= set(summary["timing_keys"])
    assert 0 < summary["busy_fraction"] <= 1
    assert pq.read_table(tmp_path / "requests.parquet").num_rows == 8
    config = json.loads((tmp_path / "config.json").read_text())
    assert find_bounds(config, tmp_path / "bounds.json").hybrid_token_hit_rate >= summary["token_hit_rate"]


def test_tokens_beyond_the_vocabulary_and_requests_beyond_the_model() -> None:
    trace = open_trace(**(config_group("trace", "chat") | SMALL | {"limit": 3}))
    with pytest.warns(UserWarning, match="modulo the model's vocabulary of 100"):
        found = list(VocabularyTrace(trace, 100, 10_000))
    for request, plain in zip(found, trace, strict=True):
        assert np.array_equal(request.tokens, plain.tokens % 100)
        assert request.num_prompt == plain.num_prompt
    longest = max(len(request.tokens) for request in trace)
    with pytest.raises(ValueError, match=f"has {longest} tokens with its answer"):
        list(VocabularyTrace(trace, 1 << 20, longest - 1))
    assert list(VocabularyTrace(trace, 1 << 20, longest))[2].tokens is not None


def test_the_clock_skips_what_nothing_runs_in() -> None:
    clock = RealClock()
    clock.advance_to(1_000.0)
    assert 1_000.0 <= clock.now() < 1_100.0
    clock.advance_to(5.0)
    assert clock.now() >= 1_000.0
