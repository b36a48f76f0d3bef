"""The submissions of a worker that have not ended."""

from collections.abc import Sequence
from threading import Lock

from hybridcache.job import Job


class QueueFull(RuntimeError):
    """As many requests run and wait as the worker takes: try again later."""


class OpenJobs:
    """Jobs by the id that the client knows. Thread-safe."""

    __slots__ = ("_most", "_lock", "_jobs", "_num_requests")

    def __init__(self, most: int | None) -> None:
        """``most`` requests (each of a job's `n` counts) may be there at a time; None: any number."""
        self._most = most
        self._lock = Lock()
        self._jobs: dict[str, Job] = {}
        self._num_requests = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, jobs: Sequence[Job]) -> None:
        """Take all or none. Raises ValueError for an id in use, QueueFull."""
        names = [job.stream.request_id for job in jobs]
        new = sum(len(job.requests) for job in jobs)
        with self._lock:
            used = [name for name in names if name in self._jobs]
            if used or len(set(names)) < len(names):
                name = used[0] if used else max(names, key=names.count)
                raise ValueError(f"request_id={name!r} is in use by a request that has not ended")
            if self._most is not None and self._num_requests + new > self._most:
                raise QueueFull(
                    f"{self._num_requests} requests are running or waiting, {new} more exceed the "
                    f"{self._most} that are taken at a time: try again later"
                )
            self._jobs.update(zip(names, jobs, strict=True))
            self._num_requests += new

    def get(self, name: str) -> Job | None:
        """The job of this id, while it has not ended."""
        with self._lock:
            return self._jobs.get(name)

    def remove(self, name: str) -> None:
        """Forget a job that ended; nothing happens the second time."""
        with self._lock:
            job = self._jobs.pop(name, None)
            if job is not None:
                self._num_requests -= len(job.requests)
