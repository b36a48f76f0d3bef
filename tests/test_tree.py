"""The radix tree alone: tokens and opaque ids."""

import sys
from sys import byteorder

import numpy as np
import pytest

from hybridcache.namespace import Namespace
from hybridcache.node import Node
from hybridcache.prefix_hash import extended
from hybridcache.tree import RadixTree, common_prefix, subtree

BLOCK = 4
LARGEST = 2**32 - 1


def raw(*tokens: int) -> bytes:
    return np.array(tokens, dtype=np.uint32).tobytes()


def blocks(first: int, stop: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(first, stop, dtype=np.int64)


@pytest.fixture
def tree() -> RadixTree:
    return RadixTree(BLOCK, recurrent=True)


def leaf(tree: RadixTree, num_tokens: int) -> Node:
    """A path of one node with the tokens 0, 1, 2, ... and the blocks 100, 101, ..."""
    root = tree.root(Namespace())
    count = -(-num_tokens // BLOCK)
    return tree.append(root, raw(*range(num_tokens)), blocks(100, 100 + count))


def test_match_follows_whole_and_partial_edges(tree: RadixTree) -> None:
    node = leaf(tree, 6)
    root = tree.root(Namespace())
    whole = tree.match(root, raw(*range(6), 9), now=0.0)
    assert (whole.node, whole.partial, whole.matched) == (node, None, 6)
    part = tree.match(root, raw(0, 1, 2, 9, 9, 9, 9), now=0.0)
    assert (part.node, part.partial, part.matched) == (root, node, 3)
    ends_inside = tree.match(root, raw(0, 1), now=0.0)
    assert (ends_inside.partial, ends_inside.matched) == (node, 2)
    none = tree.match(root, raw(5, 1), now=0.0)
    assert (none.node, none.partial, none.matched, none.hit) == (root, None, 0, 0)


def test_a_hit_needs_a_checkpoint_that_lives(tree: RadixTree) -> None:
    node = leaf(tree, 6)
    root = tree.root(Namespace())
    prompt = raw(*range(6), 9)
    assert tree.match(root, prompt, 0.0).hit == 0
    node.slot = 3
    assert tree.match(root, prompt, 0.0).hit == 6
    assert tree.match(root, raw(*range(6)), 0.0).hit == 0, "the last token is computed"
    node.slot_expires_at = 5.0
    assert tree.match(root, prompt, 4.9).hit == 6
    assert tree.match(root, prompt, 5.0).hit == 0
    node.expires_at = 5.0
    assert tree.match(root, prompt, 5.0).matched == 0


def test_without_recurrent_layers_every_position_is_a_hit() -> None:
    tree = RadixTree(BLOCK, recurrent=False)
    leaf(tree, 6)
    root = tree.root(Namespace())
    assert tree.match(root, raw(0, 1, 2, 9), 0.0).hit == 3
    assert tree.match(root, raw(*range(6)), 0.0).hit == 5


@pytest.mark.parametrize(
    ("at", "upper_blocks", "lower_blocks", "shared"),
    [
        (1, [100], [100, 101, 102], 100),
        (3, [100], [100, 101, 102], 100),
        (4, [100], [101, 102], None),
        (5, [100, 101], [101, 102], 101),
        (8, [100, 101], [102], None),
        (9, [100, 101, 102], [102], 102),
    ],
)
def test_split(
    tree: RadixTree, at: int, upper_blocks: list[int], lower_blocks: list[int], shared: int | None
) -> None:
    node = leaf(tree, 10)
    root = tree.root(Namespace())
    node.slot, node.pins, node.expires_at = 7, 2, 30.0
    below = tree.append(node, raw(50, 51), blocks(102, 103))
    upper, twice = tree.split(node, at)
    assert twice == shared
    assert upper.blocks.tolist() == upper_blocks and node.blocks.tolist() == lower_blocks
    assert (upper.start, upper.stop, node.start, node.stop) == (0, at, at, 10)
    assert (upper.parent, node.parent, below.parent) == (root, upper, node)
    assert list(root.children.values()) == [upper] and upper.children == {at: node}
    assert (node.slot, node.pins, upper.slot, upper.pins) == (7, 2, None, 0), "they stay at their depth"
    assert upper.expires_at == node.expires_at == 30.0
    match = tree.match(root, raw(*range(10), 50, 51, 9), 0.0)
    assert (match.node, match.matched, match.hit) == (below, 12, 10)


@pytest.mark.parametrize("at", [1, 3, 4, 5, 8, 9])
def test_absorb_undoes_split(tree: RadixTree, at: int) -> None:
    node = leaf(tree, 10)
    upper, shared = tree.split(node, at)
    joined, dropped = tree.absorb(upper)
    assert joined is node and node.blocks.tolist() == [100, 101, 102]
    assert dropped.tolist() == ([] if shared is None else [shared])
    assert node.edge == raw(*range(10)) and (node.start, node.stop) == (0, 10)
    assert node.parent is tree.root(Namespace()) and list(node.parent.children.values()) == [node]


def test_absorb_keeps_the_deeper_nodes_block(tree: RadixTree) -> None:
    upper = leaf(tree, 6)
    lower = tree.append(upper, raw(60, 61, 62), blocks(200, 202))
    _, dropped = tree.absorb(upper)
    assert lower.blocks.tolist() == [100, 200, 201] and dropped.tolist() == [101]


def test_a_block_split_twice_is_held_three_times(tree: RadixTree) -> None:
    node = leaf(tree, 4)
    middle, first = tree.split(node, 3)
    top, second = tree.split(middle, 1)
    assert first == second == 100
    assert [n.blocks.tolist() for n in (top, middle, node)] == [[100]] * 3
    assert [(n.start, n.stop) for n in (top, middle, node)] == [(0, 1), (1, 3), (3, 4)]


def test_extend(tree: RadixTree) -> None:
    node = leaf(tree, 6)
    before = tree.prefix_hash(node).copy()
    dropped = tree.extend(node, raw(6, 7, 8), blocks(300, 302))
    assert dropped.tolist() == [101] and node.blocks.tolist() == [100, 300, 301]
    assert node.stop == 9 and node.edge == raw(*range(9))
    assert tree.prefix_hash(node).intdigest() == extended(before, raw(6, 7, 8)).intdigest()
    assert tree.extend(node, raw(9, 10, 11), blocks(301, 302)).tolist() == [301]
    assert tree.extend(node, raw(12), blocks(400, 401)).tolist() == [], "a block boundary needs no new copy"
    assert node.blocks.tolist() == [100, 300, 301, 400]


def test_remove_returns_all_blocks(tree: RadixTree) -> None:
    node = leaf(tree, 6)
    assert tree.remove(node).tolist() == [100, 101]
    assert not tree.root(Namespace()).children


def test_removing_what_has_children_or_a_checkpoint_is_our_own_mistake(tree: RadixTree) -> None:
    node = leaf(tree, 6)
    lower, _ = node, tree.split(node, 3)
    assert lower.parent is not None
    with pytest.raises(AssertionError):
        tree.remove(lower.parent)
    lower.slot = 1
    with pytest.raises(AssertionError):
        tree.remove(lower)


def test_extreme_token_ids(tree: RadixTree) -> None:
    root = tree.root(Namespace())
    zero = tree.append(root, raw(0, 0, LARGEST), blocks(0, 1))
    most = tree.append(root, raw(LARGEST, 0, LARGEST), blocks(1, 2))
    assert (zero.first_token, most.first_token) == (0, LARGEST)
    assert tree.match(root, raw(0, 0, LARGEST, 0), 0.0).node is zero
    assert tree.match(root, raw(LARGEST, 0, LARGEST), 0.0).node is most
    assert tree.match(root, raw(LARGEST, 0, LARGEST - 1), 0.0).matched == 2
    upper, _ = tree.split(most, 1)
    assert upper.children == {0: most}


def test_a_path_of_twenty_thousand_nodes(tree: RadixTree) -> None:
    depth = 20_000
    assert depth > sys.getrecursionlimit()
    root = tree.root(Namespace())
    node: Node = root
    for position in range(depth):
        node = tree.append(node, raw(position), blocks(position, position + 1))
    node.slot = 1
    match = tree.match(root, raw(*range(depth), 5), 0.0)
    assert (match.node, match.hit) == (node, depth)
    assert sum(1 for _ in subtree(root)) == depth + 1
    top = root.children[0]
    tree.prefix_hash(node)
    assert top.hash is not None
    repr(node)
    for _ in range(2000):
        (below,) = top.children.values()
        tree.absorb(top)
        top = below
    assert (top.start, top.stop) == (0, 2001) and tree.match(root, raw(*range(depth), 5), 0.0).hit == depth


def test_subtree_yields_parents_first(tree: RadixTree) -> None:
    node = leaf(tree, 8)
    tree.append(node, raw(70), blocks(9, 10))
    tree.split(node, 2)
    seen: list[Node] = []
    for n in subtree(tree.root(Namespace())):
        assert n.parent is None or n.parent in seen
        seen.append(n)
    assert len(seen) == 4


def test_namespaces_and_epochs_do_not_meet(tree: RadixTree) -> None:
    leaf(tree, 6)
    prompt = raw(*range(6))
    other = tree.root(Namespace(salt="a"))
    assert tree.match(other, prompt, 0.0).matched == 0
    (old,) = tree.detach(Namespace())
    assert not old.attached
    new = tree.root(Namespace())
    assert new is not old and tree.match(new, prompt, 0.0).matched == 0
    assert tree.prefix_hash(new).intdigest() != tree.prefix_hash(old).intdigest()
    assert not tree.detach(Namespace(salt="never seen"))


def test_an_epoch_is_that_of_its_own_flushes(tree: RadixTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a namespace without a root too, since its past is remembered; others keep theirs."""
    one, other = Namespace(salt="a"), Namespace(salt="b")

    def epoch(namespace: Namespace) -> int:
        root = tree.root(namespace)
        tree.forget_if_empty(root)
        assert root.hash is not None
        return root.hash.intdigest()

    first, beside = epoch(one), epoch(other)
    tree.detach(one)
    second = epoch(one)
    assert second != first and epoch(other) == beside
    tree.detach(None)
    assert epoch(one) not in (first, second) and epoch(other) != beside
    # Not all flushes of single ones can be remembered: an epoch too many labels a loss wrongly, at most.
    monkeypatch.setattr("hybridcache.tree.MOST_FLUSHED", 2)
    seen = {epoch(one)}
    for salt in ("a", "b", "c", "d", "a"):
        tree.detach(Namespace(salt=salt))
        assert epoch(Namespace(salt=salt)) not in seen
        seen.add(epoch(Namespace(salt=salt)))


def test_an_empty_root_is_forgotten(tree: RadixTree) -> None:
    root = tree.root(Namespace())
    root.leases = 1
    tree.forget_if_empty(root)
    assert tree.roots
    root.leases = 0
    tree.forget_if_empty(root)
    assert not tree.roots
    leaf(tree, 3)
    tree.forget_if_empty(tree.root(Namespace()))
    assert tree.roots


def test_digests_follow_tokens_not_nodes(tree: RadixTree) -> None:
    node = leaf(tree, 8)
    whole = tree.prefix_hash(node).intdigest()
    upper, _ = tree.split(node, 5)
    assert tree.prefix_hash(node).intdigest() == whole
    root = tree.prefix_hash(tree.root(Namespace()))
    assert tree.prefix_hash(upper).intdigest() == extended(root, raw(*range(5))).intdigest()


def test_tails_reach_over_nodes(tree: RadixTree) -> None:
    node = leaf(tree, 8)
    upper, _ = tree.split(node, 1)
    middle, _ = tree.split(node, 2)
    assert tree.tail(node) == int.from_bytes(raw(6, 7), byteorder)
    assert tree.tail(middle) == int.from_bytes(raw(0, 1), byteorder)
    assert tree.tail(upper) == 0, "one token is no tail"


@pytest.mark.parametrize(
    ("edge", "prompt", "begin", "n"),
    [
        (raw(1, 2, 3), raw(1, 2, 3), 0, 3),
        (raw(1, 2, 3), raw(9, 1, 2), 4, 2),
        (raw(1, 2), raw(1, 2, 3), 0, 2),
        (raw(1), raw(256), 0, 0),
        (raw(1), raw(1), 4, 0),
        (b"", raw(1), 0, 0),
    ],
)
def test_common_prefix(edge: bytes, prompt: bytes, begin: int, n: int) -> None:
    assert common_prefix(edge, prompt, begin) == n
