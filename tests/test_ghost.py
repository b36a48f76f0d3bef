"""The ghost: bounded, forgets the oldest, answers with the deepest positions."""

from sys import byteorder

import numpy as np
import pytest

from hybridcache.ghost import ENTRIES_PER_NODE, LEAST_ENTRIES, NOTHING, Ghost, GhostEntry, Gone, Remembered
from hybridcache.namespace import Namespace
from hybridcache.prefix_hash import Digest, PrefixHash, extended
from hybridcache.tokens import TokenIds

PROMPT = np.arange(100, 120, dtype=np.uint32)


HERE = Namespace()


def prefix(depth: int, space: Namespace = HERE, epoch: int = 0) -> PrefixHash:
    return extended(PrefixHash(space.seed(epoch)), PROMPT[:depth].tobytes())


def digest(depth: int) -> Digest:
    return prefix(depth).intdigest()


def tail(depth: int, tokens: TokenIds = PROMPT) -> int:
    return int.from_bytes(tokens[max(depth - 2, 0) : depth].tobytes(), byteorder)


def entry(depth: int, *, checkpoint: bool = True, reason: Gone = Gone.EVICTED, hits: int = 0) -> GhostEntry:
    return GhostEntry(depth, hits, reason, checkpoint)


def remember(ghost: Ghost, what: GhostEntry, live_nodes: int = 0) -> None:
    ghost.remember(digest(what.depth), tail(what.depth), what, live_nodes)


def look(
    ghost: Ghost,
    matched: int = 20,
    base: int = 0,
    *,
    prompt: TokenIds = PROMPT,
    start: PrefixHash | None = None,
) -> Remembered:
    raw = prompt.tobytes()
    return ghost.look_up(ghost.may_know(raw, base), start or prefix(base), raw, base, matched)


def test_nothing_is_known_at_first() -> None:
    assert Ghost().may_know(PROMPT.tobytes(), 0) == []
    assert look(Ghost()) == NOTHING


def test_the_deepest_checkpoint_up_to_matched_and_the_deepest_beyond() -> None:
    ghost = Ghost()
    for depth in (3, 7, 12, 18):
        remember(ghost, entry(depth, hits=depth))
    for depth in (9, 15, 19):
        remember(ghost, entry(depth, checkpoint=False, reason=Gone.EXPIRED))
    found = look(ghost, matched=13)
    assert found.checkpoint == entry(12, hits=12)
    assert found.beyond == entry(19, checkpoint=False, reason=Gone.EXPIRED)
    assert look(ghost, matched=11).checkpoint == entry(7, hits=7), "a path's end without a checkpoint is none"
    assert look(ghost, matched=19).beyond is None
    assert look(ghost, matched=2).checkpoint is None


def test_only_what_lies_beyond_the_hit() -> None:
    ghost = Ghost()
    remember(ghost, entry(7))
    assert look(ghost, base=6).checkpoint == entry(7)
    assert look(ghost, base=7) == NOTHING
    assert look(ghost, base=8) == NOTHING


def test_namespaces_and_epochs_are_apart() -> None:
    ghost = Ghost()
    remember(ghost, entry(7))
    assert look(ghost, start=prefix(0, Namespace(salt="a"))) == NOTHING
    assert look(ghost, start=prefix(0, epoch=1)) == NOTHING
    assert look(ghost).checkpoint == entry(7)


@pytest.mark.parametrize("at", [0, 3, 6])
def test_other_tokens_are_not_known(at: int) -> None:
    ghost = Ghost()
    remember(ghost, entry(7))
    other = PROMPT.copy()
    other[at] = 5
    assert look(ghost, prompt=other) == NOTHING
    other[at] = PROMPT[at]
    assert look(ghost, prompt=other).checkpoint == entry(7)


def test_a_prompt_is_hashed_only_where_depth_and_tail_agree() -> None:
    ghost = Ghost()
    rng = np.random.default_rng(0)
    for i in range(3000):
        depth = int(rng.integers(2, 4000))
        text = rng.integers(0, 2**32, depth, dtype=np.uint32)
        ghost.remember(int(rng.integers(2**63)), tail(depth, text), entry(depth), i)
    prompt = rng.integers(0, 2**32, 5000, dtype=np.uint32)
    ghost.remember(1, tail(2500, prompt), entry(2500), 0)
    positions = ghost.may_know(prompt.tobytes(), 0)
    assert 2500 in positions and len(positions) < 3000 / 20


def test_the_first_token_alone_is_not_kept() -> None:
    ghost = Ghost()
    remember(ghost, entry(1))
    assert len(ghost) == 0 and look(ghost) == NOTHING
    remember(ghost, entry(2))
    assert look(ghost).checkpoint == entry(2)


def test_what_is_renewed_is_replaced() -> None:
    ghost = Ghost()
    remember(ghost, entry(7))
    remember(ghost, entry(7, reason=Gone.EXPIRED))
    assert len(ghost) == 1
    assert look(ghost).checkpoint == entry(7, reason=Gone.EXPIRED)


def test_forget() -> None:
    ghost = Ghost()
    remember(ghost, entry(7))
    ghost.forget(digest(7))
    ghost.forget(digest(8))
    assert len(ghost) == 0 and ghost.may_know(PROMPT.tobytes(), 0) == []


@pytest.mark.parametrize("live_nodes", [0, 1000])
def test_the_oldest_is_forgotten_beyond_the_bound(live_nodes: int) -> None:
    bound = max(LEAST_ENTRIES, ENTRIES_PER_NODE * live_nodes)
    ghost = Ghost()
    for depth in (7, 12):
        remember(ghost, entry(depth), live_nodes)
    others = np.random.default_rng(0).integers(0, 2**63, size=2 * bound).tolist()
    for i, other in enumerate(others[: bound - 2]):
        ghost.remember(other, other, entry(1000 + i), live_nodes)
    assert len(ghost) == bound
    assert look(ghost).checkpoint == entry(12)
    remember(ghost, entry(7), live_nodes)  # renewed: 12 is now the oldest
    ghost.remember(1, 1, entry(5000), live_nodes)
    assert len(ghost) == bound
    assert look(ghost).checkpoint == entry(7)
    for other in others[bound:]:
        ghost.remember(other, other, entry(2), live_nodes)
    assert len(ghost) == bound and look(ghost) == NOTHING


def test_the_bound_shrinks_with_the_tree() -> None:
    ghost = Ghost()
    for i in range(2 * LEAST_ENTRIES):
        ghost.remember(i, i, entry(i + 2), live_nodes=LEAST_ENTRIES)
    assert len(ghost) == 2 * LEAST_ENTRIES
    ghost.remember(1 << 40, 1, entry(2), live_nodes=0)
    assert len(ghost) == LEAST_ENTRIES


def test_crowded_cells_lose_nothing() -> None:
    """Entries with one tail, more than a cell of the filter can count."""
    ghost = Ghost()
    prompt = np.zeros(700, dtype=np.uint32)
    for depth in range(2, 602):
        ghost.remember(PrefixHash(prompt[:depth].tobytes()).intdigest(), 0, entry(depth), 0)
    for depth in range(2, 601):
        ghost.forget(PrefixHash(prompt[:depth].tobytes()).intdigest())
    assert look(ghost, 700, prompt=prompt, start=PrefixHash()).checkpoint == entry(601)


def test_a_checkpoint_at_the_very_end_is_of_no_use() -> None:
    ghost = Ghost()
    remember(ghost, entry(10))
    assert look(ghost, 10, prompt=PROMPT[:10]).checkpoint is None
    assert look(ghost, 10, prompt=PROMPT[:11]).checkpoint == entry(10)
