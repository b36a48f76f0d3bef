"""Chooses the next victim."""

import logging
import math
import sys
from collections import deque

import numpy as np
from numpy.typing import NDArray

from hybridcache.gone_table import GoneTable
from hybridcache.node import Node
from hybridcache.node_table import LEAF, NodeTable
from hybridcache.policies.columns import Columns, Facts
from hybridcache.policies.eviction import EvictionPolicy

SHARE_PER_SCORING = 0.02
FLAGS = ("leaves_only", "by_block", "touches_path", "relative", "remembers", "revives", "wants_census")
"""What a policy declares of itself."""

_NUMBER = (int, float, np.number)

log = logging.getLogger(__name__)


class Evictor:
    """Scores all nodes in bulk and hands out the lowest, one at a time.

    The lowest 2% of the candidates go before scores are taken again (at least one does); of those,
    one whose facts changed since is passed over. A policy that fails costs its choice, not the
    cache: the failure is logged and counted, and the least recently used node goes instead.
    """

    __slots__ = ("table", "policy", "num_scorings", "num_policy_errors", "_gone", "_queue")

    def __init__(self, table: NodeTable, policy: EvictionPolicy, gone: GoneTable | None = None) -> None:
        """``gone``: facts of the positions that are remembered."""
        self.table = table
        self.policy = policy
        self.num_scorings = 0
        """How often all candidates were scored."""
        self.num_policy_errors = 0
        self._gone = GoneTable() if gone is None else gone
        self._queue: deque[tuple[Node, int]] = deque()
        if not isinstance(getattr(policy, "name", None), str):
            raise ValueError(f"eviction policy {type(policy).__name__} has no name: give its class one")
        for flag in FLAGS:
            if not isinstance(value := getattr(policy, flag, None), bool | np.bool_):
                raise ValueError(f"eviction policy {policy.name!r} has {flag}={value!r}: give True or False")
        if not _is_number(clock := getattr(policy, "clock", None)):
            raise ValueError(f"eviction policy {policy.name!r} has clock={clock!r}: give a number")
        try:
            columns = Columns.blank(3)
            columns.freeze()
            scores = np.asarray(policy.score(columns, 0.0))
            if scores.shape != (3,) or not np.isfinite(scores).all():
                raise ValueError(f"the scores of three are {scores}, and must be three finite numbers")
        except Exception as error:
            problem = str(error) or type(error).__name__
            raise ValueError(f"eviction policy {policy.name!r} cannot score new nodes: {problem}") from error

    @property
    def clock(self) -> float:
        """The policy's own; 0 when it is no number any more, which is logged and counted."""
        clock = self.policy.clock
        if _is_number(clock):
            return float(clock)
        self._failed()
        return 0.0

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

    def ranking(self, now: float) -> list[tuple[Node, float]]:
        """All that could be evicted, with their scores; what would go next is first. Modifies nothing but
        the count of errors, when the policy fails.

        The table is up to date.
        """
        table, rows = self.table, self._candidates(self.policy.leaves_only, False)
        if not len(rows):
            return []
        scores = self._scores(rows, now)
        order = np.lexsort((rows, -table.depth[rows], table.accessed[rows], scores))
        ranked = (
            (table.nodes[row], float(score)) for row, score in zip(rows[order], scores[order], strict=True)
        )
        return [(node, score) for node, score in ranked if node is not None]

    def hit(self, row: int, now: float) -> None:
        """Tell the policy that a request resumes at the node of ``row``."""
        try:
            self.policy.on_hit(self.table.facts(row), now)
            if self.policy.wants_census:
                self._census(now)
        except Exception:
            self._failed()

    def evicted(self, row: int, now: float) -> None:
        """Tell the policy that the node of ``row``, or its checkpoint, goes."""
        try:
            self.policy.on_evict(self.table.facts(row), now)
        except Exception:
            self._failed()

    def returned(self, facts: Facts, now: float) -> None:
        """Tell a policy that remembers that a request would have resumed at a position of these facts."""
        if not self.policy.remembers:
            return
        try:
            self.policy.on_return(facts, now)
            if self.policy.wants_census:
                self._census(now)
        except Exception:
            self._failed()

    def _census(self, now: float) -> None:
        """Show the policy what is in the tree and, if it remembers, what went."""
        positions = self.table.census()
        if self.policy.remembers:
            positions = positions.and_also(self._gone.census())
        self.policy.census(positions, now)

    def _serves(self, node: Node, frees_state: bool, frees_kv: bool) -> bool:
        if frees_state and node.slot is None:
            return False
        return not frees_kv or int(self.table.state[node.row]) == LEAF

    def _score(self, now: float, frees_state: bool, frees_kv: bool) -> bool:
        """Queue the lowest candidates; False when there is no candidate."""
        table = self.table
        candidates = self._candidates(self.policy.leaves_only or frees_kv, frees_state)
        if not len(candidates) and self.policy.leaves_only and not frees_kv:
            # Requests pin all the leaves there are, and what they pin holds checkpoints.
            candidates = self._candidates(False, frees_state)
        if not len(candidates):
            return False
        self.num_scorings += 1
        scores = self._scores(candidates, now)
        count = math.ceil(SHARE_PER_SCORING * len(candidates))
        if count == 1:
            lowest = (scores == scores[scores.argmin()]).nonzero()[0]
        else:
            lowest = scores.argpartition(count - 1)[:count]
        rows = candidates[lowest]
        if len(rows) > 1:
            rows = rows[np.lexsort((rows, -table.depth[rows], table.accessed[rows], scores[lowest]))]
        for row in rows[:count].tolist():
            node = table.nodes[row]
            assert node is not None, row
            self._queue.append((node, node.version))
        return True

    def _scores(self, candidates: NDArray[np.int64], now: float) -> NDArray[np.float64]:
        """Of the rows ``candidates`` [n], an array of their own; -inf goes before all."""
        table = self.table
        try:
            scores = _valid_scores(self.policy, table, candidates, now)
        except Exception:
            self._failed()
            scores = table.accessed[candidates]
        first_out = table.first_out.take(candidates).nonzero()[0]
        if len(first_out):
            scores[first_out] = -np.inf
        return scores

    def _candidates(self, leaves_only: bool, frees_state: bool) -> NDArray[np.int64]:
        """Rows [n] of the table, ascending."""
        rows = self.table.evictable(leaves_only)
        return rows[self.table.has_slot(rows)] if frees_state else rows

    def _failed(self) -> None:
        self.num_policy_errors += 1
        log.error(
            "eviction policy %r failed; the least recently used node goes",
            self.policy.name,
            exc_info=sys.exception() or ValueError(f"clock={self.policy.clock!r} is no number"),
        )


def _is_number(value: object) -> bool:
    return isinstance(value, _NUMBER) and math.isfinite(value)


def _valid_scores(
    policy: EvictionPolicy, table: NodeTable, candidates: NDArray[np.int64], now: float
) -> NDArray[np.float64]:
    """The policy's scores [n] of the rows ``candidates`` [n], an array of their own.

    Raises ValueError when they are not one finite number each.
    """
    columns = table.columns(candidates) if policy.relative else table.columns()
    scores = np.asarray(policy.score(columns, now), dtype=np.float64)
    if scores.shape != columns.accessed.shape:
        raise ValueError(f"scores have shape {scores.shape}, the columns {columns.accessed.shape}")
    # To argmin and argmax, NaN is an extreme.
    if not (math.isfinite(scores[scores.argmin()]) and math.isfinite(scores[scores.argmax()])):
        raise ValueError("a score is NaN or infinite")
    return scores.copy() if policy.relative else scores.take(candidates)
