"""The Marconi artifact's traces: tokens as written, sessions kept whole, message ends found."""

import json
from pathlib import Path

import pytest

from hybridcache.experiments.traces.open import open_trace
from hybridcache.experiments.traces.request import TraceRequest


def row(session: int | str, turn: int, ts: float, inputs: list[int], outputs: list[int]) -> dict[str, object]:
    return {
        "session_id": session,
        "turn_id": turn,
        "ts": ts,
        "input_tokens": inputs,
        "output_tokens": outputs,
    }


ROWS = [
    row(70, 0, 5.0, [1, 2], [3]),
    row("b", 0, 5.5, [1, 9], [8, 7]),
    row(70, 1, 6.0, [1, 2, 3, 4, 5], [6]),
    row(3, 0, 6.0, [2**32 - 1], [0]),
    row("b", 1, 7.0, [1, 8, 7, 4], [5]),  # rewrote its history
    row(70, 2, 8.0, [1, 2, 3, 4, 5, 6, 7], [8]),
    row(70, 3, 9.0, [1, 2], [8]),  # went back
]


def read(tmp_path: Path, **settings: int) -> list[TraceRequest]:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    trace = open_trace("marconi", path=str(path), **settings)  # type: ignore[arg-type]
    requests = list(trace)
    assert trace.num_requests == len(requests)
    assert trace.has_outputs
    assert trace.name == "t"
    return requests


def test_tokens_times_and_sessions(tmp_path: Path) -> None:
    requests = read(tmp_path)
    assert [r.tokens[: r.num_prompt].tolist() for r in requests] == [r["input_tokens"] for r in ROWS]
    assert [r.tokens[r.num_prompt :].tolist() for r in requests] == [r["output_tokens"] for r in ROWS]
    assert [r.prompt.tolist() for r in requests] == [r["input_tokens"] for r in ROWS]
    assert [r.session for r in requests] == [0, 1, 0, 2, 1, 0, 0]
    assert [r.turn for r in requests] == [0, 0, 1, 0, 1, 2, 3]
    assert [r.arrival for r in requests] == [0, 0.5, 1, 1, 2, 3, 4]


def test_messages_end_where_the_turn_before_did(tmp_path: Path) -> None:
    ends = [r.boundaries.tolist() for r in read(tmp_path)]
    assert ends == [[2], [2], [2, 3, 5], [1], [4], [2, 3, 5, 6, 7], [2]]


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"every_kth_session": 2}, [0, 2, 3, 5, 6]),  # sessions 0 and 2
        ({"every_kth_session": 3}, [0, 2, 5, 6]),
        ({"limit": 3}, [0, 1, 2]),
        ({"every_kth_session": 2, "limit": 3}, [0, 2, 3]),
        ({"limit": 99}, [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_thinning_keeps_whole_sessions(settings: dict[str, int], kept: list[int], tmp_path: Path) -> None:
    prompts = [r.prompt.tolist() for r in read(tmp_path, **settings)]
    assert prompts == [ROWS[i]["input_tokens"] for i in kept]
