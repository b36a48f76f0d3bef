"""The ghost: a bounded memory of positions that had a checkpoint, or were a path's end, and went."""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from hybridcache.gone_table import GoneTable
from hybridcache.policies.columns import Facts
from hybridcache.pool import grown
from hybridcache.prefix_hash import Digest, PrefixHash
from hybridcache.tail_filter import TAIL_TOKENS, Tail, TailFilter
from hybridcache.tokens import TOKEN_BYTES

LEAST_ENTRIES = 4096
ENTRIES_PER_NODE = 8


class Gone(IntEnum):
    """Why a position is no longer in the tree."""

    EVICTED = 0
    EXPIRED = 1


class GhostEntry(NamedTuple):
    """A position that went; no tokens."""

    depth: int
    """Tokens from the start of the prompt."""
    hits: int
    """Requests that resumed there while it was in the tree."""
    reason: Gone
    checkpoint: bool
    """Whether it had a checkpoint."""


class Passed(NamedTuple):
    """A remembered position, with facts, that a prompt passes."""

    position: int
    """Tokens from the start of the prompt."""
    digest: Digest


class Remembered(NamedTuple):
    """The deepest remembered positions of a prompt, and all that have facts."""

    checkpoint: GhostEntry | None
    """In (hit, matched]: a checkpoint that went while its path stayed."""
    beyond: GhostEntry | None
    """In (matched, len(prompt)]: a path that went."""
    passed: tuple[Passed, ...] = ()
    """Positions in (hit, len(prompt)) with facts, ascending."""

    @property
    def resumable(self) -> GhostEntry | None:
        """The deepest that a request would resume at, were it still there."""
        for entry in (self.beyond, self.checkpoint):
            if entry is not None and entry.checkpoint:
                return entry
        return None


NOTHING = Remembered(None, None)
NO_ROW = -1
NO_ENTRY = (GhostEntry(-1, 0, Gone.EVICTED, False), 0, NO_ROW)


class Ghost:
    """Entries by 128-bit prefix hash. The oldest is forgotten first.

    At most ``ENTRIES_PER_NODE`` entries for a live node and never fewer than ``LEAST_ENTRIES``
    are kept. A hash collision can only mislabel a miss.

    A prompt asks for every position beyond its hit at once, nearly always in vain. So it is hashed only where
    there are entries of that depth that end in the same two tokens; numpy finds these positions in bulk, at a
    cost that follows the prompt and not the number of entries.
    """

    __slots__ = ("gone", "_entries", "_at_depth", "_known", "_tails")

    def __init__(self) -> None:
        self.gone = GoneTable()
        """The facts of those remembered with facts."""
        self._entries: dict[Digest, tuple[GhostEntry, Tail, int]] = {}
        """In the order of their making: the first is the oldest."""
        self._at_depth = np.zeros(4096, dtype=np.int32)
        """Entries of each depth."""
        self._known = np.zeros(4096, dtype=np.bool_)
        """Whether a depth has any."""
        self._tails = TailFilter(LEAST_ENTRIES)

    def __len__(self) -> int:
        return len(self._entries)

    def remember(
        self, digest: Digest, tail: Tail, entry: GhostEntry, live_nodes: int, facts: Facts | None = None
    ) -> None:
        """Add a position, or renew it; forget the oldest beyond the bound for ``live_nodes``.

        ``tail`` is made of the two tokens before it. A position before the second token is not kept.
        """
        depth = entry.depth
        if depth < TAIL_TOKENS:
            return
        self.forget(digest)
        bound = max(LEAST_ENTRIES, ENTRIES_PER_NODE * live_nodes)
        while len(self._entries) >= bound:
            self.forget(next(iter(self._entries)))
        self._entries[digest] = entry, tail, NO_ROW if facts is None else self.gone.add(facts)
        if depth >= len(self._known):
            self._at_depth = grown(self._at_depth, depth + 1)
            self._known = grown(self._known, depth + 1)
        self._at_depth[depth] += 1
        self._known[depth] = True
        if len(self._entries) > self._tails.num_entries:
            self._tails = TailFilter(2 * len(self._entries), (tail for _, tail, _ in self._entries.values()))
        else:
            self._tails.add(tail)

    def forget(self, digest: Digest) -> None:
        """Remove the entry of ``digest``, when there is one."""
        known = self._entries.pop(digest, None)
        if known is not None:
            entry, tail, row = known
            if row != NO_ROW:
                self.gone.remove(row)
            left = int(self._at_depth[entry.depth]) - 1
            self._at_depth[entry.depth] = left
            self._known[entry.depth] = left > 0
            self._tails.remove(tail)

    def may_know(self, prompt: bytes, base: int) -> list[int]:
        """Positions beyond ``base`` (tokens) that are worth a ``look_up``, ascending. Modifies nothing.

        ``prompt`` holds the token ids as native uint32.
        """
        first = max(base + 1, TAIL_TOKENS)
        beyond = self._known[first : len(prompt) // TOKEN_BYTES + 1].nonzero()[0]
        if not len(beyond):
            return []
        return [first + position for position in self._tails.may_hold(prompt, first, beyond).tolist()]

    def look_up(
        self, positions: Sequence[int], prefix: PrefixHash, prompt: bytes, base: int, matched: int
    ) -> Remembered:
        """The deepest remembered ones of ``positions``, which are those of ``may_know``. Modifies nothing.

        ``prefix`` is the hash of the prompt's first ``base`` tokens, its hit.
        """
        checkpoint = beyond = None
        passed: list[Passed] = []
        running, at = prefix.copy(), base
        for position in positions:
            running.update(prompt[at * TOKEN_BYTES : position * TOKEN_BYTES])
            digest, at = running.intdigest(), position
            entry, _, row = self._entries.get(digest, NO_ENTRY)
            if entry.depth != position:
                continue
            # A checkpoint at the prompt's very end would be of no use to it.
            before_end = position * TOKEN_BYTES < len(prompt)
            if row != NO_ROW and before_end:
                passed.append(Passed(position, digest))
            if position > matched:
                beyond = entry
            elif entry.checkpoint and before_end:
                checkpoint = entry
        return Remembered(checkpoint, beyond, tuple(passed))

    def recount_facts(self) -> int:
        """Entries that have facts, counted one by one."""
        return sum(row != NO_ROW for _, _, row in self._entries.values())

    def row(self, digest: Digest) -> int | None:
        """The row of a remembered position's facts in ``gone``; None when there is none (any longer)."""
        row = self._entries.get(digest, NO_ENTRY)[2]
        return None if row == NO_ROW else row
