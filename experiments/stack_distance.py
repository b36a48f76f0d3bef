"""Stack distances in bytes: the least cache in which each reuse is a hit, under LRU, in one pass."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def stack_distances(items: Sequence[int], sizes: Sequence[float]) -> NDArray[np.float64]:
    """Bytes [n] used since the last use of each use's item, itself included; infinite for first uses.

    ``items`` [n], in order of use, numbered from 0; ``sizes`` [n]: bytes of the item from this use on, so
    that an item may grow. (Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for storage
    hierarchies", IBM Systems Journal 1970; the sums are kept in a Fenwick tree over the uses, at n log n.)
    """
    distances = np.full(len(items), np.inf)
    sums = _Sums(len(items))
    last: dict[int, int] = {}
    size_of: dict[int, float] = {}
    held = 0.0
    for use, (item, size) in enumerate(zip(items, sizes, strict=True)):
        before = size_of.get(item, 0.0)
        if item in last:
            distances[use] = held - sums.up_to(last[item]) + size
            sums.add(last[item], -before)
        sums.add(use, size)
        held += size - before
        last[item], size_of[item] = use, size
    return distances


class _Sums:
    """Prefix sums over n places that change one at a time."""

    def __init__(self, n: int) -> None:
        self._parts = [0.0] * (n + 1)

    def add(self, place: int, amount: float) -> None:
        place += 1
        while place < len(self._parts):
            self._parts[place] += amount
            place += place & -place

    def up_to(self, place: int) -> float:
        """The sum of places 0 ... ``place``."""
        place += 1
        total = 0.0
        while place:
            total += self._parts[place]
            place -= place & -place
        return total
