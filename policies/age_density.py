"""FLOPs saved per byte, discounted by age."""

import numpy as np
from numpy.typing import NDArray

from hybridcache.policies.columns import Columns
from hybridcache.policies.eviction import EvictionPolicy


class AgeDensity(EvictionPolicy):
    """Score = 1 / (1 + age / tau) x FLOPs saved / bytes freed.

    The hyperbolic discount is the reuse likelihood of an item whose rate is unknown and was last
    seen ``age`` seconds ago; ``tau_seconds`` is where it has halved.
    """

    name = "age_density"

    def __init__(self, tau_seconds: float = 30.0) -> None:
        if not 0.0 < tau_seconds < float("inf"):
            raise ValueError(f"eviction.tau_seconds={tau_seconds!r}: give seconds above 0")
        self.tau_seconds = tau_seconds

    def score(self, columns: Columns, now: float) -> NDArray[np.float64]:
        """FLOPs per byte, discounted."""
        age = np.maximum(now - columns.accessed, 0.0)
        return columns.flops_saved / (columns.bytes_freed * (1.0 + age / self.tau_seconds))
