"""The ghost: a bounded memory of positions that had a checkpoint, or were a path's end, and went."""

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridcache.pool import grown
from hybridcache.prefix_hash import Digest

LEAST_ENTRIES = 4096
ENTRIES_PER_NODE = 8
CELLS_PER_ENTRY = 64
MOST_COUNTED = 255


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


class Remembered(NamedTuple):
    """The deepest remembered positions of a prompt."""

    checkpoint: GhostEntry | None
    """In (hit, matched]: a checkpoint that went while its path stayed."""
    beyond: GhostEntry | None
    """In (matched, len(prompt)]: a path that went."""


NOTHING = Remembered(None, None)


class Ghost:
    """Entries by 128-bit prefix hash. The oldest is forgotten first.

    At most ``ENTRIES_PER_NODE`` entries for a live node and never fewer than ``LEAST_ENTRIES``
    are kept. A hash collision can only mislabel a miss.

    A prompt asks for every position beyond its hit at once, nearly always in vain. The depths that have
    entries, and a counting Bloom filter with two cells an entry (Fan et al., "Summary Cache", SIGCOMM
    1998), answer that in bulk, at a cost that follows the prompt and not the number of entries.
    """

    __slots__ = ("_entries", "_cells", "_shift", "_at_depth")

    def __init__(self) -> None:
        self._entries: dict[Digest, GhostEntry] = {}
        """In the order of their making: the first is the oldest."""
        self._at_depth = np.zeros(4096, dtype=np.int32)
        """Entries of each depth."""
        self._size_filter(LEAST_ENTRIES)

    def __len__(self) -> int:
        return len(self._entries)

    def remember(self, digest: Digest, entry: GhostEntry, live_nodes: int) -> None:
        """Add a position, or renew it; forget the oldest beyond the bound for ``live_nodes``."""
        self.forget(digest)
        bound = max(LEAST_ENTRIES, ENTRIES_PER_NODE * live_nodes)
        while len(self._entries) >= bound:
            self.forget(next(iter(self._entries)))
        self._entries[digest] = entry
        if entry.depth >= len(self._at_depth):
            self._at_depth = grown(self._at_depth, entry.depth + 1)
        self._at_depth[entry.depth] += 1
        if len(self._entries) * CELLS_PER_ENTRY > len(self._cells):
            self._size_filter(2 * len(self._entries))
        else:
            self._count(digest, 1)

    def forget(self, digest: Digest) -> None:
        """Remove the entry of ``digest``, when there is one."""
        entry = self._entries.pop(digest, None)
        if entry is not None:
            self._at_depth[entry.depth] -= 1
            self._count(digest, -1)

    def look_up(self, digests: NDArray[np.uint64], base: int, matched: int) -> Remembered:
        """The deepest remembered positions of a prompt beyond ``base``, its hit. Modifies nothing.

        ``digests`` [2, n + 1] holds the hashes of the prompt's prefixes of base, base + 1, ...
        base + n tokens.
        """
        cells = self._cells
        found = self._at_depth[base : base + digests.shape[1]].nonzero()[0]
        found = found[cells.take((digests[0, found] >> self._shift).view(np.int64)).nonzero()[0]]
        found = found[cells.take((digests[1, found] >> self._shift).view(np.int64)).nonzero()[0]]
        checkpoint = beyond = None
        # A checkpoint at the prompt's very end would be of no use to it.
        last = digests.shape[1] - 1
        for i in found[::-1].tolist():
            entry = self._entries.get((int(digests[0, i]), int(digests[1, i])))
            if entry is None or entry.depth != base + i or i == 0:
                continue
            if entry.depth > matched:
                beyond = beyond or entry
            elif entry.checkpoint and i < last:
                checkpoint = entry
                break
        return Remembered(checkpoint, beyond)

    def _count(self, digest: Digest, step: int) -> None:
        for half in digest:
            cell = half >> int(self._shift)
            # A full cell is never lowered: it may only cost a look into the dictionary.
            count = int(self._cells[cell])
            if count < MOST_COUNTED:
                self._cells[cell] = count + step

    def _size_filter(self, num_entries: int) -> None:
        bits = (num_entries * CELLS_PER_ENTRY - 1).bit_length()
        self._cells = np.zeros(1 << bits, dtype=np.uint8)
        self._shift = np.uint64(64 - bits)
        for digest in self._entries:
            self._count(digest, 1)
