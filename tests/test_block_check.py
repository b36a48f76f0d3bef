"""The classic policies over single blocks: by hand, and beside libCacheSim."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hybridcache.experiments.block_cache import BlockCache
from hybridcache.experiments.block_check import (
    NO_NEXT_USE,
    POLICIES,
    block_paths,
    compare,
    compare_prefix_cache,
    main,
    next_uses,
    our_hits,
)
from hybridcache.experiments.traces.open import open_trace
from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.policies.build import build_eviction


def stream_of(requests: int) -> list[int]:
    """A chat workload's blocks."""
    return [block for path in block_paths(open_trace("chat", requests=requests), 64) for block in path]


def test_next_uses() -> None:
    never = NO_NEXT_USE
    assert next_uses([1, 2, 3, 1, 4, 2, 1]) == [3, 5, never, 6, never, never, never]


def test_equal_prefixes_are_one_block() -> None:
    def request(*tokens: int) -> TraceRequest:
        ids = np.array([*tokens, 0], dtype=np.uint32)
        return TraceRequest(0.0, 0, 0, ids, len(tokens), np.array([len(tokens)]))

    trace = [request(1, 2, 3, 4, 5), request(1, 2, 3, 9), request(3, 4), request(1)]
    assert block_paths(trace, 2) == [[0, 1], [0, 2], [3], []]


@pytest.mark.parametrize(
    ("name", "hits"),
    [
        # 4 takes the place of: lru 2; lfu 2, the older of those seen once; Belady 3, which never comes again.
        ("lru", [0, 0, 0, 1, 0, 0, 1]),
        ("lfu", [0, 0, 0, 1, 0, 0, 1]),
        ("gdsf", [0, 0, 0, 1, 0, 0, 1]),
        ("clairvoyant", [0, 0, 0, 1, 0, 1, 1]),
    ],
)
def test_by_hand(name: str, hits: list[int]) -> None:
    stream = [1, 2, 3, 1, 4, 2, 1]
    cache = BlockCache(build_eviction(name), 3)
    uses = next_uses(stream)
    assert [int(cache.access(b, float(i), float(uses[i]))) for i, b in enumerate(stream)] == hits
    assert our_hits(name, stream, 3) == sum(hits)


def naive_lru(stream: Sequence[int], capacity: int) -> int:
    held: dict[int, None] = {}
    hits = 0
    for block in stream:
        hits += block in held
        held.pop(block, None)
        held[block] = None
        if len(held) > capacity:
            del held[next(iter(held))]
    return hits


def test_lru_is_a_stack_and_nothing_beats_belady() -> None:
    stream = stream_of(60)
    before = 0
    for capacity in (1, 7, 63, len(set(stream))):
        lru = our_hits("lru", stream, capacity)
        assert lru == naive_lru(stream, capacity) >= before
        assert our_hits("clairvoyant", stream, capacity) >= max(lru, our_hits("lfu", stream, capacity))
        before = lru
    assert before == len(stream) - len(set(stream)), "all that can be hit"


def test_a_cache_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity=0"):
        BlockCache(build_eviction("lru"), 0)


@pytest.fixture
def libcachesim() -> Any:
    return pytest.importorskip("libcachesim", reason="libcachesim is not installed: pip install libcachesim")


@pytest.mark.usefixtures("libcachesim")
def test_beside_libcachesim() -> None:
    stream = stream_of(150)
    for capacity in (20, 100):
        rows = {row.policy: row for row in compare(stream, capacity)}
        assert list(rows) == list(POLICIES)
        for name in ("lru", "lfu", "clairvoyant"):
            assert rows[name].ours == rows[name].theirs > 0.1 * len(stream), rows[name]
        gdsf = rows["gdsf"]
        assert abs(gdsf.ours - gdsf.theirs) <= 0.005 * len(stream), "equal priorities go in another order"


@pytest.mark.usefixtures("libcachesim")
def test_the_prefix_cache_beside_libcachesim() -> None:
    rng = np.random.default_rng(6)
    # Paths that part and never end inside one another: each ends with a block of its own.
    paths = [
        [*range(int(rng.integers(1, 9))), *(100 * int(rng.integers(1, 9)) + i for i in range(5)), 10_000 + n]
        for n in range(300)
    ]
    ids = {
        path: n for n, path in enumerate({tuple(path[: i + 1]) for path in paths for i in range(len(path))})
    }
    paths = [[ids[tuple(path[: i + 1])] for i in range(len(path))] for path in paths]
    for capacity in (30, 120):
        row = compare_prefix_cache(paths, capacity)
        assert row.ours == row.theirs > 0.2 * row.accesses, row


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("libcachesim", reason="libcachesim is not installed: pip install libcachesim")
    main(["scan", "--requests", "20", "--capacity", "0.3"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["policy", *POLICIES, "block_lru"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--block-size", "0"], "--block-size 0"),
        (["--capacity", "0"], "give parts above 0"),
        (["--requests", "2", "--block-size", "1000000"], "no prompt has a block"),
    ],
)
def test_bad_values(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert message in capsys.readouterr().err
