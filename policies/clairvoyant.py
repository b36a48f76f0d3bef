"""An offline reference that knows the rest of the trace."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hybridcache.policies.columns import Columns
from hybridcache.policies.eviction import EvictionPolicy

LEAST_SECONDS = 1e-3


class Clairvoyant(EvictionPolicy):
    """Score = FLOPs saved per byte freed / seconds until the next use; what is never used again goes first.

    With nodes of one size and worth that is Belady's rule, which is best possible (Belady, "A study of
    replacement algorithms for a virtual-storage computer", IBM Systems Journal 1966). Sizes, worths and
    prefixes that stand on each other make the best choice a hard problem; this one is greedy, one node at a
    time, and no upper bound. A use is a request that would resume at the node if nothing had ever
    gone: experiments/foresight.py finds those in a first pass over the trace.
    """

    name = "clairvoyant"

    def __init__(self) -> None:
        self.due: Callable[[int], NDArray[np.float64]] | None = None
        """Told the number of rows, the time [n] of the next use of each, seconds; inf: none."""

    def score(self, columns: Columns, now: float) -> NDArray[np.float64]:
        """FLOPs per byte and second."""
        if self.due is None:
            raise ValueError("it reads the trace ahead, which only a replay with mode=cache can")
        wait = np.maximum(self.due(len(columns.accessed)) - now, LEAST_SECONDS)
        scores: NDArray[np.float64] = columns.flops_saved / columns.bytes_freed / wait
        return scores
