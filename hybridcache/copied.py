"""Which parts of one token string also stand in another, in any order."""

from collections.abc import Sequence
from typing import NamedTuple

SHINGLE_TOKENS = 4
"""Shortest part that is looked for."""
_MOST_PLACES = 8
"""Places of one shingle that are tried."""


class Copied(NamedTuple):
    """Tokens [start, start + length) of the one are [source, source + length) of the other."""

    start: int
    source: int
    length: int

    @property
    def stop(self) -> int:
        return self.start + self.length

    @property
    def source_stop(self) -> int:
        return self.source + self.length


def common_length(a: Sequence[int], b: Sequence[int], at_a: int = 0, at_b: int = 0) -> int:
    """Tokens that ``a`` from ``at_a`` and ``b`` from ``at_b`` on begin alike with."""
    most = min(len(a) - at_a, len(b) - at_b)
    n = 0
    while n < most and a[at_a + n] == b[at_b + n]:
        n += 1
    return n


def copied_parts(tokens: Sequence[int], other: Sequence[int], start: int) -> list[Copied]:
    """Parts of ``tokens[start:]`` that stand in ``other[start:]``, ascending, none overlapping in ``tokens``.

    Greedy: at each place the longest part goes, that which continues the one before where two are as long.
    """
    k = SHINGLE_TOKENS
    places: dict[tuple[int, ...], list[int]] = {}
    for at in range(start, len(other) - k + 1):
        found = places.setdefault(tuple(other[at : at + k]), [])
        if len(found) < _MOST_PLACES:
            found.append(at)
    parts: list[Copied] = []
    at, expected = start, start
    while at <= len(tokens) - k:
        best = Copied(at, 0, 0)
        for source in places.get(tuple(tokens[at : at + k]), ()):
            length = common_length(tokens, other, at, source)
            nearer = abs(source - expected) < abs(best.source - expected)
            if length > best.length or (length == best.length and nearer):
                best = Copied(at, source, length)
        if best.length:
            parts.append(best)
            at, expected = best.stop, best.source_stop
        else:
            at, expected = at + 1, expected + 1
    return parts


def in_order(parts: Sequence[Copied]) -> list[Copied]:
    """The heaviest chain of parts that stand in the same order in both."""
    best: list[tuple[int, int]] = []  # (tokens of the heaviest chain that ends here, the part before)
    for i, part in enumerate(parts):
        before = max(
            ((best[j][0], j) for j in range(i) if parts[j].source_stop <= part.source), default=(0, -1)
        )
        best.append((before[0] + part.length, before[1]))
    chain: list[Copied] = []
    at = max(range(len(best)), key=lambda i: best[i][0], default=-1)
    while at >= 0:
        chain.append(parts[at])
        at = best[at][1]
    return chain[::-1]
