"""The one thread that owns an engine, and with it the cache and the model."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, NamedTuple, TypeVar

from hybridcache.engine import Engine, StepOutput
from hybridcache.job import Job

T = TypeVar("T")


class WorkerClosed(RuntimeError):
    """The worker takes no more calls: it was closed, or its engine's thread died of `__cause__`."""


class _Command(NamedTuple):
    act: Callable[[Engine], Any]
    done: "Future[Any]"


class EngineThread:
    """Runs commands between the engine's steps, in the order in which they were posted.

    A step that raises out of the engine (in scheduling, that is: what fails for a batch or a request ends
    there) ends the thread; every job and every call, then and later, fails with WorkerClosed from it.
    """

    def __init__(self, make_engine: Callable[[], Engine]) -> None:
        """``make_engine`` is called in the thread; what it raises is raised here."""
        self._commands: SimpleQueue[_Command | None] = SimpleQueue()
        self._lock = Lock()
        self._closed: WorkerClosed | None = None
        """Set once: no command is taken from then on."""
        self._jobs: dict[int, Job] = {}
        """By request id; of the thread alone."""
        self._process = os.getpid()
        """A fork of it has the engine's memory, and no thread that runs it."""
        started: Future[None] = Future()
        self._thread = Thread(
            target=self._run, args=(make_engine, started), name="hybridcache-engine", daemon=True
        )
        self._thread.start()
        started.result()

    @property
    def healthy(self) -> bool:
        """Whether calls are taken."""
        return self._closed is None and self._process == os.getpid() and self._thread.is_alive()

    def post(self, act: Callable[[Engine], T]) -> "Future[T]":
        """Have ``act`` called in the thread. Raises WorkerClosed."""
        command = _Command(act, Future())
        if self._process != os.getpid():
            # Before the lock, which somebody may have held when this process was forked.
            raise WorkerClosed(f"the worker runs in process {self._process}: make one in this process")
        with self._lock:
            if self._closed is not None:
                raise WorkerClosed(str(self._closed)) from self._closed.__cause__
            self._commands.put(command)
        return command.done

    def call(self, act: Callable[[Engine], T]) -> T:
        """What ``act`` returns, called in the thread between two steps. Raises what it raises."""
        return self.post(act).result()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Start jobs together, before the next step. Raises WorkerClosed."""

        def failed(done: "Future[None]") -> None:
            error = done.exception()
            if error is not None:
                for job in jobs:
                    job.fail(None, error)

        self.post(lambda engine: self._start(engine, jobs)).add_done_callback(failed)

    def abort(self, job: Job) -> None:
        """End a job after the running step, unless it has ended by then. Does not wait for it."""
        with suppress(WorkerClosed):
            self.post(lambda engine: self._abort(engine, job))

    def close(self) -> None:
        """End the thread after its running step; what has not ended fails with WorkerClosed.

        In a fork of the process there is nothing to end.
        """
        if self._process != os.getpid():
            return
        with self._lock:
            if self._closed is None:
                self._closed = WorkerClosed("the worker is closed")
                self._commands.put(None)
        self._thread.join()

    # The thread

    def _run(self, make_engine: Callable[[], Engine], started: "Future[None]") -> None:
        try:
            engine = make_engine()
        except BaseException as error:
            self._end(WorkerClosed("the engine could not be made"))
            started.set_exception(error)
            return
        started.set_result(None)
        try:
            while self._obey(engine):
                if engine.has_work:
                    for output in engine.step():
                        self._deliver(engine, output)
        except BaseException as error:
            closed = WorkerClosed(f"the engine's thread died: {error!r}")
            closed.__cause__ = error
            self._end(closed)
        else:
            self._end(None)

    def _obey(self, engine: Engine) -> bool:
        """Run the commands that are there, or wait for one when there is nothing else to do."""
        try:
            while True:
                command = self._commands.get(block=not engine.has_work)
                if command is None:
                    return False
                act, done = command
                try:
                    result = act(engine)
                except Exception as error:
                    done.set_exception(error)
                else:
                    done.set_result(result)
        except Empty:
            return True

    def _start(self, engine: Engine, jobs: Sequence[Job]) -> None:
        for job in jobs:
            try:
                job.start(engine)
            except Exception as error:
                job.fail(engine, error)
            else:
                self._jobs.update((request.id, job) for request in job.requests)

    def _abort(self, engine: Engine, job: Job) -> None:
        job.abort(engine)
        self._forget(job)

    def _deliver(self, engine: Engine, output: StepOutput) -> None:
        job = self._jobs.get(output.request.id)
        if job is None:
            return  # it failed with another of its requests, earlier in this step
        if output.request.error is not None:
            job.fail(engine, output.request.error)
        else:
            job.take(output)
        self._forget(job)

    def _forget(self, job: Job) -> None:
        if job.stream.ended:
            for request in job.requests:
                self._jobs.pop(request.id, None)

    def _end(self, closed: WorkerClosed | None) -> None:
        """Fail all that is left; afterwards nothing can be posted."""
        with self._lock:
            if self._closed is None:
                self._closed = closed
            error = self._closed
        assert error is not None
        for job in list(self._jobs.values()):
            job.fail(None, error)
        self._jobs.clear()
        while not self._commands.empty():
            command = self._commands.get()
            if command is not None:
                command.done.set_exception(error)
