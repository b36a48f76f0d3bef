"""The ghost: a bounded memory of positions that had a checkpoint, or were a path's end, and went."""

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridcache.pool import grown
from hybridcache.prefix_hash import Digest

LEAST_ENTRIES = 4096
ENTRIES_PER_NODE = 8


class Gone(IntEnum):
    """Why a position is no longer in the tree."""

    EVICTED = 0
    EXPIRED = 1


class Remembered(NamedTuple):
    """The deepest remembered positions of a prompt, in tokens; -1 where there is none."""

    checkpoint: int
    """In (hit, matched]: a checkpoint that went while its path stayed."""
    checkpoint_reason: Gone
    beyond: int
    """In (matched, len(prompt)]: a path that went."""
    beyond_reason: Gone


class Ghost:
    """Entries of depth, 128-bit prefix hash, hits and reason; no tokens. The oldest is forgotten first.

    At most ``ENTRIES_PER_NODE`` entries for a live node and never fewer than ``LEAST_ENTRIES``
    are kept. A hash collision can only mislabel a miss.
    """

    __slots__ = ("_depth", "_digest", "_hits", "_reason", "_checkpoint", "_where", "_free")

    def __init__(self) -> None:
        self._depth = np.zeros(LEAST_ENTRIES, dtype=np.int64)
        """Tokens; 0 marks a place without an entry."""
        self._digest = np.zeros((2, LEAST_ENTRIES), dtype=np.uint64)
        self._hits = np.zeros(LEAST_ENTRIES, dtype=np.int64)
        self._reason = np.zeros(LEAST_ENTRIES, dtype=np.int8)
        self._checkpoint = np.zeros(LEAST_ENTRIES, dtype=np.bool_)
        self._where: dict[Digest, int] = {}
        """Place of each entry, oldest entry first."""
        self._free = list(range(LEAST_ENTRIES - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._where)

    def remember(
        self, digest: Digest, depth: int, hits: int, reason: Gone, checkpoint: bool, live_nodes: int
    ) -> None:
        """Add a position, or renew it; forget the oldest beyond the bound for ``live_nodes``."""
        self.forget(digest)
        bound = max(LEAST_ENTRIES, ENTRIES_PER_NODE * live_nodes)
        while len(self._where) >= bound:
            self.forget(next(iter(self._where)))
        if not self._free:
            self._grow()
        place = self._free.pop()
        self._where[digest] = place
        self._depth[place] = depth
        self._digest[0, place], self._digest[1, place] = digest
        self._hits[place] = hits
        self._reason[place] = reason
        self._checkpoint[place] = checkpoint

    def forget(self, digest: Digest) -> None:
        """Remove the entry of ``digest``, when there is one."""
        place = self._where.pop(digest, None)
        if place is not None:
            self._depth[place] = 0
            self._free.append(place)

    def look_up(
        self, running: NDArray[np.uint64], base: int, matched: int, num_prompt: int
    ) -> Remembered:
        """The deepest remembered positions of a prompt beyond ``base``, its hit. Modifies nothing.

        ``running`` [2, num_prompt - base + 1] holds the digests of the prompt's prefixes of
        base, base + 1, ... num_prompt tokens.
        """
        depth = self._depth
        places = np.flatnonzero((depth > base) & (depth <= num_prompt))
        places = places[running[0, depth[places] - base] == self._digest[0, places]]
        checkpoint, beyond = -1, -1
        checkpoint_reason = beyond_reason = Gone.EVICTED
        for place in places.tolist():
            at = int(depth[place])
            if running[1, at - base] != self._digest[1, place]:
                continue
            if at <= matched:
                if self._checkpoint[place] and at > checkpoint:
                    checkpoint, checkpoint_reason = at, Gone(int(self._reason[place]))
            elif at > beyond:
                beyond, beyond_reason = at, Gone(int(self._reason[place]))
        return Remembered(checkpoint, checkpoint_reason, beyond, beyond_reason)

    def _grow(self) -> None:
        old = len(self._depth)
        self._depth = grown(self._depth, 2 * old)
        self._digest = np.concatenate((self._digest, np.zeros_like(self._digest)), axis=1)
        self._hits = grown(self._hits, 2 * old)
        self._reason = grown(self._reason, 2 * old)
        self._checkpoint = grown(self._checkpoint, 2 * old)
        self._free.extend(range(2 * old - 1, old - 1, -1))
