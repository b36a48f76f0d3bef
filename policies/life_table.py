"""Chances of reuse by age, learnt for groups within groups."""

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

NUM_BINS = 40
BIN_EDGES: NDArray[np.float64] = 0.25 * 2.0 ** (np.arange(NUM_BINS) / 2.0)
"""Seconds: ages up to BIN_EDGES[k] fall in bin k, all greater ones in the last."""
INNER_EDGES = BIN_EDGES[:-1]
_INNER_EDGE_LIST: list[float] = INNER_EDGES.tolist()
WIDTHS = np.diff(BIN_EDGES, prepend=0.0)

SHORTEST = 1e-9
"""Seconds; younger positions count as that old."""

PRIOR_HITS = 5.0
MOST_CERTAIN = 0.95
TINY = 1e-9

Table = NDArray[np.float64]


def bin_of(age: float) -> int:
    """The bin of one age (seconds)."""
    return bisect_left(_INNER_EDGE_LIST, age)


class LifeTable:
    """An actuary's table over spells. A spell is the time from one use of a position to the next.

    For each group and age bin it counts the spells that were that old, and those that ended there with a
    use; the quotient is the chance of a use at that age. A group with few counts leans on the group that it
    is part of: its chances are the wider group's, corrected by the quotient of hits and expected hits, both
    raised by ``PRIOR_HITS`` (indirect standardization with a gamma prior, as actuaries correct a standard
    table by a small group's experience: Clayton and Kaldor, "Empirical Bayes Estimates of Age-standardized
    Relative Risks", Biometrics 1987); first over all ages, then over ages that are neighbours, then bin by
    bin, so that few counts move the level, and only many the shape. The widest group leans on
    ``_first_guess``. Groups that are taken to be ``alike`` are corrected over all ages alone.
    """

    def __init__(self, groups: tuple[int, ...], pooled: bool = True, alike: int = 0) -> None:
        """``groups``: how many subgroups each group has, level by level, the widest first.

        Not ``pooled``: each of the smallest groups leans on the first guess, and on no other group.
        ``alike``: at so many of the last levels groups differ by a factor, and share one shape over the ages.
        """
        self.groups = groups
        self.pooled = pooled
        self.alike = alike
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
        """A spell of ``group`` ends at ``age`` (seconds) with a use; ``before`` as in ``lived``."""
        last = bin_of(age)
        self.exposed[group, bin_of(before) : last + 1] += 1.0
        self.hits[group, last] += 1.0

    def left(self, group: int, before: float, age: float) -> None:
        """A spell of ``group`` is lost from sight at ``age`` (seconds); ``before`` as in ``lived``."""
        self.exposed[group, bin_of(before) : bin_of(age)] += 1.0

    def fade(self, share: float) -> None:
        """Keep ``share`` of all counts, so that what is old weighs less."""
        self.hits *= share
        self.exposed *= share

    def chances(self) -> Table:
        """The chance [groups, bins] that a spell which reaches a bin ends there with a use."""
        hits, exposed = (counts.reshape(*self.groups, NUM_BINS) for counts in (self.hits, self.exposed))
        depth = len(self.groups)
        everything = tuple(range(depth))
        chance = _first_guess(hits.sum(axis=everything), exposed.sum(axis=everything))
        for level in range(0 if self.pooled else depth, depth + 1):
            within = tuple(range(level, depth))
            wider = chance[..., None, :] if level and self.pooled else chance
            of_group = hits.sum(axis=within), exposed.sum(axis=within)
            alike = self.pooled and level > depth - self.alike
            chance = (_scaled if alike else _corrected)(wider, *of_group)
        return chance.reshape(self.hits.shape)


def _first_guess(hits: Table, exposed: Table) -> Table:
    """A chance [bins] that falls as 1 / (T + age), averaged over T by how well they agree with the counts.

    ``hits``, ``exposed``: [bins], of all groups. Before there are hits every T is as likely as any other, on
    a scale of logarithms: the chance falls nearly as 1 / age, and knows no unit of time. The hits soon tell
    T: each is weighted by the likelihood of their ages, whatever their number.
    """
    guesses = WIDTHS / (BIN_EDGES[:, None] + BIN_EDGES)
    expected = guesses @ exposed
    total = hits.sum()
    fit = np.log(guesses) @ hits - total * np.log(expected + TINY)
    weights = np.exp(fit - fit.max())
    weights *= (total + PRIOR_HITS) / (expected + PRIOR_HITS) / weights.sum()
    guess: Table = weights @ guesses
    return guess


