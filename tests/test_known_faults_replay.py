"""Known faults of experiments: trace files, times, outputs, warm starts, shared folders, two lookups."""

import gzip
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridcache.experiments.replay_cache import replay_cache
from hybridcache.experiments.request_rows import Columns, RequestRows
from hybridcache.experiments.run import replay
from hybridcache.experiments.run_folder import RunFolder
from hybridcache.experiments.summary import TIMING_KEYS
from hybridcache.experiments.traces.open import open_trace
from hybridcache.experiments.traces.request import Trace
from hybridcache.lease import Lease
from hybridcache.namespace import Namespace
from tests.serving import KINDS, Serving, joined, text

Values = dict[str, Any]
FILE_KINDS = ["npz", "mooncake", "marconi"]


def write_npz(path: Path, arrivals: list[float]) -> str:
    """One session: each turn is the one before, its answer of 7 tokens, and 50 more; the first has 60."""
    turns = len(arrivals)
    sizes = [60, *[7, 50] * turns]
    inputs = [segment for turn in range(turns) for segment in range(2 * turn + 1)]
    np.savez(
        path,
        format=np.array("hybridcache-trace-1"),
        tokens=text(sum(sizes)),
        segment_offsets=np.cumsum([0, *sizes]),
        arrival=np.array(arrivals, dtype=np.float64),
        session=np.zeros(turns, dtype=np.int64),
        turn=np.arange(turns),
        input_offsets=np.cumsum([0, *[2 * turn + 1 for turn in range(turns)]]),
        input_segments=np.array(inputs),
        output_segment=np.arange(turns) * 2 + 1,
    )
    return str(path)


