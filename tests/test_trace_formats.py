"""Qwen-Bailian, ShareGPT and Azure files: hand-made rows whose requests are known."""

import csv
import gzip
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from hybridcache.experiments.traces.kind_of_file import kind_of
from hybridcache.experiments.traces.open import open_trace
from hybridcache.experiments.traces.request import Trace, TraceRequest

Row = dict[str, object]
TALK = [
    {"from": "system", "value": "Answer in one word."},
    {"from": "human", "value": "one two three four five six seven eight nine"},
    {"from": "gpt", "value": "ten"},
    {"from": "human", "value": "and then"},
    {"from": "gpt", "value": "eleven twelve"},
]


def bailian(tmp_path: Path, *rows: tuple[int, int, float, int, int, list[int]], **settings: object) -> Trace:
    """Rows of chat, parent, seconds, input and output tokens, hashes."""
    path = tmp_path / "qwen.jsonl"
    names = ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "hash_ids")
    with path.open("w") as lines:
        for row in rows:
            fields: Row = dict(zip(names, row, strict=True))
            lines.write(json.dumps({**fields, "type": "text", "turn": 1 if row[1] < 0 else 2}) + "\n")
    return open_trace("bailian", path=str(path), **settings)  # type: ignore[arg-type]


def common(a: TraceRequest, b: TraceRequest) -> int:
    n = min(len(a.tokens), len(b.prompt))
    differ = np.flatnonzero(a.tokens[:n] != b.prompt[:n])
    return int(differ[0]) if len(differ) else n


def test_bailian_children_repeat_what_their_parent_said(tmp_path: Path) -> None:
    a, b, c = bailian(
        tmp_path,
        (7, -1, 0.0, 40, 20, [1, 2, 3]),
        (8, 7, 2.5, 70, 5, [1, 2, 4, 5, 6]),  # 60 tokens of its parent, 10 of its own
        (9, -1, 3.0, 70, 5, [1, 2, 4, 5, 6]),  # the same without a parent: what the hashes say
    )
    assert common(a, b) == 60
    assert b.boundaries.tolist() == [40, 60, 70]
    assert common(b, c) == 70
    assert [r.session for r in (a, b, c)] == [0, 0, 1]
    assert [r.arrival for r in (a, b, c)] == [0.0, 2.5, 3.0]


def test_bailian_a_stated_stranger_is_not_continued(tmp_path: Path) -> None:
    rows = [(1, -1, 0.0, 32, 8, [1, 2]), (2, 99, 1.0, 48, 1, [1, 2, 3])]
    a, b = bailian(tmp_path, *rows)  # its parent came before the file
    assert common(a, b) == 32
    assert b.session == 1
    a, b = bailian(tmp_path, rows[0], (2, 1, 1.0, 48, 1, [1, 9, 3]))  # its template rewrote the history
    assert common(a, b) == 16
    assert b.session == 0


def test_bailian_siblings_share_what_they_both_said(tmp_path: Path) -> None:
    a, b, c = bailian(
        tmp_path,
        (1, -1, 0.0, 32, 8, [1, 2]),
        (2, 1, 1.0, 80, 4, [1, 2, 3, 4, 5]),
        (3, 1, 2.0, 96, 4, [1, 2, 3, 4, 6, 7]),  # another question, of which the first 24 tokens are alike
    )
    assert (common(a, b), common(a, c), common(b, c)) == (40, 40, 64)


@pytest.mark.parametrize("last", [[3], []])
def test_bailian_the_partial_block_may_have_no_hash(tmp_path: Path, last: list[int]) -> None:
    rows = [(1, -1, 0.0, 40, 8, [1, 2, *last]), (2, -1, 1.0, 40, 8, [1, 2, *last])]
    a, b = bailian(tmp_path, *rows)
    assert common(a, b) == (40 if last else 32)
    a, b = bailian(tmp_path, *rows, stitch=False)
    assert common(a, b) == (40 if last else 32)


def test_bailian_errors_name_row_and_field(tmp_path: Path) -> None:
    first = (1, -1, 5.0, 32, 8, [1, 2])
    for row, problem in (
        ((2, -1, 1.0, 32, 8, [1, 2]), r"row 2, field 'timestamp': is 1.0 s, after"),
        ((1, -1, 6.0, 32, 8, [1, 2]), r"row 2, field 'chat_id': is 1, as that of an earlier row"),
        ((2, -1, 6.0, 32, 8, [1]), r"row 2, field 'hash_ids': holds 1 ids"),
        ((2, -1, 6.0, 32, 0, [1, 2]), r"row 2, field 'output_length': must lie in"),
    ):
        with pytest.raises(ValueError, match=problem):
            bailian(tmp_path, first, row)


def sharegpt(tmp_path: Path, *talks: list[dict[str, str]], **settings: object) -> Trace:
    path = tmp_path / "talks.json"
    path.write_text(json.dumps([{"id": str(i), "conversations": talk} for i, talk in enumerate(talks)]))
    return open_trace("sharegpt", path=str(path), **settings)  # type: ignore[arg-type]