def _corrected(chance: Table, hits: Table, exposed: Table) -> Table:
    """The wider group's ``chance``, corrected by a group's own counts, step by step.

    ``hits``, ``exposed``: [..., groups, bins].
    """
    chance = _scaled(chance, hits, exposed)
    chance = _leaning(chance, _with_neighbours(hits), _with_neighbours(exposed * chance))
    return _leaning(chance, hits, exposed * chance)


def _scaled(chance: Table, hits: Table, exposed: Table) -> Table:
    """The wider group's ``chance``, corrected by a group's counts over all ages."""
    expected = exposed * chance
    return _leaning(chance, hits.sum(axis=-1, keepdims=True), expected.sum(axis=-1, keepdims=True))


def _with_neighbours(counts: Table) -> Table:
    """Sums over each bin and the one on either side of it."""
    sums = counts.copy()
    sums[..., 1:] += counts[..., :-1]
    sums[..., :-1] += counts[..., 1:]
    return sums


def _leaning(chance: Table, hits: Table, expected: Table) -> Table:
    """``chance`` corrected by the quotient of hits and expected hits, as far as there are any."""
    corrected: Table = chance * ((hits + PRIOR_HITS) / (expected + PRIOR_HITS))
    return np.minimum(corrected, MOST_CERTAIN, out=corrected)


def best_rates(chances: Table) -> Table:
    """Uses a second, [groups, bins]: what a position of that age yields if it is kept for the best time.

    Kept through bins a ... b, it sees a use with the chance 1 - (survival) and occupies its room until the
    use or the end of b; the rate is the highest quotient over b. That is the index of the optimal stopping
    problem (Gittins, "Bandit Processes and Dynamic Allocation Indices", J. R. Stat. Soc. B 1979): a
    position that is soon due is worth keeping though it is never used at once.
    """
    stays = np.ascontiguousarray((1.0 - chances).T)
    half_widths = 0.5 * WIDTHS[:, None]
    # Of all bins a that b = a + ahead exists for at once, [bins, groups]: survival to the end of b, the time
    # occupied by then, and the best rate so far.
    survival, occupied, rates = np.ones_like(stays), np.zeros_like(stays), np.zeros_like(stays)
    for ahead in range(NUM_BINS):
        survival, occupied = survival[: NUM_BINS - ahead], occupied[: NUM_BINS - ahead]
        survival *= stays[ahead:]
        of_bin = survival + survival / stays[ahead:]
        of_bin *= half_widths[ahead:]
        occupied += of_bin
        best = rates[: NUM_BINS - ahead]
        np.maximum(best, (1.0 - survival) / occupied, out=best)
    return np.ascontiguousarray(rates.T)


def rates_at(rates: Table, groups: NDArray[np.int64], ages: Table) -> Table:
    """The rates [n] of ``groups`` [n] at ``ages`` [n] (seconds); ``rates`` [groups, bins]: where bins begin.

    In between they lie on a straight line over the logarithm of the age, so that of two positions in one
    bin the older one is nearer to what the next bin holds.
    """
    ages = 2.0 * np.log2(np.maximum(ages, SHORTEST))
    ages += 5.0  # bin 1 begins at 0.25 s, bin 3 at 0.5 s
    low = ages.clip(0.0, NUM_BINS - 2.0).astype(np.int64)
    ages -= low
    ages.clip(0.0, 1.0, out=ages)
    cells = groups * NUM_BINS
    cells += low
    found: Table = rates.take(cells)
    cells += 1
    found += ages * (rates.take(cells) - found)
    return found


def rates_now(chances: Table) -> Table:
    """Uses a second, [groups, bins], while a position is in its present bin: no look ahead."""
    rates: Table = chances / (WIDTHS * (1.0 - 0.5 * chances))
    return rates