def write_jsonl(path: Path, rows: list[Values]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_marconi(path: Path, arrivals: list[float]) -> str:
    tokens = text(60 + 57 * len(arrivals)).tolist()
    rows = [
        {
            "session_id": 0, "turn_id": turn, "ts": arrival,
            "input_tokens": tokens[: 60 + 57 * turn],
            "output_tokens": tokens[60 + 57 * turn : 67 + 57 * turn],
        }
        for turn, arrival in enumerate(arrivals)
    ]  # fmt: skip
    return write_jsonl(path, rows)


def write_mooncake(path: Path, arrivals: list[float]) -> str:
    """Times in ms; inputs of 1,100 tokens and more, each turn 512 longer."""
    rows = [
        {
            "timestamp": arrival * 1_000, "input_length": 1_100 + 512 * turn, "output_length": 7,
            "hash_ids": [*range(2 + turn), 100 + turn],
        }
        for turn, arrival in enumerate(arrivals)
    ]  # fmt: skip
    return write_jsonl(path, rows)


WRITERS: dict[str, Callable[[Path, list[float]], str]] = {
    "npz": write_npz, "mooncake": write_mooncake, "marconi": write_marconi,
}  # fmt: skip


def trace_file(kind: str, folder: Path, arrivals: list[float]) -> str:
    return WRITERS[kind](folder / ("trace.npz" if kind == "npz" else "trace.jsonl"), arrivals)


def rows_of(trace: Trace, serving: Serving) -> Columns:
    """Replay ``trace``; the columns of its rows."""
    found: list[Columns] = []
    rows = RequestRows(None, on_fold=found.append)
    replay_cache(trace, serving.cache, serving.spec, rows)
    rows.close()
    serving.cache.check()
    return {name: np.concatenate([columns[name] for columns in found]) for name in found[0]}


def steady(summary: Values) -> Values:
    """What two runs of one configuration have in common."""
    return {key: value for key, value in summary.items() if key not in TIMING_KEYS}


def test_case_065_a_second_run_starts_as_cold_as_the_first(small_replay: Callable[..., Values]) -> None:
    """The same run twice in one process with a sweep between: every cell starts empty, and says so."""
    arguments = ("eviction=hit_density", "budget_gb=0.5", "trace.limit=40")
    first = small_replay(*arguments)
    small_replay("eviction=hit_density", "budget_gb=2", "trace.limit=40")
    assert first["start_state"] == "empty"
    assert first["hit_tokens"] and first["evictions"]
    assert steady(small_replay(*arguments)) == steady(first)


@pytest.mark.parametrize("eviction", ["age_density", "hit_density", "gdsf"])
def test_case_065_nothing_learnt_outlives_a_run(eviction: str) -> None:
    """A sweep over budgets in one process, then its first cell again: the same hits, request by request."""

    def cell(blocks: int) -> list[int]:
        trace = open_trace("chat", requests=120, sessions_per_second=2.0)
        hits: list[int] = rows_of(trace, Serving(blocks=blocks, slots=25, eviction=eviction))[
            "hit_tokens"
        ].tolist()
        return hits

    first = cell(900)
    assert any(first)
    assert cell(600) != first
    assert cell(900) == first


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eviction", ["lru", "block_lru", "hit_density"])
def test_case_066_one_function_decides_the_usable_boundary(kind: str, eviction: str) -> None:
    """A look and the acquire that follows agree on hit and matched, request by request."""
    serving = Serving(KINDS[kind], blocks=60, slots=14, eviction=eviction)
    rng = np.random.default_rng(66)
    hits = 0
    for i in range(80):
        cut = int(rng.integers(1, 60))
        prompt = joined(text(60, int(rng.integers(4)))[:cut], text(int(rng.integers(0, 20)), 50 + i % 5))
        seen = serving.look(prompt)
        lease = serving.serve(prompt, text(1 + i % 4, 90))
        assert (lease.hit, lease.matched) == seen
        hits += lease.hit > 0
        serving.now += 1.0
    assert hits > 20
    serving.check_idle()


@pytest.mark.parametrize("kind", KINDS)
def test_case_066_recording_changes_nothing(kind: str, tmp_path: Path) -> None:
    """Rows to a file, to a callback, or to nobody: the same totals."""
    trace = open_trace("chat", requests=60, sessions_per_second=2.0)
    totals = []
    for path, callback in ((None, None), (tmp_path / "rows.parquet", None), (None, lambda _: None)):
        serving = Serving(KINDS[kind], blocks=600, slots=40)
        rows = RequestRows(path, on_fold=callback)
        replay_cache(trace, serving.cache, serving.spec, rows)
        rows.close()
        totals.append(rows.totals)
    assert totals[0] == totals[1] == totals[2]
    assert totals[0].hit_tokens


def test_case_088_a_run_folder_has_one_owner(tmp_path: Path, small_replay: Callable[..., Values]) -> None:
    """8 claims at once: one wins, the others are told; results are not written over."""
    with ExitStack() as held, ThreadPoolExecutor(8) as pool:

        def claim(_: int) -> bool:
            with suppress(ValueError):
                held.enter_context(RunFolder(tmp_path / "fixed"))
                return True
            return False

        assert sorted(pool.map(claim, range(8))) == [False] * 7 + [True]
        with pytest.raises(ValueError, match="in use by another run"), RunFolder(tmp_path / "fixed"):
            pass
    with RunFolder(tmp_path / "fixed") as folder:
        folder.write_json("summary.json", {})
    with pytest.raises(ValueError, match="already holds the results"), RunFolder(tmp_path / "fixed"):
        pass
    with RunFolder(tmp_path / "fixed", overwrite=True):
        assert not (tmp_path / "fixed" / "summary.json").exists()
    summary = small_replay("trace.limit=5", "seed=3")
    assert summary["seed"] == summary["config"]["seed"] == summary["config"]["trace"]["seed"] == 3
    assert summary["code_version"]["package"]


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_case_090_a_missing_trace_is_an_error_before_any_work(
    kind: str, values: Callable[..., Values], tmp_path: Path
) -> None:
    """A wrong path, an empty file, a directory, gzip by another name: named, and nothing is replayed."""
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    config = values()
    for name, error in (("nowhere", FileNotFoundError), ("folder", IsADirectoryError), ("empty", ValueError)):
        config["trace"] = {"kind": kind, "path": str(tmp_path / name)}
        with pytest.raises(error, match=name):
            replay(config, tmp_path / "run")
        assert not (tmp_path / "run").exists()
    good = trace_file(kind, tmp_path, [0.0, 1.0])
    assert open_trace(kind, path=good).num_requests == 2
    if kind != "npz":
        Path(good + ".gz").write_bytes(Path(good).read_bytes())
        with pytest.raises(ValueError, match=r"jsonl\.gz: named \.gz but not gzip"):
            open_trace(kind, path=good + ".gz")
        (tmp_path / "packed.jsonl").write_bytes(gzip.compress(Path(good).read_bytes()))
        assert open_trace(kind, path=str(tmp_path / "packed.jsonl")).num_requests == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trace_kind", FILE_KINDS)
@pytest.mark.parametrize("admission", ["branch_and_final", "final_only", "branch_final_prompt"])
def test_case_118_the_next_turn_hits_past_the_answer(
    kind: str, trace_kind: str, admission: str, tmp_path: Path
) -> None:
    """Turn 2 = turn 1 + its answer + more: all but the answer's last token, which was never computed."""
    trace = open_trace(trace_kind, path=trace_file(trace_kind, tmp_path, [0.0, 5.0, 9.0]))
    assert trace.has_outputs
    first = next(iter(trace))
    rows = rows_of(trace, Serving(KINDS[kind], admission=admission))
    assert first.num_prompt == rows["prompt_tokens"][0]
    expected = rows["prompt_tokens"][:-1] + rows["output_tokens"][:-1] - 1
    assert rows["hit_tokens"].tolist() == [0, *expected.tolist()]


def test_case_118_a_trace_without_outputs_says_so(tmp_path: Path) -> None:
    """Ids taken at their word: turn 2 ends where the ids end, and reuse is called a lower bound."""
    trace = open_trace("mooncake", path=write_mooncake(tmp_path / "t.jsonl", [0.0, 5.0]), stitch=False)
    assert not trace.has_outputs
    rows = rows_of(trace, Serving(KINDS["attention"]))
    assert rows["hit_tokens"].tolist() == [0, 1_024]


def test_case_118_the_report_says_so_too(values: Callable[..., Values], tmp_path: Path) -> None:
    """``outputs_in_trace`` is part of the summary."""
    path = write_mooncake(tmp_path / "t.jsonl", [0.0, 5.0])
    for stitch in (True, False):
        settings = {**values(), "trace": {"kind": "mooncake", "path": path, "stitch": stitch}}
        summary = replay(settings, tmp_path / f"run{stitch}")
        assert summary["outputs_in_trace"] is stitch


@pytest.mark.parametrize("kind", FILE_KINDS)
@pytest.mark.parametrize("start", [0.0, 3.5, 1.7e9])
def test_case_119_arrivals_are_seconds_from_the_first(kind: str, start: float, tmp_path: Path) -> None:
    """Traces that start at 0 and at an epoch, in s and in ms; two rows with one stamp; a single row."""
    gaps = [0.0, 0.25, 0.25, 2.0]
    trace = open_trace(kind, path=trace_file(kind, tmp_path, [start + gap for gap in gaps]))
    assert [request.arrival for request in trace] == gaps
    single = open_trace(kind, path=trace_file(kind, tmp_path, [start]))
    assert [request.arrival for request in single] == [0.0]


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_case_119_times_out_of_order_are_refused(kind: str, tmp_path: Path) -> None:
    """Named with file, row and field."""
    path = trace_file(kind, tmp_path, [0.0, 5.0, 4.0])
    with pytest.raises(ValueError, match=rf"{path}, row \d"):
        open_trace(kind, path=path)


@pytest.mark.parametrize("stitch", [True, False])
@pytest.mark.parametrize(
    ("length", "ids"),
    [(1_025, [0, 1]), (512, [0, 1]), (512, []), (512, None), (0, []), (0, [0]), (-5, [0]), (1_024, [0])],
)
def test_case_120_block_ids_that_do_not_fit_the_length(
    stitch: bool, length: int, ids: list[int] | None, tmp_path: Path
) -> None:
    """Too few, too many, none, an empty list, length 0: line and rule are named, no prompt changes length."""
    good: Values = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]}
    bad = {**good, "input_length": length, "hash_ids": ids}
    if ids is None:
        del bad["hash_ids"]
    path = write_jsonl(tmp_path / "t.jsonl", [good, bad])
    with pytest.raises(ValueError, match=rf"{path}, row 2, field '(hash_ids|input_length)'"):
        open_trace("mooncake", path=path, stitch=stitch)


