"""The ghost: bounded, forgets the oldest, answers with the deepest positions."""

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridcache.ghost import ENTRIES_PER_NODE, LEAST_ENTRIES, NOTHING, Ghost, GhostEntry, Gone
from hybridcache.namespace import Namespace
from hybridcache.prefix_hash import Digest, PrefixHash

HASH = PrefixHash()
START = Namespace().digest(0)
PROMPT = np.arange(100, 120, dtype=np.uint32)


def digests(start: Digest = START, base: int = 0) -> NDArray[np.uint64]:
    """Of the prompt's prefixes of base, base + 1, ... 20 tokens."""
    return HASH.running(HASH.extend(start, PROMPT[:base].tobytes(), 0), PROMPT[base:].tobytes(), base)


def digest(depth: int, start: Digest = START) -> Digest:
    return HASH.extend(start, PROMPT[:depth].tobytes(), 0)


def entry(depth: int, *, checkpoint: bool = True, reason: Gone = Gone.EVICTED, hits: int = 0) -> GhostEntry:
    return GhostEntry(depth, hits, reason, checkpoint)


def test_nothing_is_known_at_first() -> None:
    assert Ghost().look_up(digests(), 0, 20) == NOTHING


def test_the_deepest_checkpoint_up_to_matched_and_the_deepest_beyond() -> None:
    ghost = Ghost()
    for depth in (3, 7, 12, 18):
        ghost.remember(digest(depth), entry(depth, hits=depth), 0)
    for depth in (9, 15, 19):
        ghost.remember(digest(depth), entry(depth, checkpoint=False, reason=Gone.EXPIRED), 0)
    found = ghost.look_up(digests(), 0, matched=13)
    assert found.checkpoint == entry(12, hits=12)
    assert found.beyond == entry(19, checkpoint=False, reason=Gone.EXPIRED)
    found = ghost.look_up(digests(), 0, matched=11)
    assert found.checkpoint == entry(7, hits=7), "a path's end without a checkpoint is none"
    assert ghost.look_up(digests(), 0, matched=19).beyond is None
    assert ghost.look_up(digests(), 0, matched=2).checkpoint is None


def test_only_what_lies_beyond_the_hit() -> None:
    ghost = Ghost()
    ghost.remember(digest(7), entry(7), 0)
    assert ghost.look_up(digests(base=6), 6, 20).checkpoint == entry(7)
    assert ghost.look_up(digests(base=7), 7, 20) == NOTHING
    assert ghost.look_up(digests(base=8), 8, 20) == NOTHING


def test_namespaces_and_epochs_are_apart() -> None:
    ghost = Ghost()
    ghost.remember(digest(7), entry(7), 0)
    assert ghost.look_up(digests(Namespace(salt="a").digest(0)), 0, 20) == NOTHING
    assert ghost.look_up(digests(Namespace().digest(1)), 0, 20) == NOTHING
    assert ghost.look_up(digests(), 0, 20).checkpoint == entry(7)


def test_other_tokens_are_not_known() -> None:
    ghost = Ghost()
    ghost.remember(digest(7), entry(7), 0)
    other = PROMPT.copy()
    other[3] = 5
    assert ghost.look_up(HASH.running(START, other.tobytes(), 0), 0, 20) == NOTHING


def test_what_is_renewed_is_replaced() -> None:
    ghost = Ghost()
    ghost.remember(digest(7), entry(7), 0)
    ghost.remember(digest(7), entry(7, reason=Gone.EXPIRED), 0)
    assert len(ghost) == 1
    assert ghost.look_up(digests(), 0, 20).checkpoint == entry(7, reason=Gone.EXPIRED)


def test_forget() -> None:
    ghost = Ghost()
    ghost.remember(digest(7), entry(7), 0)
    ghost.forget(digest(7))
    ghost.forget(digest(8))
    assert len(ghost) == 0 and ghost.look_up(digests(), 0, 20) == NOTHING


@pytest.mark.parametrize("live_nodes", [0, 1000])
def test_the_oldest_is_forgotten_beyond_the_bound(live_nodes: int) -> None:
    bound = max(LEAST_ENTRIES, ENTRIES_PER_NODE * live_nodes)
    ghost = Ghost()
    for depth in (7, 12):
        ghost.remember(digest(depth), entry(depth), live_nodes)
    rng = np.random.default_rng(0)
    halves = rng.integers(0, 2**64, size=(2 * bound, 2), dtype=np.uint64).tolist()
    for i, (first, second) in enumerate(halves[: bound - 2]):
        ghost.remember((first, second), entry(1000 + i), live_nodes)
    assert len(ghost) == bound
    assert ghost.look_up(digests(), 0, 20).checkpoint == entry(12)
    ghost.remember(digest(7), entry(7), live_nodes)  # renewed: 12 is now the oldest
    ghost.remember((1, 1), entry(5000), live_nodes)
    assert len(ghost) == bound
    assert ghost.look_up(digests(), 0, 20).checkpoint == entry(7)
    for first, second in halves[bound:]:
        ghost.remember((first, second), entry(1), live_nodes)
    assert len(ghost) == bound and ghost.look_up(digests(), 0, 20) == NOTHING


def test_the_bound_shrinks_with_the_tree() -> None:
    ghost = Ghost()
    for i in range(2 * LEAST_ENTRIES):
        ghost.remember((i, i), entry(i + 1), live_nodes=LEAST_ENTRIES)
    assert len(ghost) == 2 * LEAST_ENTRIES
    ghost.remember((1 << 40, 1), entry(1), live_nodes=0)
    assert len(ghost) == LEAST_ENTRIES


def test_crowded_cells_lose_nothing() -> None:
    """Entries whose digests fall in one cell of the filter, more than it can count."""
    ghost = Ghost()
    for i in range(600):
        ghost.remember((i, i), entry(i + 1), 0)
    for i in range(599):
        ghost.forget((i, i))
    last = np.array([[0, 599, 0], [0, 599, 0]], dtype=np.uint64)
    assert ghost.look_up(last, 599, 700).checkpoint == entry(600)


def test_a_checkpoint_at_the_very_end_is_of_no_use() -> None:
    ghost = Ghost()
    ghost.remember((7, 7), entry(10), 0)
    digests = np.array([[0, 7, 9], [0, 7, 9]], dtype=np.uint64)
    assert ghost.look_up(digests[:, :2], 9, 10).checkpoint is None
    assert ghost.look_up(digests, 9, 10).checkpoint == entry(10)
