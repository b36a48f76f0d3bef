"""Chooses the next victim."""

import logging
import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from hybridcache.node import Node
from hybridcache.node_table import LEAF, NodeTable
from hybridcache.policies.columns import Columns
from hybridcache.policies.eviction import EvictionPolicy

SHARE_PER_SCORING = 0.02

log = logging.getLogger(__name__)


class Evictor:
    """Scores all nodes in bulk and hands out the lowest, one at a time.

    The lowest 2% of the candidates go before scores are taken again (at least one does); of those,
    one whose facts changed since is passed over. A policy that fails costs its choice, not the
    cache: the failure is logged and counted, and the least recently used node goes instead.
    """

    __slots__ = ("table", "policy", "num_scorings", "num_policy_errors", "_queue")

    def __init__(self, table: NodeTable, policy: EvictionPolicy) -> None:
        self.table = table
        self.policy = policy
        self.num_scorings = 0
        """How often all candidates were scored."""
        self.num_policy_errors = 0
        self._queue: deque[tuple[Node, int]] = deque()
        try:
            _valid_scores(policy, Columns.blank(3), now=0.0)
        except Exception as error:
            raise ValueError(f"eviction policy {policy.name!r} cannot score new nodes: {error}") from error

    def next(self, now: float, frees_state: bool, frees_kv: bool) -> Node | None:
        """The evictable node to go next, or None. Modifies neither tree nor table.

        ``frees_state`` / ``frees_kv``: only a node with a checkpoint / only a leaf will do, as
        when the pools have budgets of their own.
        """
        while True:
            while self._queue:
                node, version = self._queue.popleft()
                if node.version == version and self._serves(node, frees_state, frees_kv):
                    return node
            if not self._score(now, frees_state, frees_kv):
                return None

    def hit(self, row: int, now: float) -> None:
        """Tell the policy that a request resumes at the node of ``row``."""
        try:
            self.policy.on_hit(self.table.facts(row), now)
        except Exception:
            self._failed()

    def evicted(self, row: int, now: float) -> None:
        """Tell the policy that the node of ``row``, or its checkpoint, goes."""
        try:
            self.policy.on_evict(self.table.facts(row), now)
        except Exception:
            self._failed()

    def _serves(self, node: Node, frees_state: bool, frees_kv: bool) -> bool:
        if frees_state and node.slot is None:
            return False
        return not frees_kv or int(self.table.state[node.row]) == LEAF

    def _score(self, now: float, frees_state: bool, frees_kv: bool) -> bool:
        table = self.table
        rows = table.evictable_rows(self.policy.leaves_only or frees_kv)
        if frees_state:
            rows = rows[table.has_slot(rows)]
        if not len(rows):
            return False
        self.num_scorings += 1
        try:
            scores = _valid_scores(self.policy, table.columns(), now)[rows]
        except Exception:
            self._failed()
            scores = table.accessed[rows]
        scores = np.where(table.first_out[rows], -np.inf, scores)
        count = math.ceil(SHARE_PER_SCORING * len(rows))
        if count == 1:
            lowest = np.flatnonzero(scores == scores.min())
        else:
            lowest = np.argpartition(scores, count - 1)[:count]
        rows, scores = rows[lowest], scores[lowest]
        if len(rows) > 1:
            rows = rows[np.lexsort((rows, -table.depth[rows], table.accessed[rows], scores))]
        for row in rows[:count].tolist():
            node = table.nodes[row]
            assert node is not None, row
            self._queue.append((node, node.version))
        return True

    def _failed(self) -> None:
        self.num_policy_errors += 1
        log.exception("eviction policy %r failed; the least recently used node goes", self.policy.name)


def _valid_scores(policy: EvictionPolicy, columns: Columns, now: float) -> NDArray[np.float64]:
    """The policy's scores. Raises ValueError when they are not one number a row."""
    scores = np.asarray(policy.score(columns, now), dtype=np.float64)
    if scores.shape != columns.accessed.shape:
        raise ValueError(f"scores have shape {scores.shape}, the columns {columns.accessed.shape}")
    if np.isnan(scores).any():
        raise ValueError("a score is NaN")
    return scores
