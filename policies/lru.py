"""Least recently used, over leaves."""

import numpy as np
from numpy.typing import NDArray

from hybridcache.policies.columns import Columns
from hybridcache.policies.eviction import EvictionPolicy


class Lru(EvictionPolicy):
    """The leaf that was used least recently goes, KV and checkpoint together.

    A use touches the ancestors too. SGLang's radix cache (Zheng et al., "SGLang: Efficient
    Execution of Structured Language Model Programs", NeurIPS 2024, section 3) evicts so.
    """

    name = "lru"
    leaves_only = True

    def score(self, columns: Columns, now: float) -> NDArray[np.float64]:
        """The time of the last use of the node or of anything below it, seconds."""
        return columns.path_accessed