def test_sharegpt_each_answer_is_a_request_after_all_that_was_said(tmp_path: Path) -> None:
    a, b = sharegpt(tmp_path, TALK)
    assert [r.turn for r in (a, b)] == [0, 1]
    # The input ends with the token that says whose turn it is, the next one goes on behind the answer.
    assert np.array_equal(b.prompt[: len(a.tokens)], a.tokens)
    assert b.boundaries[:2].tolist() == a.boundaries[:2].tolist()
    assert len(b.boundaries) == len(TALK)
    again = list(sharegpt(tmp_path, TALK))
    assert np.array_equal(again[1].tokens, b.tokens)


def test_sharegpt_times_are_those_of_typing(tmp_path: Path) -> None:
    a, b = sharegpt(tmp_path, TALK, words_per_minute=60.0, seconds_per_answer_token=0.5)
    answer = len(a.tokens) - a.num_prompt + 1
    assert a.arrival == 0.0
    assert b.arrival == pytest.approx(0.5 * answer + 2)  # two words at a word a second
    talks = [TALK] * 200
    firsts = [r.arrival for r in sharegpt(tmp_path, *talks, sessions_per_second=4.0) if r.turn == 0]
    assert firsts[-1] == pytest.approx(50, rel=0.3)
    others = [r.arrival for r in sharegpt(tmp_path, *talks, sessions_per_second=4.0, seed=1) if r.turn == 0]
    assert firsts != others


def test_sharegpt_leaves_out_what_has_no_answer(tmp_path: Path) -> None:
    silent = [{"from": "human", "value": "hello?"}, {"from": "gpt", "value": ""}]
    trace = sharegpt(tmp_path, silent, TALK)
    assert trace.num_requests == 2
    with pytest.raises(ValueError, match="no conversation with an answer"):
        sharegpt(tmp_path, silent)
    with pytest.raises(ValueError, match=r"conversation 0, turn 0: 'from' is 'dog'"):
        sharegpt(tmp_path, [{"from": "dog", "value": "woof"}])
    with pytest.raises(ValueError, match=r"trace.words_per_minute must be a positive number"):
        sharegpt(tmp_path, TALK, words_per_minute=0)


