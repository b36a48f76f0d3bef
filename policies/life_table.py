"""Chances of reuse by age, learnt for groups within groups."""

import numpy as np
from numpy.typing import NDArray

NUM_BINS = 40
BIN_EDGES: NDArray[np.float64] = 0.25 * 2.0 ** (np.arange(NUM_BINS) / 2.0)
"""Seconds: ages up to BIN_EDGES[k] fall in bin k, all greater ones in the last."""
INNER_EDGES = BIN_EDGES[:-1]
WIDTHS = np.diff(BIN_EDGES, prepend=0.0)

FIRST_GUESS_SECONDS = 30.0
PRIOR_HITS = 5.0
MOST_CERTAIN = 0.95

Table = NDArray[np.float64]


class LifeTable:
    """An actuary's table over spells. A spell is the time from one use of a position to the next.

    For each group and age bin it counts the spells that were that old, and those that ended there with a use;
    the quotient is the chance of a use at that age. A group with few counts leans on the group that it is
    part of: its level, and then each of its bins, is the wider group's, corrected by the quotient of hits
    and expected hits, both raised by ``PRIOR_HITS`` (indirect standardization with a gamma prior, as
    actuaries correct a standard table by a small group's experience: Clayton and Kaldor, "Empirical Bayes
    Estimates of Age-standardized Relative Risks", Biometrics 1987). The widest group leans on a chance
    that falls as 1 / (``FIRST_GUESS_SECONDS`` + age).
    """

    def __init__(self, groups: tuple[int, ...]) -> None:
        """``groups``: how many subgroups each group has, level by level, the widest first."""
        self.groups = groups
        self.hits = np.zeros((int(np.prod(groups)), NUM_BINS))
        """Spells that ended with a use, by group and age."""
        self.exposed = np.zeros_like(self.hits)
        """Spells that were of that age."""

    def lived(self, groups: NDArray[np.int64], before: Table, ages: Table) -> None:
        """Spells of ``groups`` [n] that were ``before`` [n] seconds old at the last count, now ``ages`` [n].

        ``before`` below 0: they have begun since.
        """
        first = groups * NUM_BINS
        size = self.hits.size
        change = np.bincount(first + INNER_EDGES.searchsorted(before), minlength=size)
        change -= np.bincount(first + INNER_EDGES.searchsorted(ages), minlength=size)
        self.exposed += change.reshape(self.hits.shape).cumsum(axis=1)

    def used(self, group: int, before: float, age: float) -> None:
        """A spell of ``group`` ends at ``age`` with a use; ``before`` as in ``lived``."""
        last = int(INNER_EDGES.searchsorted(age))
        self.exposed[group, INNER_EDGES.searchsorted(before) : last + 1] += 1.0
        self.hits[group, last] += 1.0

    def fade(self, share: float) -> None:
        """Keep ``share`` of all counts, so that what is old weighs less."""
        self.hits *= share
        self.exposed *= share

    def chances(self) -> Table:
        """The chance [groups, bins] that a spell which reaches a bin ends there with a use."""
        chance: Table = WIDTHS / (FIRST_GUESS_SECONDS + BIN_EDGES)
        hits, exposed = (counts.reshape(*self.groups, NUM_BINS) for counts in (self.hits, self.exposed))
        for level in range(len(self.groups) + 1):
            within = tuple(range(level, len(self.groups)))
            wider = chance[..., None, :] if level else chance
            chance = _corrected(wider, hits.sum(axis=within), exposed.sum(axis=within))
        return chance.reshape(self.hits.shape)


def _corrected(chance: Table, hits: Table, exposed: Table) -> Table:
    """The wider group's ``chance``, corrected by a group's own counts: first its level, then each bin."""
    expected = (exposed * chance).sum(axis=-1, keepdims=True)
    level = chance * (hits.sum(axis=-1, keepdims=True) + PRIOR_HITS) / (expected + PRIOR_HITS)
    level = np.minimum(level, MOST_CERTAIN)
    each: Table = level * (hits + PRIOR_HITS) / (exposed * level + PRIOR_HITS)
    return np.minimum(each, MOST_CERTAIN, out=each)


def best_rates(chances: Table) -> Table:
    """Uses a second, [groups, bins]: what a position of that age yields if it is kept for the best time.

    Kept through bins a ... b, it sees a use with the chance 1 - (survival) and occupies its room until the
    use or the end of b; the rate is the highest quotient over b. That is the index of the optimal stopping
    problem (Gittins, "Bandit Processes and Dynamic Allocation Indices", J. R. Stat. Soc. B 1979): a
    position that is soon due is worth keeping though it is never used at once.
    """
    rates = np.empty_like(chances)
    stays = 1.0 - chances
    for first in range(NUM_BINS):
        after = stays[:, first:].cumprod(axis=1)
        occupied = after + after / stays[:, first:]
        occupied *= 0.5 * WIDTHS[first:]
        rates[:, first] = ((1.0 - after) / occupied.cumsum(axis=1)).max(axis=1)
    return rates
