"""Shares learnt for kinds of position."""

import numpy as np
from numpy.typing import NDArray

PRIOR_COUNT = 4.0


class ShareTable:
    """What share of the positions of each kind was used, for kinds in rows and columns.

    A kind with few counts leans on its row, the row on all together, and these on 0: each as if it had been
    seen ``PRIOR_COUNT`` times more with the wider share. Nothing is expected to be used before something was.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self.used = np.zeros((rows, columns))
        self.seen = np.zeros((rows, columns))

    def fade(self, keep: float) -> None:
        """Keep the share ``keep`` of all counts, so that what is old weighs less."""
        self.used *= keep
        self.seen *= keep

    def shares(self) -> NDArray[np.float64]:
        """The expected share [rows, columns] of each kind."""
        all_used, all_seen = self.used.sum(), self.seen.sum()
        share = all_used / (all_seen + PRIOR_COUNT)
        rows = (self.used.sum(axis=1) + PRIOR_COUNT * share) / (self.seen.sum(axis=1) + PRIOR_COUNT)
        shares: NDArray[np.float64] = (self.used + PRIOR_COUNT * rows[:, None]) / (self.seen + PRIOR_COUNT)
        return shares
