"""The facts of all nodes as numpy columns, kept up to date by the cache."""

import numpy as np
from numpy.typing import NDArray

from hybridcache.node import FOREVER, Node
from hybridcache.policies.columns import FINAL, NUM_KINDS, Census, Columns, Facts
from hybridcache.pool import grown

NOT_EVICTABLE, LEAF, INNER = range(3)
"""States of a row: free or pinned, which is 0; a leaf that can go; an inner node, or a pinned leaf,
whose checkpoint alone can go."""


class NodeTable:
    """One row a node in the tree. Rows are reused, so ``size`` follows the largest tree so far."""

    __slots__ = (
        "nodes", "size", "num_nodes", "_free", "_views",
        "accessed", "path_accessed", "hits", "children", "kind", "flops_saved", "bytes_freed",
        "prefix_bytes", "depth", "clock", "state", "anchor", "first_out", "used", "resumable", "expires_at",
        "slot_expires_at",
    )  # fmt: skip

    def __init__(self) -> None:
        n = 1024
        self.nodes: list[Node | None] = []
        """The node of each row."""
        self.size = 0
        """Rows in use or used before."""
        self.num_nodes = 0
        self._free: list[int] = []
        self._views: Columns | None = None
        # Columns, shape [at least size]; the first ten are explained in Columns.
        self.accessed = np.zeros(n)
        self.path_accessed = np.zeros(n)
        self.hits = np.zeros(n, dtype=np.int64)
        self.children = np.zeros(n, dtype=np.int64)
        self.kind = np.zeros(n, dtype=np.int8)
        self.flops_saved = np.zeros(n)
        self.bytes_freed = np.ones(n)
        self.prefix_bytes = np.ones(n)
        self.depth = np.zeros(n, dtype=np.int64)
        self.clock = np.zeros(n)
        self.state = np.zeros(n, dtype=np.int8)
        """NOT_EVICTABLE, LEAF or INNER."""
        self.anchor = np.zeros(n, dtype=np.int64)
        """Tokens: the end of the nearest checkpointed ancestor, 0 without one."""
        self.first_out = np.zeros(n, dtype=np.bool_)
        """Goes before all others: KV that no checkpoint covers, in a model that needs one, and a prompt-end
        checkpoint that nothing resumed at although a final one below it was resumed at."""
        self.used = np.zeros(n, dtype=np.bool_)
        """Whether a request resumed at the checkpoint that the node holds now."""
        self.resumable = np.zeros(n, dtype=np.bool_)
        """Whether a request can resume at the node: it holds a checkpoint, or the model needs none."""
        self.expires_at = np.full(n, FOREVER)
        """Seconds."""
        self.slot_expires_at = np.full(n, FOREVER)
        """Seconds; FOREVER without a checkpoint."""

    def add(self, node: Node, now: float, clock: float) -> int:
        """A row for ``node``, accessed now; not evictable until the cache says so."""
        if self._free:
            row = self._free.pop()
            self.nodes[row] = node
        else:
            row = self.size
            if row == len(self.state):
                self._grow()
            self.size += 1
            self.nodes.append(node)
        self.num_nodes += 1
        node.row = row
        self.accessed[row] = now
        self.path_accessed[row] = now
        self.hits[row] = 0
        self.children[row] = len(node.children)
        self.kind[row] = FINAL
        self.flops_saved[row] = 0.0
        self.bytes_freed[row] = 1.0
        self.prefix_bytes[row] = 1.0
        self.depth[row] = node.stop
        self.clock[row] = clock
        self.state[row] = NOT_EVICTABLE
        self.anchor[row] = 0
        self.first_out[row] = False
        self.used[row] = False
        self.resumable[row] = False
        self.expires_at[row] = node.expires_at
        self.slot_expires_at[row] = FOREVER
        return row

    def remove(self, node: Node) -> None:
        """Free the row of ``node``, which has left the tree."""
        row = node.row
        self.nodes[row] = None
        self.state[row] = NOT_EVICTABLE
        self.resumable[row] = False
        self.expires_at[row] = self.slot_expires_at[row] = FOREVER
        self._free.append(row)
        self.num_nodes -= 1
        node.row = -1
        node.version += 1

    def columns(self, rows: NDArray[np.int64] | None = None) -> Columns:
        """Views of the rows [0, size), or copies of the rows asked for; nobody can write to either."""
        if rows is None:
            if self._views is None or len(self._views.accessed) != self.size:
                self._views = self._columns(slice(self.size))
            return self._views
        return self._columns(rows)

    def _columns(self, rows: NDArray[np.int64] | slice) -> Columns:
        columns = Columns(
            self.accessed[rows], self.path_accessed[rows], self.hits[rows], self.children[rows],
            self.kind[rows], self.flops_saved[rows], self.bytes_freed[rows], self.prefix_bytes[rows],
            self.depth[rows], self.clock[rows],
        )  # fmt: skip
        columns.freeze()
        return columns

    def facts(self, row: int) -> Facts:
        """The facts of one row as plain numbers."""
        return Facts(
            self.accessed.item(row), self.hits.item(row), self.children.item(row), self.kind.item(row),
            self.flops_saved.item(row), self.bytes_freed.item(row), self.clock.item(row),
            self.depth.item(row),
        )  # fmt: skip

    def census(self) -> Census:
        """Copies of the rows that a request could resume at."""
        rows = self.resumable[: self.size].nonzero()[0]
        return Census(
            self.accessed[rows], self.hits[rows], self.children[rows], self.kind[rows], self.depth[rows]
        )

    def resumable_by_kind(self) -> NDArray[np.int64]:
        """How many nodes [NUM_KINDS] a request can resume at, by kind."""
        kinds = self.kind[: self.size][self.resumable[: self.size]]
        return np.bincount(kinds, minlength=NUM_KINDS)

    def evictable(self, leaves_only: bool) -> NDArray[np.int64]:
        """Rows [n] that can be evicted now, ascending."""
        state = self.state[: self.size]
        rows: NDArray[np.int64] = (state == LEAF if leaves_only else state).nonzero()[0]
        return rows

    def has_slot(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the nodes of ``rows`` hold a checkpoint."""
        nodes = (self.nodes[row] for row in rows.tolist())
        return np.array([node is not None and node.slot is not None for node in nodes], dtype=np.bool_)

    def _grow(self) -> None:
        old = len(self.state)
        for name in ("accessed", "path_accessed", "hits", "children", "kind", "flops_saved", "bytes_freed",
                     "prefix_bytes", "depth", "clock", "state", "anchor", "first_out", "used", "resumable",
                     "expires_at", "slot_expires_at"):  # fmt: skip
            setattr(self, name, grown(getattr(self, name), 2 * old))
        self._views = None
        self.bytes_freed[old:] = self.prefix_bytes[old:] = 1.0
        self.expires_at[old:] = self.slot_expires_at[old:] = FOREVER
