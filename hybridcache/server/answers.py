"""The answers to one HTTP request, while they come."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from hybridcache.request_output import Chunk
from hybridcache.server.errors import ApiError, failed
from hybridcache.server.off_loop import off_loop
from hybridcache.worker import RequestOutput, Stream


class Part(NamedTuple):
    """A chunk, and which of the request's answers it goes on with."""

    choice: int
    """Index of the answer: the first prompt's `n`, then the second's."""
    prompt: int
    chunk: Chunk


class Answers:
    """One stream a prompt. Whoever stops reading calls `abort`; nothing is left running then."""

    def __init__(self, streams: Sequence[Stream], n: int = 1) -> None:
        """``n`` answers a prompt."""
        self.streams = streams
        self._n = n

    @classmethod
    async def to(cls, submit: Callable[[], Sequence[Stream]], n: int = 1) -> "Answers":
        """What ``submit`` queues, which may take its time (it encodes texts). Raises ApiError."""
        return cls(await off_loop(submit), n)

    def abort(self) -> None:
        """End what has not ended."""
        for stream in self.streams:
            stream.abort()

    async def outputs(self) -> list[RequestOutput]:
        """All of them, whole. Raises ApiError, and aborts the others, when one fails."""
        try:
            return [await stream for stream in self.streams]
        except Exception as error:
            raise failed(error) from error
        finally:
            self.abort()

    async def parts(self) -> AsyncIterator[Part]:
        """As they come. Raises ApiError, and aborts the others, when one fails."""
        try:
            async for prompt, chunk in self._chunks():
                yield Part(prompt * self._n + chunk.sample, prompt, chunk)
        except ApiError:
            raise
        except Exception as error:
            raise failed(error) from error
        finally:
            self.abort()

    async def _chunks(self) -> AsyncIterator[tuple[int, Chunk]]:
        if len(self.streams) == 1:
            async for chunk in self.streams[0]:
                yield 0, chunk
            return
        come: asyncio.Queue[tuple[int, Chunk] | Exception | None] = asyncio.Queue()

        async def read(prompt: int, stream: Stream) -> None:
            try:
                async for chunk in stream:
                    come.put_nowait((prompt, chunk))
            except Exception as error:
                come.put_nowait(error)
            else:
                come.put_nowait(None)

        readers = [asyncio.create_task(read(i, stream)) for i, stream in enumerate(self.streams)]
        try:
            left = len(readers)
            while left:
                found = await come.get()
                if found is None:
                    left -= 1
                elif isinstance(found, Exception):
                    raise found
                else:
                    yield found
        finally:
            for reader in readers:
                reader.cancel()
