"""Checked access to the fields of one JSON row."""

from math import isfinite
from typing import NamedTuple

MAX_TIME = 1e15  # s or ms; the difference of two times is a time, too
MAX_TOKENS = 2**27  # tokens in one input or output; longer ones are taken for a corrupt row


class Row(NamedTuple):
    """One JSON object of a JSONL file, with the place to name when it is wrong."""

    path: str
    number: int  # line of the file, from 1
    values: dict[str, object]

    def error(self, field: str, problem: str) -> ValueError:
        """The ValueError that says what is wrong with `field` of this row."""
        return ValueError(f"{self.path}, row {self.number}, field '{field}': {problem}")

    def get(self, field: str) -> object:
        """The value of `field`. ValueError when it is missing."""
        if field not in self.values:
            known = ", ".join(sorted(self.values)) or "none"
            raise self.error(field, f"missing (the row has: {known}); add it or drop the row")
        return self.values[field]

    def integer(self, field: str, low: int, high: int) -> int:
        """An integer in [low, high]. ValueError otherwise."""
        value = self.get(field)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(field, f"must be an integer, got {value!r:.80}")
        if not low <= value <= high:
            raise self.error(field, f"must lie in [{low}, {high}], got {value}; correct or drop the row")
        return value

    def number_of(self, field: str) -> float:
        """A finite number, e.g. a time. ValueError otherwise."""
        value = self.get(field)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.error(field, f"must be a number, got {value!r:.80}")
        try:
            finite = isfinite(value)
        except OverflowError:  # a whole number of hundreds of digits
            finite = False
        if not finite:
            raise self.error(field, f"must be finite, got {value!r:.80}; drop the row")
        return value

    def time_of(self, field: str, last: float | None, unit: str = "s") -> float:
        """A time that is not before `last`, the row's before (None: there is none). ValueError otherwise."""
        time = self.number_of(field)
        if last is not None and time < last:
            raise self.error(field, f"is {time} {unit}, after a row of {last} {unit}; sort the rows by time")
        if not abs(time) <= MAX_TIME:
            raise self.error(field, f"is {time} {unit}; no clock shows that, correct or drop the row")
        return time

    def text(self, field: str, value: str) -> str:
        """`value`, found in `field`, when it can be encoded: JSON can name half a character. ValueError."""
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise self.error(field, f"is no Unicode ({error.reason} at character {error.start})") from error
        return value

    def integers(self, field: str, limit: int) -> list[int]:
        """A list of integers, each in [0, limit). ValueError otherwise."""
        value = self.get(field)
        if not isinstance(value, list):
            raise self.error(field, f"must be a list of integers, got {value!r:.80}")
        # type() and not isinstance(): true and false are no ids. The common case takes no Python loop.
        if value and not (set(map(type, value)) == {int} and min(value) >= 0 and max(value) < limit):
            place = next(i for i, x in enumerate(value) if type(x) is not int or not 0 <= x < limit)
            problem = f"must hold integers in [0, {limit}), got {value[place]!r:.80} at place {place}"
            raise self.error(field, f"{problem}; correct or drop the row")
        return value

    def length(self, field: str) -> int:
        """A count of tokens, at least 1. ValueError otherwise."""
        return self.integer(field, 1, MAX_TOKENS)
