"""What a cache without limits would keep of a trace, in a 32nd of the memory: chunks in place of tokens."""

from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.namespace import Namespace
from hybridcache.node import NO_IDS, Node
from hybridcache.tokens import TOKEN_BYTES, TokenIds
from hybridcache.tree import RadixTree

CHUNK_TOKENS = 16

_NOBODY: frozenset[int] = frozenset()
_NOW = 0.0  # seconds; nothing expires
_SLOT = 0  # of every checkpoint: only whether there is one matters
_MIX = np.uint64(0xFF51AFD7ED558CCD)  # odd, from MurmurHash3's finalizer
_FACTORS = np.frombuffer(blake2b(b"chunk", digest_size=4 * CHUNK_TOKENS).digest(), np.uint64) | np.uint64(1)


class Seen(NamedTuple):
    """A request, as the tree took it in."""

    hit: int
    """Tokens that an endless cache would hit, but for less than a chunk."""
    end: Node
    """Where its path ends; the node keeps this end when it is split."""


class EndlessTree:
    """A radix tree over 32-bit hashes of chunks: a few bytes a chunk, and a hit to within a chunk.

    Two different chunks count as alike once in 4 billion comparisons. Checkpoints are those that
    `branch_and_final` would take. Node positions are chunks.
    """

    def __init__(self, recurrent: bool, most: int = 1) -> None:
        """``recurrent``: whether a prefix is reusable only where a checkpoint was kept; ``most``: sessions of
        a node that are told apart, beyond which no others are counted."""
        self._tree = RadixTree(0, recurrent)
        self._root = self._tree.root(Namespace(""))
        self._most = most
        self._sessions: dict[Node, frozenset[int] | set[int]] = {}
        """By node, those that have passed it; a set is the node's own, a frozenset may be several nodes'."""
        self._alone: dict[int, frozenset[int]] = {}
        """Of each session: itself, for the nodes that no other passes, nearly all."""

    @property
    def num_sessions(self) -> int:
        return len(self._alone)

    def add(self, request: TraceRequest) -> Seen:
        """Match and insert: ::

        prompt and output  [0 ....... hit ....... matched ................ end)
                             in the tree, up to a      split here;  appended
                             checkpoint                a checkpoint
        """
        path = chunk_hashes(request.tokens[:-1]).tobytes()  # the last token is never computed
        length, usable = len(path) // TOKEN_BYTES, (request.num_prompt - 1) // CHUNK_TOKENS
        match = self._tree.match(self._root, path, _NOW)
        matched, node = match.matched, match.node
        hit = self._reusable(match.resume, usable) if self._tree.recurrent else min(matched, usable)
        if match.partial is not None:
            node, _ = self._tree.split(match.partial, matched)
            there = self._sessions[match.partial]
            self._sessions[node] = set(there) if isinstance(there, set) else there
        if matched < length:
            if 0 < matched <= usable and match.path_goes_on:
                node.slot = _SLOT
            node = self._tree.append(node, path[matched * TOKEN_BYTES :], NO_IDS)
            self._sessions[node] = _NOBODY
        if node is not self._root:
            node.slot = _SLOT
        self._count(request.session, node)
        return Seen(hit * CHUNK_TOKENS, node)

    def part(self, end: Node, least: int) -> tuple[int, Node | None]:
        """Tokens of the path to ``end`` that at least ``least`` sessions have, and the node below them.

        ``least`` is ``most`` or fewer.
        """
        node, below = end, None
        while node.parent is not None and len(self._sessions[node]) < least:
            node, below = node.parent, node
        return node.stop * CHUNK_TOKENS, below

    def shared(self, least: int) -> tuple[int, int]:
        """Tokens, and checkpoints, that at least ``least`` sessions (``most`` or fewer) have passed."""
        nodes = [node for node, sessions in self._sessions.items() if len(sessions) >= least]
        tokens = sum(node.stop - node.start for node in nodes) * CHUNK_TOKENS
        return tokens, sum(node.slot is not None for node in nodes)

    @staticmethod
    def _reusable(resume: Node, usable: int) -> int:
        """The deepest checkpoint at or above ``resume`` that leaves a token of the prompt to compute."""
        node = resume
        while node.parent is not None and (node.slot is None or node.stop > usable):
            node = node.parent
        return node.stop

    def _count(self, session: int, end: Node) -> None:
        """Count ``session`` on the path to ``end``, once at each node.

        Where it has been, or ``most`` others have, the same is so above.
        """
        alone = self._alone.setdefault(session, frozenset((session,)))
        node = end
        while node.parent is not None:
            there = self._sessions[node]
            if session in there or len(there) >= self._most:
                break
            if isinstance(there, set):
                there.add(session)
            else:
                self._sessions[node] = {*there, session} if there else alone
            node = node.parent


def chunk_hashes(tokens: TokenIds) -> NDArray[np.uint32]:
    """A hash of each whole chunk [n // 16] of ``tokens`` [n]."""
    count = len(tokens) // CHUNK_TOKENS
    pairs = np.ascontiguousarray(tokens[: count * CHUNK_TOKENS]).view(np.uint64)
    mixed: NDArray[np.uint64] = pairs.reshape(count, len(_FACTORS)) @ _FACTORS
    mixed ^= mixed >> np.uint64(29)
    mixed *= _MIX
    return (mixed >> np.uint64(32)).astype(np.uint32)
