"""Least recently used, over states."""

import numpy as np
from numpy.typing import NDArray

from hybridcache.policies.columns import Columns
from hybridcache.policies.eviction import EvictionPolicy

SECONDS_PER_TOKEN = 1e-9


class StateLru(EvictionPolicy):
    """The state that was used least recently goes, wherever it stands; KV goes with leaves.

    A use touches all above it; of what was used together, what lies nearest to the root goes first. An inner
    node loses its state alone and stays as a tombstone. SGLang's tree for hybrid models evicts so
    (``MambaRadixCache`` in its mem_cache/mamba_radix_cache.py), from pools of fixed size: ``memory=split``.
    """

    name = "state_lru"
    touches_path = True

    def score(self, columns: Columns, now: float) -> NDArray[np.float64]:
        """The time of the last use of the node or of anything below it, seconds."""
        return columns.path_accessed + SECONDS_PER_TOKEN * columns.depth
