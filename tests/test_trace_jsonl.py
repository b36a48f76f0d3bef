"""Bad trace files are refused with file, row, field and remedy, before any request."""

import gzip
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from hybridcache.experiments.traces.open import open_trace

MOONCAKE = [
    {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]},
    {"timestamp": 10, "input_length": 512, "output_length": 7, "hash_ids": [0]},
]
MARCONI = [
    {"session_id": 4, "turn_id": 0, "ts": 1.0, "input_tokens": [1, 2], "output_tokens": [3]},
    {"session_id": 4, "turn_id": 1, "ts": 2.0, "input_tokens": [1, 2, 3, 4], "output_tokens": [5, 6]},
]
ROWS = {"mooncake": MOONCAKE, "marconi": MARCONI}
KINDS = ["npz", "mooncake", "marconi"]


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_missing_directory_empty_and_no_path(kind: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere.*trace.path"):
        open_trace(kind, path=str(tmp_path / "nowhere"))
    with pytest.raises(IsADirectoryError, match="directory"):
        open_trace(kind, path=str(tmp_path))
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match=r"empty: the file is empty"):
        open_trace(kind, path=str(tmp_path / "empty"))
    with pytest.raises(ValueError, match=r"set trace.path=FILE"):
        open_trace(kind)


@pytest.mark.parametrize("kind", ROWS)
def test_gzip_is_told_by_content(kind: str, tmp_path: Path) -> None:
    plain = write(tmp_path / "plain.jsonl", ROWS[kind])
    misnamed = tmp_path / "packed.jsonl"
    misnamed.write_bytes(gzip.compress(plain.read_bytes()))
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(misnamed.read_bytes())
    results = [
        [request.tokens.tolist() for request in open_trace(kind, path=str(path))]
        for path in (plain, misnamed, packed)
    ]
    assert results[0] == results[1] == results[2]
    assert len(results[0]) == 2


@pytest.mark.parametrize("kind", ROWS)
def test_wrong_or_damaged_gzip(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "plain.jsonl.gz", ROWS[kind])
    with pytest.raises(ValueError, match=r"plain.jsonl.gz: named .gz but not gzip"):
        open_trace(kind, path=str(path))
    packed = gzip.compress(b"".join(json.dumps(row).encode() + b"\n" for row in ROWS[kind][:1] * 50))
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ValueError, match=r"plain.jsonl.gz, row \d+: gzip data damaged or cut off"):
        open_trace(kind, path=str(path))
    path.write_bytes(packed[:-5] + b"wrong")
    with pytest.raises(ValueError, match="gzip data damaged"):
        open_trace(kind, path=str(path))


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{broken", "not JSON"),
        ("[1, 2]", "JSON object"),
        ("3", "JSON object"),
        ("[" * 100_000, "not JSON|nested"),
    ],
)
def test_a_line_that_is_no_row(kind: str, line: str, problem: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", ROWS[kind])
    path.write_text(path.read_text() + "\n" + line + "\n")  # the blank line 3 counts as a line
    with pytest.raises(ValueError, match=rf"t.jsonl, row 4: .*({problem})"):
        open_trace(kind, path=str(path))


@pytest.mark.parametrize("kind", ROWS)
def test_only_blank_lines(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("\n \n")
    with pytest.raises(ValueError, match="no rows"):
        open_trace(kind, path=str(path))


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind in ROWS for field in ROWS[kind][0]])
def test_a_missing_field(kind: str, field: str, tmp_path: Path) -> None:
    rows = [dict(row) for row in ROWS[kind]]
    del rows[1][field]
    path = write(tmp_path / "t.jsonl", rows)
    with pytest.raises(ValueError, match=rf"t.jsonl, row 2, field '{field}': missing.*drop the row"):
        open_trace(kind, path=str(path))


@pytest.mark.parametrize(
    ("kind", "field", "value", "problem"),
    [
        ("mooncake", "timestamp", "0", "number"),
        ("mooncake", "timestamp", True, "number"),
        ("mooncake", "timestamp", float("nan"), "finite"),
        ("mooncake", "timestamp", float("inf"), "finite"),
        ("mooncake", "timestamp", 10**400, "finite"),
        ("mooncake", "timestamp", 1.5e308, "no clock shows that"),
        ("mooncake", "timestamp", -1, "sort the rows"),
        ("mooncake", "input_length", 0, "lie in"),
        ("mooncake", "input_length", -512, "lie in"),
        ("mooncake", "input_length", 10**12, "lie in"),
        ("mooncake", "input_length", 512.0, "integer"),
        ("mooncake", "input_length", None, "integer"),
        ("mooncake", "input_length", True, "integer"),
        ("mooncake", "output_length", 0, "lie in"),
        ("mooncake", "output_length", -3, "lie in"),
        ("mooncake", "output_length", [], "integer"),
        ("mooncake", "hash_ids", 3, "list"),
        ("mooncake", "hash_ids", ["0"], "integers"),
        ("mooncake", "hash_ids", [True], "integers"),
        ("mooncake", "hash_ids", [-1], "integers"),
        ("mooncake", "hash_ids", [2**64], "integers"),
        ("marconi", "session_id", None, "integer or a string"),
        ("marconi", "session_id", 1.5, "integer or a string"),
        ("marconi", "turn_id", -1, "lie in"),
        ("marconi", "turn_id", "a", "integer"),
        ("marconi", "ts", None, "number"),
        ("marconi", "ts", 0.5, "sort the rows"),
        ("marconi", "input_tokens", [], "empty"),
        ("marconi", "output_tokens", [], "empty"),
        ("marconi", "input_tokens", "text", "list"),
        ("marconi", "input_tokens", [1, 2.5], "got 2.5 at place 1"),
        ("marconi", "input_tokens", [2**32], "integers"),
        ("marconi", "output_tokens", [-1], "integers"),
    ],
)
def test_a_wrong_value(kind: str, field: str, value: object, problem: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [ROWS[kind][0], {**ROWS[kind][1], field: value}])
    for limit in (None, 1):  # what `limit` leaves out is checked all the same
        with pytest.raises(ValueError, match=rf"t.jsonl, row 2, field '{field}': .*{problem}"):
            open_trace(kind, path=str(path), limit=limit)


