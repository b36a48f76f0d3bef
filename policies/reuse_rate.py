"""Learnt rate of reuse x FLOPs saved per byte, over what is cached and what is remembered."""

from bisect import bisect_right
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hybridcache.policies.columns import (
    BRANCH,
    FINAL,
    FOLLOW_UP,
    NUM_KINDS,
    REQUEST_ENDS,
    Census,
    Columns,
    Facts,
)
from hybridcache.policies.eviction import EvictionPolicy
from hybridcache.policies.life_table import LifeTable, best_rates, rates_at, rates_now

MAX_HITS, MAX_CHILDREN = 3, 2
SIZE_EDGES = np.array([2048, 8192, 32768])
"""Tokens: depths below the first fall in size 0, those from the last on in size 3."""
_SIZE_EDGE_LIST: list[int] = SIZE_EDGES.tolist()
NUM_SIZES = len(SIZE_EDGES) + 1
GROUPS = (2, (MAX_HITS + 1) * (MAX_CHILDREN + 1), NUM_SIZES, 2)
"""Request ends and others; in these hits x children; in these sizes; in these others and follow-ups."""

LEARNT_AGE = 32.0
"""Seconds, at which ``learnt`` shows the main groups."""
MAIN_GROUPS = {
    "request end, 0 hits": (FINAL, 0, 0, 4096),
    "request end, 1 hit": (FINAL, 1, 1, 4096),
    "follow-up's end, 0 hits": (FOLLOW_UP, 0, 0, 4096),
    "other, 0 hits": (BRANCH, 0, 2, 4096),
    "other, 3 hits": (BRANCH, 3, 2, 4096),
}
"""Kind, hits, children and depth (tokens), by name."""

FIRST_CENSUS = 20
EVENTS_PER_CENSUS = 100
POSITIONS_PER_EVENT = 100
FADE = 0.98
EVENTS_PER_FADE = 200.0

# Where a kind, hits, children and a size begin in the flat list of groups.
_ALL_ENDS_ALIKE = np.isin(np.arange(NUM_KINDS), REQUEST_ENDS, invert=True) * GROUPS[1] * GROUPS[2] * GROUPS[3]
_KINDS = _ALL_ENDS_ALIKE + (np.arange(NUM_KINDS) == FOLLOW_UP)
_HITS = np.arange(MAX_HITS + 1) * (MAX_CHILDREN + 1) * GROUPS[2] * GROUPS[3]
_CHILDREN = np.arange(MAX_CHILDREN + 1) * GROUPS[2] * GROUPS[3]
_SIZES = np.arange(NUM_SIZES) * GROUPS[3]


class ReuseRate(EvictionPolicy):
    """Score = uses a second that keeping the position still yields x FLOPs saved / bytes freed.

    How soon a position is used again is learnt from all that are known, in the tree or remembered after
    they went, by kind, hits, children, depth and age (``LifeTable``): whether one was evicted has no part in
    it, so that a class that goes early is still seen to be reused, and comes back. A conversation that has
    gone on once is told from a single question. ``best_rates`` turns the chances into the rate. Without
    experience it is a discount by age.
    """

    name = "reuse_rate"

    def __init__(
        self,
        remember: bool = True,
        revive: bool = True,
        look_ahead: bool = True,
        pooled: bool = True,
        follow_ups: bool = True,
    ) -> None:
        """Each setting takes a part away, to show what it gives: what is learnt from positions that went; the
        return of shared ones; the best time to keep a position, instead of its chance now; groups that lean
        on wider ones; the ends of follow-ups as a group of their own.
        """
        self.remembers = remember
        self.revives = revive
        self._rates_of = best_rates if look_ahead else rates_now
        self._pooled = pooled
        self._kinds = _KINDS if follow_ups else _ALL_ENDS_ALIKE
        self.reset()

    def reset(self) -> None:
        self.table = LifeTable(GROUPS, self._pooled, alike=1)
        self.rates = self._rates_of(self.table.chances())
        """Uses a second, [groups, bins]."""
        self.wants_census = False
        self._events = 0
        self._events_per_census = FIRST_CENSUS
        self._counted_at = -np.inf

    def score(self, columns: Columns, now: float) -> NDArray[np.float64]:
        """Expected FLOPs saved per byte and second."""
        scores = rates_at(self.rates, groups_of(columns, self._kinds), now - columns.accessed)
        scores *= columns.flops_saved
        scores /= columns.bytes_freed
        return scores

    def on_hit(self, facts: Facts, now: float) -> None:
        group = group_of(facts.kind, facts.hits, facts.children, facts.depth, self._kinds)
        self.table.used(group, self._counted_at - facts.accessed, now - facts.accessed)
        self._event()

    def on_return(self, facts: Facts, now: float) -> None:
        self.on_hit(facts, now)

    def on_evict(self, facts: Facts, now: float) -> None:
        if not self.remembers:
            group = group_of(facts.kind, facts.hits, facts.children, facts.depth, self._kinds)
            self.table.left(group, self._counted_at - facts.accessed, now - facts.accessed)
        self._event()

    def census(self, positions: Census, now: float) -> None:
        accessed = positions.accessed
        self.table.lived(groups_of(positions, self._kinds), self._counted_at - accessed, now - accessed)
        self.rates = self._rates_of(self.table.chances())
        self.table.fade(FADE ** (self._events / EVENTS_PER_FADE))
        self._counted_at, self._events, self.wants_census = now, 0, False
        # The first counts tell most.
        usual = min(2 * self._events_per_census, EVENTS_PER_CENSUS)
        self._events_per_census = max(usual, len(accessed) // POSITIONS_PER_EVENT)

    def learnt(self) -> Mapping[str, float]:
        """Uses a second that the main groups yield at the age of 32 s."""
        groups = np.array([group_of(*facts) for facts in MAIN_GROUPS.values()])
        rates = rates_at(self.rates, groups, np.full(len(groups), LEARNT_AGE))
        return dict(zip(MAIN_GROUPS, rates.tolist(), strict=True))

    def _event(self) -> None:
        self._events += 1
        self.wants_census = self._events >= self._events_per_census


def groups_of(positions: Columns | Census, kinds: NDArray[np.int64] = _KINDS) -> NDArray[np.int64]:
    """The group [n] of each position; ``kinds`` [NUM_KINDS]: where each kind begins."""
    groups: NDArray[np.int64] = _SIZES.take(SIZE_EDGES.searchsorted(positions.depth, side="right"))
    groups += kinds.take(positions.kind)
    groups += _HITS.take(positions.hits, mode="clip")
    groups += _CHILDREN.take(positions.children, mode="clip")
    return groups


def group_of(kind: int, hits: int, children: int, depth: int, kinds: NDArray[np.int64] = _KINDS) -> int:
    """The group of one position; ``depth`` in tokens."""
    size = bisect_right(_SIZE_EDGE_LIST, depth)
    of_counts = _HITS.item(min(hits, MAX_HITS)) + _CHILDREN.item(min(children, MAX_CHILDREN))
    return kinds.item(kind) + of_counts + _SIZES.item(size)
