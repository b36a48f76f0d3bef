"""Counts of values by their size."""

from bisect import bisect_left
from dataclasses import dataclass, field, replace


@dataclass(slots=True)
class Histogram:
    """Counts by upper bound, and the sum; the difference of two copies tells of the time between them."""

    bounds: tuple[float, ...]
    """Ascending; values above the last one are counted too."""
    counts: list[int] = field(default_factory=list)
    """Values in (bounds[i - 1], bounds[i]]; the last: above all bounds."""
    total: float = 0.0
    """Of all values."""

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """Values so far."""
        return sum(self.counts)

    def copy(self) -> "Histogram":
        """As it stands now."""
        return replace(self, counts=self.counts.copy())