@pytest.mark.parametrize(
    ("length", "ids"), [(600, [0]), (600, [0, 1, 2]), (600, []), (512, [0, 1]), (513, [0]), (1, [])]
)
@pytest.mark.parametrize("stitch", [True, False])
def test_block_count_that_does_not_fit(length: int, ids: list[int], stitch: bool, tmp_path: Path) -> None:
    row = {"timestamp": 20, "input_length": length, "output_length": 1, "hash_ids": ids}
    path = write(tmp_path / "t.jsonl", [*MOONCAKE, row])
    needed = -(-length // 512)
    with pytest.raises(
        ValueError,
        match=rf"row 3, field 'hash_ids': holds {len(ids)} ids, input_length {length} needs {needed}",
    ):
        open_trace("mooncake", path=str(path), stitch=stitch)


def test_another_block_size_must_be_said(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 33, "output_length": 1, "hash_ids": [5, 6, 7]}
    path = write(tmp_path / "t.jsonl", [row])
    with pytest.raises(ValueError, match=r"trace.block_tokens"):
        open_trace("mooncake", path=str(path))
    assert next(iter(open_trace("mooncake", path=str(path), block_tokens=16))).num_prompt == 33


@pytest.mark.parametrize(
    ("kind", "field", "per_second"), [("mooncake", "timestamp", 1000), ("marconi", "ts", 1)]
)
@pytest.mark.parametrize("epoch", [0, 5, 1_700_000_000])
def test_arrivals_are_seconds_from_the_first(
    kind: str, field: str, per_second: int, epoch: int, tmp_path: Path
) -> None:
    times = [epoch, epoch, epoch + 2]
    rows = [{**ROWS[kind][0], field: time * per_second} for time in times]
    trace = open_trace(kind, path=str(write(tmp_path / "t.jsonl", rows)))
    assert [request.arrival for request in trace] == [0.0, 0.0, 2.0]


@pytest.mark.parametrize("kind", ROWS)
def test_a_single_row_and_a_restart(kind: str, tmp_path: Path) -> None:
    path = str(write(tmp_path / "t.jsonl", ROWS[kind][:1]))
    trace = open_trace(kind, path=path)
    assert trace.num_requests == 1
    first, again, anew = (next(iter(source)) for source in (trace, trace, open_trace(kind, path=path)))
    assert first.arrival == 0.0
    assert first.tokens.tolist() == again.tokens.tolist() == anew.tokens.tolist()


@pytest.mark.parametrize("kind", ["npz", "marconi"])
@pytest.mark.parametrize("setting", [{"stitch": True}, {"min_blocks": 1}, {"seed": 3}])
def test_settings_that_do_nothing_are_named(kind: str, setting: dict[str, object], tmp_path: Path) -> None:
    opener: Callable[..., object] = open_trace
    pattern = rf"trace.{next(iter(setting))}=.* is ignored"
    with pytest.warns(UserWarning, match=pattern), suppress(FileNotFoundError):
        opener(kind, path=str(tmp_path / "x"), **setting)


@pytest.mark.parametrize(
    ("kind", "setting", "problem"),
    [
        ("npy", {}, "kind = 'npy' is unknown; choose one of npz"),
        ("npz", {"every_kth_session": 0}, "every_kth_session must be an integer of 1 or more"),
        ("npz", {"limit": 0}, "limit must be"),
        ("npz", {"limit": 1.5}, "limit must be"),
        ("mooncake", {"min_blocks": 0}, "min_blocks must be"),
        ("mooncake", {"stitch": "yes"}, "stitch must be true or false"),
        ("mooncake", {"block_tokens": 0}, "block_tokens must be"),
        ("mooncake", {"block_size": 16}, "block_size is no setting of trace=mooncake.*block_tokens"),
        ("npz", {"turns": 3}, "turns is no setting of trace=npz.*none"),
        ("chat", {"turn": 3}, "turn is no setting of trace=chat.*turns"),
        ("chat", {"seed": -1}, "seed must be"),
    ],
)
def test_bad_settings(kind: str, setting: dict[str, object], problem: str) -> None:
    opener: Callable[..., object] = open_trace
    with pytest.raises(ValueError, match=problem):
        opener(kind, **setting)