def test_sharegpt_with_a_tokenizer_of_ones_own(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = Tokenizer(WordLevel({"[UNK]": 0, "and": 1, "then": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    _, b = sharegpt(tmp_path, TALK, tokenizer=str(tmp_path / "tokenizer.json"))
    assert b.prompt[-4:].tolist() == [3, 1, 2, 4]  # user: and then; assistant:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"trace.tokenizer=.*no tokenizer.json"):
        sharegpt(tmp_path, TALK, tokenizer=str(tmp_path / "tokenizer.json"))


def azure(tmp_path: Path, rows: list[tuple[str, int, int]], **settings: object) -> Trace:
    path = tmp_path / "conv.csv"
    with path.open("w", newline="") as lines:
        csv.writer(lines).writerows([("TIMESTAMP", "ContextTokens", "GeneratedTokens"), *rows])
    return open_trace("azure", path=str(path), **settings)  # type: ignore[arg-type]


def minute(second: int) -> str:
    return f"2023-11-16 18:{second // 60:02d}:{second % 60:02d}.9799600"


def test_azure_keeps_arrivals_and_lengths(tmp_path: Path) -> None:
    rows = [(minute(3 * i), 1 + 37 * i % 3000, i % 400) for i in range(500)]
    trace = azure(tmp_path, rows)
    found = list(trace)
    assert [r.num_prompt for r in found] == [context for _, context, _ in rows]
    assert [len(r.tokens) - r.num_prompt for r in found] == [max(output, 1) for _, _, output in rows]
    assert [r.arrival for r in found] == [3.0 * i for i in range(500)]
    assert all(r.boundaries[-1] == r.num_prompt and (np.diff(r.boundaries) > 0).all() for r in found)
    assert all(np.array_equal(a.tokens, b.tokens) for a, b in zip(found, azure(tmp_path, rows), strict=True))


@pytest.mark.parametrize(("kind", "most"), [("chat", 200), ("agent", 60), ("rag", 400)])
def test_azure_sessions_go_on_as_the_generator_has_them(tmp_path: Path, kind: str, most: int) -> None:
    rows = [(minute(4 * i), 3000 + 20 * i, 50) for i in range(400)]
    trace = azure(tmp_path, rows, workload={"kind": kind})
    sessions: dict[int, list[TraceRequest]] = defaultdict(list)
    for request in trace:
        sessions[request.session].append(request)
    assert 1 < len(sessions) <= most
    turns = [(a, b) for same in sessions.values() for a, b in pairwise(same)]
    assert len(turns) > 50
    assert all(common(a, b) == len(a.tokens) for a, b in turns)
    firsts = [same[0].prompt for same in sessions.values()]
    shared = [int(np.argmin(np.append(a[:50] == firsts[0][:50], False))) for a in firsts[1:]]
    assert max(shared) == 50  # sessions share the generator's texts


def test_azure_thins_by_sessions(tmp_path: Path) -> None:
    rows = [(minute(4 * i), 3000 + 20 * i, 50) for i in range(200)]
    whole = list(azure(tmp_path, rows))
    thinned = azure(tmp_path, rows, every_kth_session=3, limit=20)
    assert thinned.num_requests == 20
    wanted = [r.tokens.tolist() for r in whole if r.session % 3 == 0][:20]
    assert [r.tokens.tolist() for r in thinned] == wanted


def test_azure_errors_name_line_and_column(tmp_path: Path) -> None:
    good = (minute(1), 10, 10)
    for row, problem in (
        ((minute(0), 10, 10), r"line 3, column 'TIMESTAMP': is .* before the row above"),
        (("noon", 10, 10), r"line 3, column 'TIMESTAMP': is 'noon'"),
        ((minute(2), 0, 10), r"line 3, column 'ContextTokens': must lie in \[1, "),
        ((minute(2), 10, -1), r"line 3, column 'GeneratedTokens': must lie in \[0, "),
    ):
        with pytest.raises(ValueError, match=problem):
            azure(tmp_path, [good, row])
    with pytest.raises(ValueError, match=r"workload.kind = 'tree_search'; choose one of chat"):
        azure(tmp_path, [good], workload={"kind": "tree_search"})
    with pytest.raises(
        ValueError, match=r"trace\.workload\.turn is no setting of trace\.workload\.kind=chat"
    ):
        azure(tmp_path, [good], workload={"kind": "chat", "turn": 3})
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"line 1: column 'TIMESTAMP' is missing \(the file has: a, b\)"):
        open_trace("azure", path=str(path))
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens,ContextTokens\n2024-05-10 00:00:00,1,2,3\n")
    with pytest.raises(ValueError, match="line 1: column 'ContextTokens' comes twice"):
        open_trace("azure", path=str(path))


HALF = json.dumps("half a character: " + chr(0xD800))
"""JSON can name it, and no encoding has it."""


@pytest.mark.parametrize(
    ("kind", "text", "where"),
    [
        ("sharegpt", f'[{{"items": [{{"from": "gpt", "value": {HALF}}}]}}]', "conversation 0, turn 0"),
        ("sharegpt", "[" * 100_000, "not JSON"),
        ("prompts", f'{{"prompt": {HALF}}}', "row 1, field 'messages'"),
        ("prompts", f'{{"messages": [{{"role": "user", "content": {HALF}}}]}}', "row 1, field 'messages'"),
        ("prompts", f'{{"prompt": "a", "output": {HALF}}}', "row 1, field 'output'"),
    ],
)
def test_texts_that_no_tokenizer_takes_are_told_at_once(
    kind: str, text: str, where: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"bad.json, {where}|bad.json: {where}"):
        open_trace(kind, path=str(path))


@pytest.mark.parametrize("kind", ["azure", "sharegpt"])
def test_gzip_data_that_is_damaged_anywhere_is_told(kind: str, tmp_path: Path) -> None:
    path, rng = tmp_path / "bad.gz", np.random.default_rng(0)
    rows = [f"{minute(0)},{context},{answer}" for context, answer in rng.integers(1, 5_000, (2_000, 2))]
    whole = (
        "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows])
        if kind == "azure"
        else json.dumps([{"conversations": [{"from": "gpt", "value": row}]} for row in rows[:500]])
    )
    data = gzip.compress(whole.encode())
    for at in rng.integers(10, len(data) - 8, 40).tolist():
        path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        with pytest.raises(ValueError, match=r"bad\.gz"):
            open_trace(kind, path=str(path))


def test_the_kind_is_told_by_name_and_first_row(tmp_path: Path) -> None:
    bailian(tmp_path, (1, -1, 0.0, 16, 1, [1]))
    sharegpt(tmp_path, TALK)
    azure(tmp_path, [(minute(0), 1, 1)])
    packed = tmp_path / "packed.csv.gz"
    packed.write_bytes(gzip.compress((tmp_path / "conv.csv").read_bytes()))
    found = {name: kind_of(str(tmp_path / name)) for name in ("qwen.jsonl", "talks.json", "packed.csv.gz")}
    assert found == {"qwen.jsonl": "bailian", "talks.json": "sharegpt", "packed.csv.gz": "azure"}
    assert open_trace("azure", path=str(packed)).num_requests == 1
    assert kind_of("chat") == "chat"
    (tmp_path / "strange.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match=r"strange.jsonl: cannot tell its kind; add --kind"):
        kind_of(str(tmp_path / "strange.jsonl"))


def test_a_mistake_names_the_setting_that_was_given() -> None:
    with pytest.raises(OSError, match=r"no\.json: no such file .*; check trace\.tokenizer"):
        open_trace("prompts", path=__file__, tokenizer="no.json")
    with pytest.raises(
        ValueError, match=r"trace\.workload\.tuns is no setting of trace\.workload\.kind=chat"
    ):
        open_trace("azure", path=__file__, workload={"kind": "chat", "tuns": 3})
