"""The tree of chunks beside a cache without limits, and beside a list of paths."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache.experiments.endless_tree import CHUNK_TOKENS, EndlessTree, Seen, chunk_hashes
from hybridcache.experiments.replay_cache import replay_cache
from hybridcache.experiments.replay_settings import UNBOUNDED_BYTES
from hybridcache.experiments.request_rows import COLUMNS, RequestRows
from hybridcache.experiments.trace_command import model_of
from hybridcache.experiments.traces.open import open_trace
from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.prefix_cache import PrefixCache

Path = tuple[int, ...]


def request(session: int, path: Sequence[int], num_prompt: int | None = None) -> TraceRequest:
    """A request whose chunk k repeats the token path[k], and one token; that is the output, or as told."""
    tokens = np.append(np.repeat(np.array(path, np.uint32), CHUNK_TOKENS), np.uint32(0))
    prompt = len(tokens) - 1 if num_prompt is None else num_prompt
    return TraceRequest(0.0, session, 0, tokens, prompt, np.array([prompt]))


@pytest.mark.parametrize("kind", ["chat", "agent", "rag", "few_shot", "tree_search"])
@pytest.mark.parametrize("model", ["tiny", "attention"])
def test_hits_are_those_of_a_cache_without_limits_but_for_less_than_a_chunk(kind: str, model: str) -> None:
    trace = open_trace(kind, limit=200)
    spec = model_of("tiny")
    if model == "attention":
        spec = replace(spec, layers=tuple(layer for layer in spec.layers if layer.kv_bytes_per_token))
    cache = PrefixCache(
        spec,
        budget_bytes=UNBOUNDED_BYTES,
        eviction=build_eviction("lru"),
        admission=build_admission("branch_and_final"),
    )
    real: list[float] = []
    rows = RequestRows(None, on_row=lambda row: real.append(row[list(COLUMNS).index("hit_tokens")]))
    replay_cache(trace, cache, spec, rows)
    rows.close()
    tree = EndlessTree(spec.checkpoint_bytes > 0)
    found = [tree.add(each).hit for each in trace]
    missed = np.array(real) - found
    assert sum(found) > 0
    assert (missed >= 0).all()
    assert (missed < CHUNK_TOKENS).mean() > 0.98, "checkpoints within one chunk count as one"


paths = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.integers(1, 2), min_size=1, max_size=6).map(tuple)),
    min_size=1,
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(paths, st.integers(1, 3))
def test_sessions_are_counted_where_they_have_been(requests: list[tuple[int, Path]], least: int) -> None:
    tree = EndlessTree(recurrent=True, most=3)
    seen: list[Seen] = []
    had: dict[Path, set[int]] = {}
    for session, path in requests:
        seen.append(tree.add(request(session, path)))
        for stop in range(1, len(path) + 1):
            had.setdefault(path[:stop], set()).add(session)
    assert tree.num_sessions == len({session for session, _ in requests})
    common = {prefix for prefix, sessions in had.items() if len(sessions) >= least}
    assert tree.shared(least)[0] == CHUNK_TOKENS * len(common)
    below: dict[Path, object] = {}
    for (_, path), (_, end) in zip(requests, seen, strict=True):
        expected = sum(path[:stop] in common for stop in range(1, len(path) + 1))
        tokens, top = tree.part(end, least)
        assert tokens == CHUNK_TOKENS * expected
        assert (top is None) == (expected == len(path))
        # Requests that leave the common texts by the same chunk are of one family, and others are not.
        if top is not None:
            assert below.setdefault(path[: expected + 1], top) is top
    assert len(set(below.values())) == len(below)


def test_a_session_counts_once_whatever_it_returns_to() -> None:
    """40 paths of one session side by side, each gone on with in turn."""
    tree = EndlessTree(recurrent=True, most=16)
    for turn in range(1, 31):
        ends = [tree.add(request(0, (1, 2, *[branch + 3] * turn))).end for branch in range(40)]
    assert (tree.num_sessions, tree.shared(2)) == (1, (0, 0))
    tree.add(request(1, (1, 2, 9)))
    assert tree.shared(2)[0] == 3 * CHUNK_TOKENS
    assert tree.part(ends[0], 2)[0] == 2 * CHUNK_TOKENS


def test_a_checkpoint_is_where_a_second_path_leaves_the_first() -> None:
    tree = EndlessTree(recurrent=True, most=4)
    assert [tree.add(request(session, (1, 2, 3, session + 4))).hit for session in range(4)] == [0, 0, 48, 48]
    assert tree.shared(4) == (48, 1)
    attention = EndlessTree(recurrent=False)
    hits = [attention.add(request(session, (1, 2, 3, session + 4))).hit for session in range(4)]
    assert hits == [0, 48, 48, 48]


def test_a_prompt_computes_its_last_token() -> None:
    tree = EndlessTree(recurrent=True)
    tree.add(request(0, (1, 2)))
    assert tree.add(request(0, (1, 2, 3), num_prompt=32)).hit == 0, "the checkpoint is at the prompt's end"
    assert tree.add(request(0, (1, 2, 3), num_prompt=33)).hit == 32
    tree.add(request(1, (1, 2)))
    assert tree.add(TraceRequest(0.0, 2, 0, np.ones(3, np.uint32), 2, np.array([2]))).hit == 0


def test_hashes_are_of_whole_chunks_and_see_every_token() -> None:
    tokens = np.arange(3 * CHUNK_TOKENS + 5, dtype=np.uint32)
    hashes = chunk_hashes(tokens)
    assert len(hashes) == 3 == len(set(hashes.tolist()))
    for place in range(3 * CHUNK_TOKENS):
        changed = tokens.copy()
        changed[place] += 1
        differs = chunk_hashes(changed) != hashes
        assert differs.tolist() == [place // CHUNK_TOKENS == chunk for chunk in range(3)]
    swapped = tokens.copy()
    swapped[[2, 3, 4, 5]] = swapped[[4, 5, 2, 3]]
    assert chunk_hashes(swapped)[0] != hashes[0]
    assert (chunk_hashes(np.append(np.uint32(9), tokens)[1:]) == hashes).all(), "at any address"
