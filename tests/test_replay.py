"""A replay's results: what they hold, that they add up, that they repeat."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from hybridcache.experiments import request_rows
from hybridcache.experiments.replay_cache import replay_cache
from hybridcache.experiments.request_rows import Columns, RequestRows
from hybridcache.experiments.run import replay
from hybridcache.experiments.summary import TIMING_KEYS
from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.loss import LOSS_REASONS
from hybridcache.namespace import Namespace
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.prefix_cache import PrefixCache
from hybridcache.spec import ModelSpec

Values = dict[str, Any]
PROMISED = """
    requests requests_refused input_tokens hit_tokens token_hit_rate matched_tokens request_hit_rate
    lost_tokens flops_total flops_saved flops_saved_ratio evictions checkpoints_admitted checkpoints_used
    budget_bytes peak_bytes wall_seconds requests_per_second config code_version seed
    outputs_in_trace start_state
"""


class Dialogue:
    """Two turns: the second is the first, its answer, and 50 tokens more."""

    name = "dialogue"
    num_requests = 2
    has_outputs = True
    first, answer, more = np.arange(100), np.arange(1_000, 1_031), np.arange(2_000, 2_050)

    def __iter__(self) -> Iterator[TraceRequest]:
        second = np.concatenate([self.first, self.answer, self.more])
        for turn, prompt in enumerate((self.first, second)):
            tokens = np.concatenate([prompt, self.answer]).astype(np.uint32)
            yield TraceRequest(10.0 * turn, 0, turn, tokens, len(prompt), np.array([len(prompt)]))


def steady(summary: Values) -> Values:
    return {key: value for key, value in summary.items() if key not in TIMING_KEYS}


def rows_of(trace: Any, cache: PrefixCache, spec: ModelSpec) -> Columns:
    found: list[Columns] = []
    rows = RequestRows(None, on_fold=found.append)
    replay_cache(trace, cache, spec, rows)
    rows.close()
    return {name: np.concatenate([columns[name] for columns in found]) for name in request_rows.COLUMNS}


def build_cache(spec: ModelSpec, budget_bytes: int) -> PrefixCache:
    return PrefixCache(
        spec,
        budget_bytes=budget_bytes,
        eviction=build_eviction("lru"),
        admission=build_admission("branch_and_final"),
    )


def test_summary_holds_what_is_promised(small_replay: Callable[..., Values]) -> None:
    summary = small_replay()
    assert set(PROMISED.split()) <= set(summary)
    assert summary["requests"] == 120
    assert summary["start_state"] == "empty"
    assert summary["outputs_in_trace"] is True
    assert summary["config"]["eviction"] == {"name": "reuse_rate"}
    assert 0 < summary["hit_tokens"] < summary["matched_tokens"] <= summary["input_tokens"]
    assert summary["token_hit_rate"] == summary["hit_tokens"] / summary["input_tokens"]
    assert 0 < summary["flops_saved_ratio"] < 1
    assert summary["peak_bytes"] <= summary["budget_bytes"] == 10**9
    assert set(summary["lost_tokens"]) == set(LOSS_REASONS)
    assert summary["hit_tokens"] + sum(summary["lost_tokens"].values()) == summary["input_tokens"]


def test_every_row_adds_up_and_the_totals_are_the_rows(values: Callable[..., Values], tmp_path: Path) -> None:
    summary = replay(values("budget_gb=0.1"), tmp_path / "run")
    table = pq.read_table(tmp_path / "run" / "requests.parquet")
    rows = {name: table[name].to_numpy() for name in table.column_names}
    lost = sum(rows[f"lost_{reason}"] for reason in LOSS_REASONS)
    assert (rows["hit_tokens"] + lost == rows["prompt_tokens"]).all()
    refused = rows["refused"]
    assert 0 < refused.sum() < len(refused)
    assert (rows["lost_too_large"][refused] == rows["prompt_tokens"][refused]).all()
    assert not rows["hit_tokens"][refused].any()
    assert not rows["lost_too_large"][~refused].any()
    assert (rows["hit_tokens"] <= rows["matched_tokens"])[~refused].all()
    assert len(refused) == summary["requests"]
    assert refused.sum() == summary["requests_refused"]
    for name in ("hit_tokens", "matched_tokens", "evictions", "checkpoints_admitted"):
        assert rows[name].sum() == summary[name], name
    assert rows["prompt_tokens"].sum() == summary["input_tokens"]
    assert (np.diff(rows["arrival_seconds"]) >= 0).all()


def test_repeats_exactly_in_this_process_and_in_a_fresh_one(
    values: Callable[..., Values], tmp_path: Path
) -> None:
    config = values("eviction=hit_density")
    first, second = (steady(replay(config, tmp_path / name)) for name in ("a", "b"))
    assert first == second
    rows = [pq.read_table(tmp_path / name / "requests.parquet") for name in ("a", "b")]
    assert rows[0].equals(rows[1])
    code = "import json, sys; from hybridcache.experiments.run import replay; from pathlib import Path\n"
    code += "print(json.dumps(replay(json.loads(sys.argv[1]), Path(sys.argv[2]))))"
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(config), str(tmp_path / "c")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert steady(json.loads(done.stdout)) == first


def test_infinite_cache_evicts_nothing_and_hits_no_less(small_replay: Callable[..., Values]) -> None:
    endless, small = small_replay("budget_gb=inf"), small_replay()
    assert endless["evictions"] == endless["requests_refused"] == 0
    assert endless["lost_tokens"]["kv_evicted"] == endless["lost_tokens"]["checkpoint_evicted"] == 0
    assert endless["hit_tokens"] >= small["hit_tokens"]
    assert endless["config"]["budget_gb"] == "inf"


def test_second_turn_hits_past_the_first_answer(values: Callable[..., Values]) -> None:
    spec = ModelSpec.from_config(values("model=tiny")["model"])
    cache = build_cache(spec, 10**9)
    rows = rows_of(Dialogue(), cache, spec)
    # All of the first turn but its last output token, which was sampled and never fed.
    assert rows["hit_tokens"].tolist() == [0, 100 + 31 - 1]
    assert rows["lost_new"].tolist() == [100, 1 + 50]
    assert rows["flops_saved"][1] == spec.prefix_flops(130)
    assert rows["output_tokens"].tolist() == [31, 31]
    cache.check()


def test_a_request_that_never_fits_changes_nothing(values: Callable[..., Values]) -> None:
    spec = ModelSpec.from_config(values("model=tiny")["model"])
    blocks = -(-(100 + 31 - 1) // 16)
    room = blocks * 16 * spec.kv_bytes_per_token + spec.checkpoint_bytes
    cache = build_cache(spec, room)
    rows = rows_of(Dialogue(), cache, spec)
    assert rows["refused"].tolist() == [False, True]
    assert rows["lost_too_large"].tolist() == [0, 181]
    assert cache.peak_bytes == room
    known = cache.match_prefix(next(iter(Dialogue())).tokens, Namespace(spec.fingerprint), 20.0)
    assert known.hit == 130


def test_memory_does_not_grow_with_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_rows, "GROUP_ROWS", 1_024)
    rows = RequestRows(tmp_path / "rows.parquet")
    row = dict.fromkeys(request_rows.COLUMNS, 0) | {"prompt_tokens": 7, "hit_tokens": 4, "lost_new": 3}
    row |= {"session": 2**62, "turn": 2**62}  # which the native format allows
    most = 0
    for index in range(5_000):
        rows.append(tuple((row | {"index": index}).values()))
        most = max(most, len(rows._pending) + rows._num_folded)
    assert not (tmp_path / "rows.parquet").exists()
    rows.close()
    assert most <= 1_024
    stored = pq.ParquetFile(tmp_path / "rows.parquet")
    assert stored.metadata.num_row_groups == 5
    assert stored.read()["index"].to_pylist() == list(range(5_000))
    assert rows.totals.hit_tokens == 4 * 5_000


def test_a_row_that_does_not_add_up_is_caught() -> None:
    rows = RequestRows(None)
    rows.append(
        tuple((dict.fromkeys(request_rows.COLUMNS, 0) | {"prompt_tokens": 7, "hit_tokens": 4}).values())
    )
    with pytest.raises(AssertionError, match="request 0"):
        rows.close()


@pytest.mark.parametrize("memory", ["unified", "split"])
@pytest.mark.parametrize(
    "eviction", ["lru", "block_lru", "lfu", "gdsf", "marconi", "age_density", "hit_density", "reuse_rate"]
)
def test_every_policy_stays_within_the_budget(
    small_replay: Callable[..., Values], eviction: str, memory: str
) -> None:
    summary = small_replay(f"eviction={eviction}", f"memory={memory}", "budget_gb=0.6")
    assert summary["evictions"] > 0
    assert summary["hit_tokens"] > 0
    assert summary["peak_bytes"] <= summary["budget_bytes"]


@pytest.mark.parametrize(
    "admission", ["all_blocks", "every_n", "final_only", "branch_and_final", "branch_final_prompt"]
)
def test_every_admission_hits(small_replay: Callable[..., Values], admission: str) -> None:
    # A megabyte of state at each of all_blocks' boundaries asks for a small model.
    summary = small_replay(f"admission={admission}", "model=tiny", "trace.requests=60", "budget_gb=0.05")
    assert summary["hit_tokens"] > 0
    assert 0 < summary["checkpoints_used"] <= summary["checkpoints_admitted"]


def test_a_cache_that_never_hits_says_so(small_replay: Callable[..., Values]) -> None:
    with pytest.warns(UserWarning, match=r"no token was hit: 5 of 5 requests too large"):
        small_replay("budget_gb=0.001", "trace.requests=5")


def test_entries_expire(small_replay: Callable[..., Values]) -> None:
    kept, expired = small_replay("budget_gb=inf"), small_replay("budget_gb=inf", "ttl_seconds=1")
    assert kept["lost_tokens"]["expired"] == 0
    assert expired["lost_tokens"]["expired"] > 0
    assert expired["hit_tokens"] < kept["hit_tokens"]
