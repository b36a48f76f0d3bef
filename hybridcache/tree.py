"""The radix tree over token ids: one root a namespace, no recursion, nothing about bytes or policies."""

from collections.abc import Iterator
from sys import byteorder

import numpy as np

from hybridcache.namespace import Namespace
from hybridcache.node import NO_IDS, Match, Node, Root
from hybridcache.pool import Ids
from hybridcache.prefix_hash import PrefixHash, extended
from hybridcache.tail_filter import TAIL_TOKENS, Tail
from hybridcache.tokens import TOKEN_BYTES, token_at

TAIL_BYTES = TAIL_TOKENS * TOKEN_BYTES
MOST_FLUSHED = 1_024
"""Namespaces whose own flush is remembered. One more, and all are taken to be flushed then: what is cached
stays, and losses of namespaces that have nothing cached may count as new."""


class RadixTree:
    """Paths of tokens with opaque block ids and slots.

    ``block_size`` is in tokens; 0 for a model without attention, whose nodes hold no blocks.
    Methods that free or share ids say which, and leave reference counts to the caller.
    """

    __slots__ = ("block_size", "recurrent", "roots", "_flushes", "_all_flushed", "_flushed")

    def __init__(self, block_size: int, recurrent: bool) -> None:
        self.block_size = block_size
        self.recurrent = recurrent
        """Whether a prefix is reusable only where a checkpoint was kept."""
        self.roots: dict[Namespace, Root] = {}
        self._flushes = 0
        """Flushes so far; a namespace's epoch is the number of the last one that it was part of."""
        self._all_flushed = 0
        """The last flush of all namespaces."""
        self._flushed: dict[Namespace, int] = {}
        """The last flush of single ones since then."""

    def root(self, namespace: Namespace) -> Root:
        """The root of ``namespace`` in its present epoch; made when it is new.

        Raises ValueError for what is no Namespace.
        """
        root = self.known_root(namespace)
        if root is None:
            epoch = self._flushed.get(namespace, self._all_flushed)
            root = Root(namespace, namespace.seed(epoch))
            self.roots[namespace] = root
        return root

    def known_root(self, namespace: Namespace) -> Root | None:
        """The root of ``namespace``, if there is one. Modifies nothing.

        Raises ValueError for what is no Namespace.
        """
        root = self.roots.get(namespace)
        if root is None:
            _check_namespace(namespace)
        return root

    def detach(self, namespace: Namespace | None) -> list[Root]:
        """Raise the epoch of a namespace, or of all: the next lookup finds an empty tree. The old roots.

        Also of a namespace that has no root now: what is remembered of it is of an epoch that is over.
        Raises ValueError for what is no Namespace.
        """
        if namespace is not None:
            _check_namespace(namespace)
        self._flushes += 1
        if namespace is None or len(self._flushed) >= MOST_FLUSHED:
            self._all_flushed = self._flushes
            self._flushed.clear()
        if namespace is None:
            detached = list(self.roots.values())
            self.roots.clear()
        else:
            self._flushed[namespace] = self._flushes
            root = self.roots.pop(namespace, None)
            detached = [] if root is None else [root]
        for root in detached:
            root.attached = False
        return detached

    def forget_if_empty(self, root: Root) -> None:
        """Drop a root that holds nothing and that no lease started from."""
        if root.attached and not root.children and not root.leases:
            del self.roots[root.namespace]

    def match(self, root: Root, prompt: bytes, now: float) -> Match:
        """Follow ``prompt`` (token ids as native uint32) down from ``root``. Modifies nothing.

        This is the one function that decides how much of a prompt is usable (DESIGN invariant 1):
        the deepest position with all KV and a checkpoint, at most the prompt's length - 1. What has
        expired at ``now`` is absent.
        """
        node: Node = root
        partial: Node | None = None
        resume: Node = root
        pos = 0
        size = len(prompt)
        end = size // TOKEN_BYTES
        while pos < end:
            child = node.children.get(token_at(prompt, pos))
            if child is None or child.expires_at <= now:
                break
            edge = child.edge
            begin = pos * TOKEN_BYTES
            if begin + len(edge) <= size and prompt.startswith(edge, begin):
                node = child
                pos = child.stop
                if child.slot is not None and pos < end and child.slot_expires_at > now:
                    resume = child
            else:
                pos += common_prefix(edge, prompt, begin)
                partial = child
                break
        if self.recurrent:
            return Match(node, partial, pos, resume, resume.stop)
        return Match(node, partial, pos, node, min(pos, end - 1))

    def split(self, node: Node, at: int) -> tuple[Node, int | None]:
        """Cut the edge of ``node`` at token ``at``; the upper half is a new node, ``node`` keeps the rest.

        ::

            before  parent -> node [start, stop)
            after   parent -> upper [start, at) -> node [at, stop)

        The checkpoint, pins and children stay with ``node``, at their own depth; the upper half
        gets a copy of the KV's expiry. Returns the upper half and the block that both halves now
        hold (None when ``at`` is a block boundary): the caller retains it once.
        """
        assert node.start < at < node.stop and node.parent is not None, (node, at)
        parent = node.parent
        cut = (at - node.start) * TOKEN_BYTES
        blocks, shared = NO_IDS, None
        if self.block_size:
            first = node.start // self.block_size
            blocks = node.blocks[: -(-at // self.block_size) - first].copy()
            node.blocks = node.blocks[at // self.block_size - first :].copy()
            if at % self.block_size:
                shared = int(node.blocks[0])
        upper = Node(parent, node.start, node.edge[:cut], blocks)
        upper.expires_at = node.expires_at
        parent.children[upper.first_token] = upper
        node.edge = node.edge[cut:]
        node.start = at
        node.parent = upper
        upper.children[node.first_token] = node
        return upper, shared

    def absorb(self, node: Node) -> tuple[Node, Ids]:
        """Join ``node`` with its only child; the child keeps its identity and covers both edges.

        ::

            before  parent -> node [start, mid) -> child [mid, stop)
            after   parent -> child [start, stop)

        Returns the child and the block ids it no longer needs: where both cover one block index,
        the deeper node's block wins. The caller releases them and forgets ``node``.
        """
        (child,) = node.children.values()
        assert node.slot is None and not node.pins and node.parent is not None, node
        straddles = bool(self.block_size) and node.stop % self.block_size != 0
        kept = node.blocks[:-1] if straddles else node.blocks
        dropped = node.blocks[-1:] if straddles else NO_IDS
        child.blocks = np.concatenate((kept, child.blocks))
        child.edge = node.edge + child.edge
        child.start = node.start
        child.parent = node.parent
        node.parent.children[child.first_token] = child
        return child, dropped

    def append(self, parent: Node, edge: bytes, blocks: Ids) -> Node:
        """A new leaf below ``parent`` with the tokens ``edge`` and the blocks that hold them."""
        child = Node(parent, parent.stop, edge, blocks)
        assert child.first_token not in parent.children, (parent, child)
        parent.children[child.first_token] = child
        return child

    def extend(self, leaf: Node, edge: bytes, blocks: Ids) -> Ids:
        """Lengthen ``leaf`` by the tokens ``edge``; ``blocks`` begin with the block ``leaf.stop`` lies in.

        Returns the block ids that ``leaf`` no longer needs, at most one: ``blocks[0]`` takes the
        place of a last block that was full in part.
        """
        assert not leaf.children and leaf.slot is None, leaf
        straddles = bool(self.block_size) and leaf.stop % self.block_size != 0
        dropped = leaf.blocks[-1:] if straddles else NO_IDS
        leaf.blocks = np.concatenate((leaf.blocks[:-1] if straddles else leaf.blocks, blocks))
        if leaf.hash is not None:
            leaf.hash.update(edge)
        leaf.edge += edge
        leaf.stop += len(edge) // TOKEN_BYTES
        return dropped

    def remove(self, leaf: Node) -> Ids:
        """Take ``leaf`` out of the tree; the block ids it held."""
        assert not leaf.children and leaf.parent is not None and leaf.slot is None, leaf
        del leaf.parent.children[leaf.first_token]
        return leaf.blocks

    def prefix_hash(self, node: Node) -> PrefixHash:
        """The hash of the tokens [0, node.stop) in this namespace and epoch; nodes keep it once asked for."""
        missing = []
        above = node
        while above.hash is None:
            missing.append(above)
            assert above.parent is not None
            above = above.parent
        prefix = above.hash
        for below in reversed(missing):
            prefix = below.hash = extended(prefix, below.edge)
        return prefix

    def tail(self, node: Node) -> Tail:
        """The last two tokens before ``node.stop``; 0 when there are not so many. Modifies nothing."""
        raw, above = node.edge[-TAIL_BYTES:], node.parent
        while len(raw) < TAIL_BYTES and above is not None:
            raw = (above.edge + raw)[-TAIL_BYTES:]
            above = above.parent
        return int.from_bytes(raw, byteorder) if len(raw) == TAIL_BYTES else 0


def subtree(top: Node) -> Iterator[Node]:
    """``top`` and everything below it, parents before children."""
    stack = [top]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())


def common_prefix(edge: bytes, prompt: bytes, begin: int) -> int:
    """Tokens that ``edge`` shares with ``prompt`` from byte ``begin`` on."""
    n = min(len(edge), len(prompt) - begin) // TOKEN_BYTES
    here = np.frombuffer(prompt, dtype=np.uint32, count=n, offset=begin)
    differ = np.frombuffer(edge, dtype=np.uint32, count=n) != here
    first = int(differ.argmax()) if n else 0
    return first if n and differ[first] else n


def _check_namespace(namespace: object) -> None:
    if not isinstance(namespace, Namespace) or not all(isinstance(field, str) for field in namespace):
        raise ValueError(f"namespace={namespace!r}: give a Namespace of texts")
