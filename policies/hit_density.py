"""Learnt reuse likelihood x FLOPs saved per byte."""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridcache.policies.columns import NUM_KINDS, REQUEST_ENDS, Columns, Facts
from hybridcache.policies.eviction import EvictionPolicy

NUM_BINS = 40
BIN_EDGES: NDArray[np.float64] = 0.25 * 2.0 ** (np.arange(NUM_BINS) / 2.0)
"""Seconds: ages up to BIN_EDGES[k] fall in bin k, all greater ones in the last."""
_INNER_EDGES = BIN_EDGES[:-1]
_INNER_EDGE_LIST: list[float] = _INNER_EDGES.tolist()
MAX_HITS, MAX_CHILDREN = 3, 2
NUM_CLASSES = 2 * (MAX_HITS + 1) * (MAX_CHILDREN + 1)

EVENTS_PER_UPDATE = 200
DECAY = 0.95
LEAST_EVENTS = 20.0
LEARNT_BIN = 14
"""Of the age of 32 s, at which ``learnt`` shows the main classes."""
MAIN_CLASSES = {
    "request end, 0 hits": (0, 0, 0),
    "request end, 1 hit": (0, 1, 1),
    "other, 0 hits": (1, 0, 2),
    "other, 3 hits": (1, 3, 2),
}
"""Not final, hits and children, by name."""
Counts = int | NDArray[np.int64]


def class_index(not_final: Counts, hits: Counts, children: Counts) -> Any:
    """The class of nodes of one kind with ``hits`` (0 to 3) and ``children`` (0 to 2)."""
    return (not_final * (MAX_HITS + 1) + hits) * (MAX_CHILDREN + 1) + children


# Where the counts of a kind, of hits and of children begin in a flat table of classes and bins.
_NOT_FINAL = np.isin(np.arange(NUM_KINDS), REQUEST_ENDS, invert=True).astype(np.int64)
_KIND_CELLS = NUM_BINS * class_index(_NOT_FINAL, 0, 0)
_HITS_CELLS = NUM_BINS * class_index(0, np.arange(MAX_HITS + 1), 0)
_CHILDREN_CELLS = NUM_BINS * class_index(0, 0, np.arange(MAX_CHILDREN + 1))


class HitDensity(EvictionPolicy):
    """Score = expected hits per second of residence x FLOPs saved / bytes freed.

    Nodes fall in classes: kind (request end or other) x hits (0 to 3 and more) x children (0, 1,
    2 and more). A class counts its hits and its evictions by the node's age at the event; from the
    suffix sums over the age bins follow the hits a node of that age can still expect, and the time it
    will still stay. A class with few counts falls back on 1 / (1 + age).
    (Beckmann, Chen and Cidon, "LHD: Improving Cache Hit Rate by Maximizing Hit Density", NSDI 2018,
    sections 3 and 4; the division by bytes freed and the FLOPs are ours.)
    """

    name = "hit_density"

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._hits = np.zeros((NUM_CLASSES, NUM_BINS))
        self._evictions = np.zeros((NUM_CLASSES, NUM_BINS))
        self._events = 0
        self.density = np.broadcast_to(1.0 / (1.0 + BIN_EDGES), (NUM_CLASSES, NUM_BINS)).copy()
        """Expected hits per second by class and age bin."""

    def score(self, columns: Columns, now: float) -> NDArray[np.float64]:
        """Expected FLOPs saved per byte and second."""
        cells = _INNER_EDGES.searchsorted(now - columns.accessed)
        cells += _KIND_CELLS.take(columns.kind)
        cells += _HITS_CELLS.take(columns.hits, mode="clip")
        cells += _CHILDREN_CELLS.take(columns.children, mode="clip")
        scores = self.density.take(cells)
        scores *= columns.flops_saved
        scores /= columns.bytes_freed
        return scores

    def on_hit(self, facts: Facts, now: float) -> None:
        self._count(self._hits, facts, now)

    def on_evict(self, facts: Facts, now: float) -> None:
        self._count(self._evictions, facts, now)

    def learnt(self) -> Mapping[str, float]:
        """Expected hits per second of the main classes at the age of 32 s."""
        return {
            name: float(self.density[class_index(*facts), LEARNT_BIN]) for name, facts in MAIN_CLASSES.items()
        }

    def _count(self, counts: NDArray[np.float64], facts: Facts, now: float) -> None:
        not_final = facts.kind not in REQUEST_ENDS
        where = class_index(not_final, min(facts.hits, MAX_HITS), min(facts.children, MAX_CHILDREN))
        counts[where, bisect_left(_INNER_EDGE_LIST, now - facts.accessed)] += 1.0
        self._events += 1
        if self._events % EVENTS_PER_UPDATE == 0:
            self._update()

    def _update(self) -> None:
        events = self._hits + self._evictions
        hits_to_come = _suffix_sums(self._hits)
        events_to_come = _suffix_sums(events)
        # An event in bin b >= a lies BIN_EDGES[b] - BIN_EDGES[a] seconds ahead of age a.
        residence = _suffix_sums(events * BIN_EDGES) - BIN_EDGES * events_to_come + events_to_come * 0.25
        known = events.sum(axis=1, keepdims=True) >= LEAST_EVENTS
        self.density = np.where(known, hits_to_come / np.maximum(residence, 1e-9), 1.0 / (1.0 + BIN_EDGES))
        self._hits *= DECAY
        self._evictions *= DECAY


def _suffix_sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[:, ::-1].cumsum(axis=1)[:, ::-1]
