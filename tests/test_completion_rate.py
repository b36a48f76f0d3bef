"""How fast requests end, and what is told to those who find the queue full."""

from collections.abc import Callable

import pytest

from hybridcache.completion_rate import REMEMBERED, CompletionRate
from hybridcache.engine import Clock
from hybridcache.open_jobs import OpenJobs, QueueFull
from hybridcache.server.errors import MOST_RETRY_SECONDS, refused


class Told(Clock):
    """A clock that is set."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds


class Submission:
    """As much of a Job as OpenJobs looks at."""

    def __init__(self, name: str, count: int = 1) -> None:
        self.stream = self
        self.request_id = name
        self.requests = [None] * count


def test_a_rate_is_that_of_the_last_ends() -> None:
    rate = CompletionRate()
    rate.begin(100.0)
    # Nothing has ended in 2 seconds, so one takes no less.
    assert rate.seconds_for(1, 102.0) == 2.0 and rate.seconds_for(3, 102.0) == 6.0
    for i in range(1, 11):
        rate.end(100.0 + i / 2)
    assert rate.seconds_for(4, 105.0) == 2.0
    # A standstill shows while it lasts.
    assert rate.seconds_for(4, 115.0) == 6.0
    # What is long ago does not count, whether it was fast or slow.
    for i in range(REMEMBERED + 1):
        rate.end(200.0 + i)
    assert rate.seconds_for(10, 200.0 + REMEMBERED) == 10.0
    rate.begin(900.0)
    rate.end(901.0)
    assert rate.seconds_for(5, 901.0) == 5.0


@pytest.fixture
def open_jobs() -> tuple[Told, Callable[..., OpenJobs]]:
    clock = Told()
    return clock, lambda running, waiting: OpenJobs(clock, running, waiting)


def test_the_queue_over_the_rate(open_jobs: tuple[Told, Callable[..., OpenJobs]]) -> None:
    clock, make = open_jobs
    jobs, submissions = make(2, 8), [Submission(str(i)) for i in range(10)]
    jobs.add(submissions)  # type: ignore[arg-type]
    # Four ended in 2 seconds, and four came: 10 are there, and the next is the ninth to begin.
    for i in range(4):
        clock.seconds += 0.5
        jobs.remove(str(i))
        jobs.add([Submission(f"new {i}")])  # type: ignore[list-item]
    with pytest.raises(QueueFull) as caught:
        jobs.add([Submission("late")])  # type: ignore[list-item]
    assert caught.value.retry_after_seconds == 9 * 0.5
    error = refused(caught.value)
    assert (error.status, error.headers["Retry-After"], error.code) == (429, "5", "queue_full")
    for i in range(4, 10):
        jobs.remove(str(i))
        jobs.remove(f"new {i - 4}") if i < 8 else None
    assert len(jobs) == 0
    # After a pause the rate is that of the new work alone.
    clock.seconds = 1_000.0
    jobs.add([Submission(str(i)) for i in range(10)])  # type: ignore[misc]
    clock.seconds = 1_000.1
    jobs.remove("0")
    with pytest.raises(QueueFull) as caught:
        jobs.add([Submission("late", 2)])  # type: ignore[list-item]
    assert caught.value.retry_after_seconds == pytest.approx(9 * 0.1)
    assert refused(caught.value).headers["Retry-After"] == "1"
    # Nobody is told to wait for ever.
    clock.seconds = 9_999.0
    with pytest.raises(QueueFull) as caught:
        jobs.add([Submission("late", 2)])  # type: ignore[list-item]
    assert refused(caught.value).headers["Retry-After"] == str(MOST_RETRY_SECONDS)


def test_what_no_queue_takes_is_not_put_off(open_jobs: tuple[Told, Callable[..., OpenJobs]]) -> None:
    _, make = open_jobs
    jobs = make(2, 3)
    with pytest.raises(ValueError, match="6 answers exceed the 5 that are taken at a time"):
        jobs.add([Submission("a", 3), Submission("b", 3)])  # type: ignore[list-item]
    assert len(jobs) == 0
    jobs.add([Submission("a", 3), Submission("b", 2)])  # type: ignore[list-item]
    make(1, None).add([Submission("a", 1_000)])  # type: ignore[list-item]