@pytest.mark.parametrize("stitch", [True, False])
@pytest.mark.parametrize("length", [1, 511, 512, 513, 1_024])
def test_case_120_the_prompt_has_the_length_the_row_says(stitch: bool, length: int, tmp_path: Path) -> None:
    """A length that is no multiple is a partial last block, and another block size must be said."""
    ids = list(range(-(-length // 512)))
    row = {"timestamp": 0, "input_length": length, "output_length": 5, "hash_ids": ids}
    path = write_jsonl(tmp_path / "t.jsonl", [row, row])
    requests = list(open_trace("mooncake", path=path, stitch=stitch))
    assert [request.num_prompt for request in requests] == [length] * 2
    assert [len(request.tokens) for request in requests] == [length + 5] * 2
    if length > 256:
        with pytest.raises(ValueError, match=r"trace\.block_tokens"):
            open_trace("mooncake", path=path, stitch=stitch, block_tokens=256)


def test_case_123_offline_time_is_virtual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 rows of 1 ms: arrivals follow exactly from the fixed start, and nobody sleeps."""
    for name in ("sleep", "monotonic", "time"):
        monkeypatch.setattr(time, name, lambda *_: pytest.fail("a replay asked the clock"))
    rows = [
        {"timestamp": 1_700_000_000_000 + i, "input_length": 20, "output_length": 1, "hash_ids": [i % 50]}
        for i in range(10_000)
    ]
    path = write_jsonl(tmp_path / "t.jsonl", rows)
    trace = open_trace("mooncake", path=path, min_blocks=1)
    short = open_trace("mooncake", path=write_jsonl(tmp_path / "s.jsonl", rows[:1_000]), min_blocks=1)
    serving = Serving(blocks=100, slots=60, admission="final_only")
    assert [request.arrival for request in trace] == (np.arange(10_000) / 1_000).tolist()
    columns = rows_of(short, serving)
    assert (columns["arrival_seconds"] == np.arange(1_000) / 1_000).all()
    serving.now = 10.0
    lease = serving.begin(next(iter(trace)).prompt, Namespace(serving.spec.fingerprint))
    assert isinstance(lease, Lease)


@pytest.mark.parametrize(
    ("block_size", "memory"), [(100, "split"), pytest.param(1, "unified", marks=pytest.mark.full)]
)
def test_case_098_a_replay_that_never_hits_says_so(
    small_replay: Callable[..., Values], block_size: int, memory: str
) -> None:
    """Every block size and memory mode hits; one that cannot is warned of."""
    settings = (f"block_size={block_size}", f"memory={memory}", "trace.limit=30")
    assert small_replay(*settings, "budget_gb=4")["hit_tokens"]
    with pytest.warns(UserWarning, match="no token was hit"):
        assert not small_replay(*settings, "budget_gb=0.001")["hit_tokens"]
