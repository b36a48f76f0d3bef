"""The facts of remembered positions as numpy columns."""

import numpy as np

from hybridcache.policies.columns import FINAL, Census, Facts
from hybridcache.pool import grown


class GoneTable:
    """One row a position that went, for policies that ``remember``; rows are reused."""

    __slots__ = ("size", "accessed", "hits", "children", "kind", "depth", "_used", "_free")

    def __init__(self) -> None:
        n = 1024
        self.size = 0
        """Rows in use or used before."""
        self.accessed = np.zeros(n)
        """Seconds: the last time that a request resumed at the position, or would have, or its creation."""
        self.hits = np.zeros(n, dtype=np.int64)
        self.children = np.zeros(n, dtype=np.int64)
        """Children when it went; at least 1 once a prompt has passed, and left a path behind it."""
        self.kind = np.full(n, FINAL, dtype=np.int8)
        self.depth = np.zeros(n, dtype=np.int64)
        """Tokens."""
        self._used = np.zeros(n, dtype=np.bool_)
        self._free: list[int] = []

    def __len__(self) -> int:
        return self.size - len(self._free)

    def add(self, facts: Facts) -> int:
        """The row of a position that goes."""
        if self._free:
            row = self._free.pop()
        else:
            row = self.size
            self.size += 1
            if self.size > len(self._used):
                for name in ("accessed", "hits", "children", "kind", "depth", "_used"):
                    setattr(self, name, grown(getattr(self, name), self.size))
        self.accessed[row], self.hits[row], self.children[row] = facts.accessed, facts.hits, facts.children
        self.kind[row], self.depth[row], self._used[row] = facts.kind, facts.depth, True
        return row

    def remove(self, row: int) -> None:
        """Free a row."""
        self._used[row] = False
        self._free.append(row)

    def facts(self, row: int) -> Facts:
        """The facts of one row as plain numbers; what it saved and freed is not kept."""
        return Facts(
            self.accessed.item(row), self.hits.item(row), self.children.item(row), self.kind.item(row),
            0.0, 1.0, 0.0, self.depth.item(row),
        )  # fmt: skip

    def returned(self, row: int, now: float) -> None:
        """A request would have resumed at the position."""
        self.accessed[row] = now
        self.hits[row] += 1
        self.children[row] = max(self.children.item(row), 1)

    def census(self) -> Census:
        """Copies of the rows in use."""
        rows = self._used[: self.size].nonzero()[0]
        return Census(
            self.accessed[rows], self.hits[rows], self.children[rows], self.kind[rows], self.depth[rows]
        )
