"""Mooncake traces: hand-made rows whose stitching is known."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from hybridcache.experiments.traces.lineage import Lineage
from hybridcache.experiments.traces.open import open_trace
from hybridcache.experiments.traces.request import Trace, TraceRequest
from hybridcache.experiments.traces.stitch import Origin

B = 512  # tokens a block

# (hash ids, input, output)
Row = tuple[list[int], int, int]


def trace_of(tmp_path: Path, rows: list[Row], **settings: int | bool) -> Trace:
    path = tmp_path / "t.jsonl"
    with path.open("w") as file:
        for time, (ids, num_input, num_output) in enumerate(rows):
            row = {"timestamp": time, "input_length": num_input, "output_length": num_output, "hash_ids": ids}
            file.write(json.dumps(row) + "\n")
    return open_trace("mooncake", path=str(path), **settings)  # type: ignore[arg-type]


def common(a: TraceRequest, b: TraceRequest) -> int:
    """Tokens of b's input that are a's first tokens, output included."""
    size = min(len(a.tokens), b.num_prompt)
    differ = np.flatnonzero(a.tokens[:size] != b.tokens[:size])
    return int(differ[0]) if len(differ) else size


FIRST: Row = ([0, 1, 2], 2 * B + 100, 50)


def test_a_continuation_repeats_prompt_and_answer(tmp_path: Path) -> None:
    a, b = trace_of(tmp_path, [FIRST, ([0, 1, 9, 10], 3 * B + 10, 5)])
    assert common(a, b) == 2 * B + 150
    assert (a.num_prompt, len(a.tokens)) == (2 * B + 100, 2 * B + 150)
    assert (b.num_prompt, len(b.tokens)) == (3 * B + 10, 3 * B + 15)
    assert a.boundaries.tolist() == [2 * B + 100]
    assert b.boundaries.tolist() == [2 * B + 100, 2 * B + 150, 3 * B + 10]
    assert (a.session, a.turn, b.session, b.turn) == (0, 0, 0, 1)


def test_three_turns_and_a_branch(tmp_path: Path) -> None:
    rows: list[Row] = [
        FIRST,
        ([0, 1, 9, 10], 3 * B + 10, 5),
        ([0, 1, 9, 11, 12], 4 * B + 1, 5),  # goes on from the second: its last full block is 9
        ([0, 1, 9, 10], 3 * B + 10, 7),  # the second once more: equal input, another output
    ]
    a, b, c, d = trace_of(tmp_path, rows)
    assert common(a, c) == 2 * B + 150
    assert common(b, c) == 3 * B + 15
    assert c.boundaries.tolist() == [2 * B + 100, 2 * B + 150, 3 * B + 10, 3 * B + 15, 4 * B + 1]
    assert d.prompt.tolist() == b.prompt.tolist()
    assert not set(d.tokens[d.num_prompt :].tolist()) & set(b.tokens[b.num_prompt :].tolist())


@pytest.mark.parametrize(
    ("row", "shared"),
    [
        (([0, 1, 9], 2 * B + 149, 1), 2 * B),  # one token too short for the answer
        (([0, 1, 9], 2 * B + 150, 1), 2 * B + 150),  # just long enough
        (([0, 8, 9], 3 * B, 1), B),  # leaves before the last full block
        (([0, 1, 2, 9], 4 * B, 1), 2 * B + 100),  # goes on from the partial block: copied, no further
        (([7, 8, 9], 3 * B, 1), 0),
    ],
)
def test_what_is_no_continuation_copies_the_match(row: Row, shared: int, tmp_path: Path) -> None:
    a, b = trace_of(tmp_path, [FIRST, row])
    assert common(a, b) == shared
    assert len(set(b.tokens[shared:].tolist()) & set(a.tokens.tolist())) == 0


def test_min_blocks(tmp_path: Path) -> None:
    rows: list[Row] = [([0, 1], B + 1, 10), ([0, 2], B + 400, 5)]
    assert common(*trace_of(tmp_path, rows, min_blocks=1)) == B + 11
    assert common(*trace_of(tmp_path, rows)) == B  # a match of one block is under the default of two
    assert [r.session for r in trace_of(tmp_path, rows, min_blocks=1)] == [0, 0]


def test_the_latest_that_fits_is_continued(tmp_path: Path) -> None:
    rows: list[Row] = [
        FIRST,
        ([0, 1, 3], 2 * B + 200, 10),
        ([0, 1, 4], 2 * B + 400, 100),
        ([0, 1, 5], 3 * B - 100, 1),
    ]
    a, b, c, d = trace_of(tmp_path, rows)
    assert (common(a, c), common(b, c)) == (2 * B + 150, 2 * B + 210)
    # c's input and output are longer than d: d goes on from b
    assert (common(a, d), common(b, d), common(c, d)) == (2 * B + 150, 2 * B + 210, 2 * B + 210)


def test_ids_of_block_contents_match_in_their_place_only(tmp_path: Path) -> None:
    """Not all writers hash the prefix: equal ids at other places are other tokens."""
    a, b, c = trace_of(tmp_path, [([1, 2, 1], 3 * B, 4), ([1, 1], 2 * B, 4), ([2, 1], 2 * B, 4)])
    assert common(a, b) == B
    assert common(a, c) == 0
    assert len(set(a.tokens.tolist())) == len(a.tokens)


def test_random_rows_share_what_their_ids_share(tmp_path: Path) -> None:
    """Whatever is stitched: full blocks with equal ids have equal tokens, other blocks do not."""
    random = np.random.default_rng(0)
    paths = [[0, 1], [0, 2]]
    rows: list[Row] = []
    for fresh in range(100, 200):
        path = paths[random.integers(len(paths))]
        rows.append(
            ([*path, fresh], len(path) * B + int(random.integers(1, B)), int(random.integers(1, 600)))
        )
        paths.append([*path, fresh + 1000])  # the last block, filled by what came next
    requests = list(trace_of(tmp_path, rows))
    stitched = 0
    for later in range(len(rows)):
        for earlier in range(later):
            ids, before = rows[later][0], rows[earlier][0]
            same = sum(1 for x, y in zip(ids, before, strict=False) if x == y)
            shared = common(requests[earlier], requests[later])
            stitched += shared > min(same * B, rows[earlier][1])
            assert shared >= min(same * B, rows[earlier][1], rows[later][1])
            assert shared < (same + 3) * B
    assert stitched


def test_thinning_by_sessions_keeps_tokens_and_continuations(tmp_path: Path) -> None:
    rows: list[Row] = [
        FIRST,
        ([0, 5, 6], 2 * B + 1, 3),  # session 1: another second block
        ([0], 100, 3),  # session 2: too short to tell
        ([0, 1, 9, 10], 3 * B + 10, 5),  # session 0
        ([0, 5, 7], 2 * B + 100, 3),  # session 1
    ]
    whole = list(trace_of(tmp_path, rows))
    assert [r.session for r in whole] == [0, 1, 2, 0, 1]
    assert [r.turn for r in whole] == [0, 0, 0, 1, 1]
    thinned = trace_of(tmp_path, rows, every_kth_session=2)
    assert thinned.num_requests == 3
    for request, expected in zip(thinned, [whole[0], whole[2], whole[3]], strict=True):
        assert request.tokens.tolist() == expected.tokens.tolist()
        assert request.arrival == expected.arrival
    assert [r.session for r in trace_of(tmp_path, rows, every_kth_session=2, limit=1)] == [0]
    assert [r.session for r in trace_of(tmp_path, rows, every_kth_session=2, stitch=False)] == [0, 2, 0]


def test_unstitched_tokens_follow_from_the_ids(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [FIRST, ([0, 1, 9, 10], 3 * B + 10, 5)], stitch=False)
    assert not trace.has_outputs
    a, b = trace
    assert common(a, b) == 2 * B
    assert a.tokens[: 2 * B + 100].tolist() == list(range(2 * B + 100))
    assert b.tokens[2 * B : 3 * B].tolist() == list(range(9 * B, 10 * B))
    outputs = [*a.tokens[a.num_prompt :].tolist(), *b.tokens[b.num_prompt :].tolist()]
    assert len(set(outputs)) == 55
    assert not set(outputs) & {*a.prompt.tolist(), *b.prompt.tolist()}
    assert b.boundaries.tolist() == [3 * B + 10]


def test_large_ids_are_renumbered(tmp_path: Path) -> None:
    high = 2**64 - 1
    a, b = trace_of(tmp_path, [([high, 5], B + 5, 1), ([high, 2**23], 2 * B, 1)], stitch=False)
    assert common(a, b) == B
    assert len({*a.tokens.tolist(), *b.tokens.tolist()}) == 2 * B + 5 + 2  # blocks of B, B and 5; outputs


def test_a_long_conversation_needs_no_recursion() -> None:
    lineage = Lineage()
    lineage.add(Origin(-1, 0, False), 4, 1)
    for turn in range(1, 5000):
        lineage.add(Origin(turn - 1, 5 * turn, True), 5 * turn + 4, 1)
    tokens, ends = lineage.tokens(4999)
    assert len(set(tokens.tolist())) == len(tokens) == 25_000
    assert ends[:4].tolist() == [4, 5, 9, 10]
    assert ends[-1] == 24_999


@pytest.mark.parametrize("stitch", [True, False])
def test_tokens_are_made_one_request_at_a_time(stitch: bool, tmp_path: Path) -> None:
    """40 MB of tokens pass by; what is held follows the longest request (0.2 MB)."""
    rows: list[Row] = [(list(range(100 * i, 100 * i + 100)), 100 * B, 10) for i in range(200)]
    tracemalloc.start()
    total = sum(len(request.tokens) for request in trace_of(tmp_path, rows, stitch=stitch))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 200 * (100 * B + 10)
    assert peak < 12_000_000
