"""Greedy-Dual-Size-Frequency."""

import numpy as np
from numpy.typing import NDArray

from hybridcache.policies.columns import Columns, Facts
from hybridcache.policies.eviction import EvictionPolicy


class Gdsf(EvictionPolicy):
    """Priority = clock at the last access + frequency x cost / size; the clock follows the victims.

    Cost is the FLOPs saved, size the bytes freed, frequency counts the creation as one use.
    (Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching
    Policy", HP Labs HPL-98-69R1, 1998.)
    """

    name = "gdsf"

    def score(self, columns: Columns, now: float) -> NDArray[np.float64]:
        """Priorities, FLOPs per byte."""
        worth: NDArray[np.float64] = columns.flops_saved / columns.bytes_freed
        return columns.clock + (columns.hits + 1) * worth

    def on_evict(self, facts: Facts, now: float) -> None:
        """The clock is the highest priority evicted so far."""
        self.clock = max(self.clock, facts.clock + (facts.hits + 1) * facts.flops_saved / facts.bytes_freed)

    def reset(self) -> None:
        self.clock = 0.0
