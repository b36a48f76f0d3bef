"""Marconi's eviction with a fixed alpha."""

import numpy as np
from numpy.typing import NDArray

from hybridcache.policies.columns import Columns
from hybridcache.policies.eviction import EvictionPolicy


class Marconi(EvictionPolicy):
    """Recency + alpha x FLOPs saved per byte freed, each scaled to [0, 1] over the rows.

    (Pan et al., "Marconi: Prefix Caching for the Era of Hybrid LLMs", MLSys 2025, section 4.3.)
    FLOPs are divided by what the eviction frees; `marconi_published` divides as the paper's code does.
    """

    name = "marconi"
    relative = True

    def __init__(self, alpha: float = 1.0) -> None:
        if not 0.0 <= alpha < float("inf"):
            raise ValueError(f"eviction.alpha={alpha!r}: give a finite weight of at least 0")
        self.alpha = alpha

    def score(self, columns: Columns, now: float) -> NDArray[np.float64]:
        recency = _unit(columns.accessed)
        return recency + self.alpha * _unit(columns.flops_saved / self.bytes_charged(columns))

    def bytes_charged(self, columns: Columns) -> NDArray[np.float64]:
        """Bytes [n] that keeping each node is taken to cost."""
        return columns.bytes_freed


def _unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """``values`` moved and scaled to [0, 1]; zeros when they are all equal."""
    low, high = values.min(initial=np.inf), values.max(initial=-np.inf)
    return (values - low) / (high - low) if high > low else np.zeros_like(values)
