"""Finds texts that end an answer, while its characters come."""

from collections.abc import Sequence
from typing import NamedTuple


class FoundStop(NamedTuple):
    """Where a stop text begins in all that was read, in characters."""

    at: int
    stop: str


class StopTexts:
    """Reads each character once: by Knuth, Morris and Pratt, so that no repetition and no length is slow.

    (Knuth, Morris, Pratt, "Fast Pattern Matching in Strings", SIAM J. Comput. 6(2), 1977.)
    """

    __slots__ = ("_stops", "_borders", "_begun", "_num_read")

    def __init__(self, stops: Sequence[str]) -> None:
        """``stops`` are not empty."""
        self._stops = tuple(stops)
        self._borders: list[list[int] | None] = [None] * len(self._stops)
        """By stop text, once it is needed: by how many of its characters were read, how many of these it may
        still begin with if the next one is not its own."""
        self._begun = [0] * len(self._stops)
        """By stop text: how many characters of it the text read ends with, fewer than all."""
        self._num_read = 0

    @property
    def num_begun(self) -> int:
        """Characters at the end of what was read that a stop text may begin with."""
        return max(self._begun, default=0)

    def read(self, text: str) -> FoundStop | None:
        """Read on; of the stop texts that end within ``text`` the one that begins first, then the longest."""
        found = [
            FoundStop(self._num_read + end - len(stop), stop)
            for number, stop in enumerate(self._stops)
            if (self._begun[number] or stop[0] in text) and (end := self._read(number, text))
        ]
        self._num_read += len(text)
        return min(found, key=lambda each: (each.at, -len(each.stop)), default=None)

    def _read(self, number: int, text: str) -> int:
        """Read on for one stop text; how many characters of ``text`` it takes to end it first, or 0."""
        stop, borders = self._stops[number], self._borders[number]
        if borders is None:
            borders = self._borders[number] = _borders(stop)
        begun, first_end = self._begun[number], 0
        for end, character in enumerate(text, 1):
            while begun and stop[begun] != character:
                begun = borders[begun]
            if stop[begun] == character:
                begun += 1
            if begun == len(stop):
                first_end, begun = first_end or end, borders[begun]
        self._begun[number] = begun
        return first_end


def _borders(stop: str) -> list[int]:
    """[n + 1]: of the first characters of ``stop``, by their number, the longest proper part that both begins
    and ends them."""
    borders, length = [0, 0], 0
    for character in stop[1:]:
        while length and stop[length] != character:
            length = borders[length]
        length += stop[length] == character
        borders.append(length)
    return borders
