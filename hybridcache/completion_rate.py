"""How fast requests end, of late."""

from collections import deque

REMEMBERED = 64
"""Ends that the rate is taken from, at most."""


class CompletionRate:
    """Ends per second over the last of them, since there was anything to do. Times are seconds."""

    __slots__ = ("_since", "_ends")

    def __init__(self) -> None:
        self._since = 0.0
        """What the oldest end that is remembered is measured from."""
        self._ends: deque[float] = deque()

    def begin(self, now: float) -> None:
        """There is something to do, after a time when there was nothing: that time does not count."""
        self._since = now
        self._ends.clear()

    def end(self, now: float) -> None:
        """A request ended."""
        self._ends.append(now)
        if len(self._ends) > REMEMBERED:
            self._since = self._ends.popleft()

    def seconds_for(self, count: int, now: float) -> float:
        """How long ``count`` ends take at this rate. Before the first end: as if it came now."""
        return count * max(now - self._since, 0.0) / max(len(self._ends), 1)
