"""Least frequently used."""

import numpy as np
from numpy.typing import NDArray

from hybridcache.policies.columns import Columns
from hybridcache.policies.eviction import EvictionPolicy


class Lfu(EvictionPolicy):
    """The node that fewest requests resumed at goes; the older one of equals.

    (Robinson and Devarakonda, "Data cache management using frequency-based replacement",
    SIGMETRICS 1990, describe LFU and its variants.)
    """

    name = "lfu"

    def score(self, columns: Columns, now: float) -> NDArray[np.float64]:
        """Hits, and below 1 the recency, which breaks ties."""
        age = np.maximum(now - columns.accessed, 0.0)
        return columns.hits + 1.0 / (2.0 + age)
