"""FLOPs of a span of tokens in closed form: a polynomial in the position, bent where a window fills.

A multiply-add counts as 2 FLOPs. Softmax, norms, activations and other elementwise functions count as
nothing (they are below 1% of any layer here and every implementation fuses them differently).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self


class FlopTerm(NamedTuple):
    """One part of a layer's work, for example its projections or its attention scores.

    `per_token` is FLOPs for each token. `per_pair` is FLOPs for each (query, key) pair; the pairs of the
    first n tokens are n (n + 1) / 2 (the causal triangle), at most `window` keys per query where it is set
    (the query's own token included), or n^2 where `square` is set (the count used by papers and by
    counters that ignore the mask).
    """

    name: str
    per_token: int = 0
    per_pair: int = 0
    window: int | None = None
    square: bool = False

    def pairs(self, stop: int) -> int:
        """Number of (query, key) pairs among the first `stop` tokens."""
        if self.square:
            return stop * stop
        triangle = stop * (stop + 1) // 2
        if self.window is None or stop <= self.window:
            return triangle
        outside = stop - self.window
        return triangle - outside * (outside + 1) // 2

    def flops(self, start: int, stop: int) -> int:
        """FLOPs of this part for tokens [start, stop)."""
        assert 0 <= start <= stop
        return self.per_token * (stop - start) + self.per_pair * (self.pairs(stop) - self.pairs(start))


@dataclass(frozen=True, slots=True)
class FlopCurve:
    """The sum of any number of terms: FLOPs of the first n tokens in O(1 + number of distinct windows).

    With q(n) = quadratic * n^2 + linear * n, twice the FLOPs of the first n tokens are q(n) minus, for each
    (w, p) in `windows` with n > w, p * (n - w) * (n - w + 1): the pairs that have left the window.
    Coefficients are doubled so that they stay integers: sums are exact, and rounded only at the end.
    """

    linear: int
    quadratic: int
    windows: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, terms: Iterable[FlopTerm]) -> Self:
        """Adds up `terms`. Raises ValueError when a term has both a window and the full square."""
        linear = quadratic = 0
        windows: Counter[int] = Counter()
        for term in terms:
            linear += 2 * term.per_token
            if term.square:
                if term.window is not None:
                    raise ValueError(
                        f"term {term.name!r} has a window of {term.window} and the full square; drop one"
                    )
                quadratic += 2 * term.per_pair
                continue
            linear += term.per_pair
            quadratic += term.per_pair
            if term.window is not None:
                windows[term.window] += term.per_pair
        return cls(linear, quadratic, tuple(sorted(windows.items())))

    def prefix(self, stop: int) -> float:
        """FLOPs of tokens [0, stop), rounded once to a float."""
        # Written out in both methods: they run several times for every request of a replay.
        doubled = stop * (self.linear + self.quadratic * stop)
        for window, per_pair in self.windows:
            if stop > window:
                doubled -= per_pair * (stop - window) * (stop - window + 1)
        return doubled / 2

    def between(self, start: int, stop: int) -> float:
        """FLOPs of tokens [start, stop): the difference of two prefixes, rounded once to a float."""
        assert 0 <= start <= stop
        doubled = (stop - start) * (self.linear + self.quadratic * (start + stop))
        for window, per_pair in self.windows:
            if stop > window:
                doubled -= per_pair * (stop - window) * (stop - window + 1)
                if start > window:
                    doubled += per_pair * (start - window) * (start - window + 1)
        return doubled / 2
