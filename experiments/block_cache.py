"""A cache of single blocks under one of the eviction policies: no tree, no prefixes, no pins."""

import numpy as np

from hybridcache.policies.clairvoyant import Clairvoyant
from hybridcache.policies.columns import Columns, Facts
from hybridcache.policies.eviction import EvictionPolicy

NEVER = np.inf


class BlockCache:
    """Holds at most ``capacity`` blocks of one size and worth; each block is a row of the policy's columns.

    What a policy decides then follows from its formula alone, and can be compared with other
    simulators'. Of equal scores the block goes that was accessed longest ago.
    """

    def __init__(self, policy: EvictionPolicy, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity}: give a number of blocks, at least 1")
        self.policy = policy
        self.capacity = capacity
        self.columns = Columns.blank(capacity)
        self.columns.flops_saved[:] = 1.0
        self._next_use = np.full(capacity, NEVER)
        if isinstance(policy, Clairvoyant):
            policy.due = lambda n: self._next_use[:n]
        self._rows: dict[int, int] = {}
        """The row of each block that is held."""
        self._blocks = [0] * capacity
        """The block of each row."""

    def access(self, block: int, now: float, next_use: float = NEVER) -> bool:
        """Whether ``block`` was held at ``now`` (seconds, rising); it is held afterwards.

        ``next_use`` (seconds) is for `clairvoyant`.
        """
        row = self._rows.get(block)
        hit = row is not None
        columns = self.columns
        if row is not None:
            self.policy.on_hit(self._facts(row), now)
            columns.hits[row] += 1
        else:
            row = len(self._rows) if len(self._rows) < self.capacity else self._evict(now)
            self._rows[block], self._blocks[row] = row, block
            columns.hits[row] = 0
        columns.accessed[row] = columns.path_accessed[row] = now
        columns.clock[row] = self.policy.clock
        self._next_use[row] = next_use
        return hit

    def _evict(self, now: float) -> int:
        """The row of the block that went."""
        scores = self.policy.score(self.columns, now)
        lowest = np.flatnonzero(scores == scores.min())
        row = int(lowest[self.columns.accessed[lowest].argmin()])
        self.policy.on_evict(self._facts(row), now)
        del self._rows[self._blocks[row]]
        return row

    def _facts(self, row: int) -> Facts:
        columns = self.columns
        return Facts(
            columns.accessed.item(row), columns.hits.item(row), 0, 0, 1.0, 1.0, columns.clock.item(row), 0
        )
