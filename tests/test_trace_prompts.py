"""Logs of API requests: what clients write differently is the same prompt."""

import json
from pathlib import Path
from typing import Any

import pytest

from hybridcache.experiments.traces.open import open_trace
from hybridcache.experiments.traces.prompts import PromptsTrace

Json = dict[str, Any]
SAID = [{"role": "user", "content": "Where is it?"}, {"role": "assistant", "content": "In the shed."}]


def log(tmp_path: Path, *rows: Json) -> PromptsTrace:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return PromptsTrace(str(path))


def part(text: str, marked: bool = False) -> Json:
    mark: Json = {"cache_control": {"type": "ephemeral"}} if marked else {}
    return {"type": "text", "text": text, **mark}


def test_parts_marks_and_a_system_field_change_no_token(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be brief."}
    plain = {"messages": [system, *SAID]}
    parts = [{**said, "content": [part(said["content"], marked=i == 1)]} for i, said in enumerate(SAID)]
    ways: list[Json] = [
        plain,
        {"messages": [system, *parts]},
        {"system": "Be brief.", "messages": SAID},
        {"system": [part("Be brief.", marked=True)], "messages": parts},
    ]
    first, *others = [list(request.tokens) for request in log(tmp_path, *ways)]
    assert others == [first] * 3
    without = next(iter(log(tmp_path, {"messages": SAID})))
    assert len(without.tokens) < len(first)


def test_marks_on_tools_and_other_parts_are_no_part_of_a_prompt(tmp_path: Path) -> None:
    tool = {"name": "find", "description": "Finds."}
    image = {"type": "image", "source": {"url": "x"}}
    mark = {"cache_control": {"type": "ephemeral"}}
    rows = [
        {
            "tools": [{**tool, **more}],
            "messages": [{"role": "user", "content": [part("See"), {**image, **more}]}],
        }
        for more in ({}, mark)
    ]
    one, two = [list(request.tokens) for request in log(tmp_path, *rows)]
    assert one == two
    (other,) = log(tmp_path, {"messages": [{"role": "user", "content": "See"}]})
    assert len(other.tokens) < len(one)


def test_a_null_is_a_field_that_is_not_there(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("output", "timestamp", "session", "tools", "system", "prompt"))
    rows: list[Json] = [{"messages": SAID}, {**nothing, "messages": SAID}]
    one, two = log(tmp_path, *rows)
    assert (list(one.tokens), one.arrival, two.arrival) == (list(two.tokens), 0.0, 1.0)
    assert one.session != two.session
    calls = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    assert "null" not in log(tmp_path, {"messages": [calls]}).decode(
        next(iter(log(tmp_path, {"messages": [calls]}))).tokens.tolist()
    )


def test_times_are_seconds_or_dates_and_may_be_missing(tmp_path: Path) -> None:
    dates = ("2025-11-03T10:00:00Z", "2025-11-03T11:00:02.5+01:00", "2025-11-03 10:00:07")
    trace = log(tmp_path, *({"prompt": "a", "timestamp": when} for when in dates))
    assert [request.arrival for request in trace] == [0.0, 2.5, 7.0]
    # The second row is taken to come a second after the first; the third states less than that.
    mixed: list[Json] = [{"prompt": "a", "timestamp": 5}, {"prompt": "b"}, {"prompt": "c", "timestamp": 5.5}]
    assert [request.arrival for request in log(tmp_path, *mixed)] == [0.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"prompt": "a", "timestamp": "noon"}, "field 'timestamp': must be seconds, or an ISO date and time"),
        ({"prompt": "a", "timestamp": "2020-01-01"}, "field 'timestamp': is 1577836800.0 s, after a row of"),
        ({"prompt": "a", "system": 7}, "field 'system': must be a text or a list of parts"),
        ({"messages": None}, "field 'messages': missing"),
    ],
)
def test_what_is_wrong_is_named(row: Json, says: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    first = {"prompt": "a", "timestamp": "2025-11-03T10:00:00Z"}
    path.write_text(f"{json.dumps(first)}\n{json.dumps(row)}\n")
    with pytest.raises(ValueError, match=f"row 2, {says}"):
        open_trace("prompts", path=str(path))
