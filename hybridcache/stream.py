"""The client's end of a request: readable from any thread and any event loop."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator

from hybridcache.request_output import Chunk, RequestOutput

Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class Stream:
    """Chunks while they come, then the whole output::

        async for chunk in stream: ...       # or: for chunk in stream, in a thread
        output = await stream                # or: stream.result()

    One reader takes the chunks; any number may wait for the output. Leaving the loop early, or being
    cancelled in it, aborts the request. Whatever the request failed with is raised.
    """

    def __init__(
        self,
        request_id: str,
        abort: Callable[[], object],
        num_prompt_tokens: int = 0,
        last_prompt_token: int | None = None,
    ) -> None:
        self.request_id = request_id
        self.num_prompt_tokens = num_prompt_tokens
        self.last_prompt_token = last_prompt_token
        self.num_cached_tokens = 0
        """Prompt tokens that were not computed; known once the first chunk is there."""
        self._abort = abort
        self._changed = threading.Condition()
        self._chunks: deque[Chunk] = deque()
        self._output: RequestOutput | None = None
        self._error: BaseException | None = None
        self._waiters: list[Waiter] = []

    @property
    def ended(self) -> bool:
        """Whether the output, or the error, is there; chunks may be left to read."""
        return self._output is not None or self._error is not None

    def abort(self) -> None:
        """End the request, wherever it stands; nothing happens when it has ended."""
        if not self.ended:
            self._abort()

    # The reader

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait for the end, however the request ends; False when it takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self.ended, timeout_seconds)

    def result(self, timeout_seconds: float | None = None) -> RequestOutput:
        """Wait for the whole output. Raises TimeoutError when it takes longer; the request goes on then."""
        if not self.wait(timeout_seconds):
            raise TimeoutError(f"request {self.request_id} has not ended in {timeout_seconds} seconds")
        return self._ended_with()

    def __iter__(self) -> Iterator[Chunk]:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._chunks or self.ended)
                    if not self._chunks:
                        break
                    chunk = self._chunks.popleft()
                yield chunk
            self._ended_with()
        finally:
            self.abort()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        try:
            while True:
                await self._wait(lambda: bool(self._chunks) or self.ended)
                with self._changed:
                    if not self._chunks:
                        break
                    chunk = self._chunks.popleft()
                yield chunk
            self._ended_with()
        finally:
            self.abort()

    def __await__(self) -> Generator[object, None, RequestOutput]:
        return self._whole().__await__()

    async def _whole(self) -> RequestOutput:
        await self._wait(lambda: self.ended)
        return self._ended_with()

    async def _wait(self, ready: Callable[[], bool]) -> None:
        while True:
            with self._changed:
                if ready():
                    return
                loop = asyncio.get_running_loop()
                waiter = loop.create_future()
                self._waiters.append((loop, waiter))
            await waiter

    def _ended_with(self) -> RequestOutput:
        if self._error is not None:
            raise self._error
        assert self._output is not None
        return self._output

    # The engine's thread

    def put(self, chunk: Chunk) -> None:
        """Give the reader the next chunk."""
        with self._changed:
            self._chunks.append(chunk)
        self._notify()

    def finish(self, output: RequestOutput) -> None:
        """The request ended well, or by abort."""
        with self._changed:
            self._output = output
        self._notify()

    def fail(self, error: BaseException) -> None:
        """The request failed."""
        with self._changed:
            self._error = error
        self._notify()

    def _notify(self) -> None:
        with self._changed:
            waiters, self._waiters = self._waiters, []
            self._changed.notify_all()
        for loop, waiter in waiters:
            try:
                loop.call_soon_threadsafe(_wake, waiter)
            except RuntimeError:
                # Its event loop is closed: nobody is left to read.
                self.abort()


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
