"""The submissions of a worker that have not ended."""

from collections.abc import Sequence
from threading import Lock

from hybridcache.completion_rate import CompletionRate
from hybridcache.engine import Clock
from hybridcache.job import Job


class QueueFull(RuntimeError):
    """As many requests run and wait as the worker takes: try again later."""

    def __init__(self, message: str, retry_after_seconds: float) -> None:
        """``retry_after_seconds``: until those ahead have begun, at the rate at which they ended of late."""
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class OpenJobs:
    """Jobs by the id that the client knows. Thread-safe."""

    __slots__ = ("_clock", "_most_running", "_most_waiting", "_lock", "_jobs", "_num_requests", "_rate")

    def __init__(self, clock: Clock, most_running: int, most_waiting: int | None) -> None:
        """Requests (each of a job's `n` counts) beyond ``most_running`` wait; None: any number may."""
        self._clock = clock
        self._most_running, self._most_waiting = most_running, most_waiting
        self._lock = Lock()
        self._jobs: dict[str, Job] = {}
        self._num_requests = 0
        self._rate = CompletionRate()

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, jobs: Sequence[Job]) -> None:
        """Take all or none.

        Raises ValueError for an id in use or that is no text, and for too many at once; QueueFull.
        """
        names = [job.stream.request_id for job in jobs]
        new = sum(len(job.requests) for job in jobs)
        now = self._clock.now()
        if wrong := [name for name in names if not isinstance(name, str)]:
            raise ValueError(f"request_id={wrong[0]!r}: give a text, or None for a new one")
        with self._lock:
            used = [name for name in names if name in self._jobs]
            if used or len(set(names)) < len(names):
                name = used[0] if used else max(names, key=names.count)
                raise ValueError(f"request_id={name!r} is in use by a request that has not ended")
            if self._most_waiting is not None:
                self._check_room(new, self._most_running + self._most_waiting, now)
            if not self._num_requests:
                self._rate.begin(now)
            self._jobs.update(zip(names, jobs, strict=True))
            self._num_requests += new

    def get(self, name: str) -> Job | None:
        """The job of this id, while it has not ended."""
        with self._lock:
            return self._jobs.get(name)

    def remove(self, name: str) -> None:
        """Forget a job that ended; nothing happens the second time."""
        now = self._clock.now()
        with self._lock:
            job = self._jobs.pop(name, None)
            if job is not None:
                self._num_requests -= len(job.requests)
                for _ in job.requests:
                    self._rate.end(now)

    def _check_room(self, new: int, most: int, now: float) -> None:
        if new > most:
            raise ValueError(f"{new} answers exceed the {most} that are taken at a time: ask for fewer")
        if self._num_requests + new > most:
            raise QueueFull(
                f"{self._num_requests} requests are running or waiting, {new} more exceed the {most} that "
                "are taken at a time: try again later",
                self._rate.seconds_for(self._num_requests + new - self._most_running, now),
            )
