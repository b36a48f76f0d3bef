"""The client's end of a connection: answered while it is there; nothing is kept running once it has gone."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hybridcache.server.answers import Answers
from hybridcache.server.errors import ApiError, failed

T = TypeVar("T")

GONE_STATUS = 499
"""Nobody reads it; it is for the access log."""


class ClientGone(Exception):
    """The connection was dropped before there was an answer."""


async def unless_gone(request: Request, answers: Answers, work: Awaitable[T]) -> T:
    """The result of ``work``, which is cancelled, and ClientGone raised, when the client goes first.

    Whatever it raises, the answers end with it.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(request.receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    except BaseException:
        answers.abort()
        raise
    finally:
        await _end(working, leaving)


class EventStream(Response):
    """Server-sent events from a generator; what it raises becomes an event, and the last one."""

    media_type = "text/event-stream"

    def __init__(
        self,
        first: str,
        events: AsyncGenerator[str, None],
        answers: Answers,
        error_event: Callable[[ApiError], str],
        headers: Mapping[str, str],
    ) -> None:
        """``first`` was taken from ``events`` already, so that an early error still has a status."""
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers})
        del self.headers["content-length"]
        self._first, self._events, self._answers, self._error_event = first, events, answers, error_event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending, leaving = asyncio.ensure_future(self._send(send)), asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            # First, for what follows may be cancelled.
            self._answers.abort()
            await _end(sending, leaving)
            await self._events.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send(_part(self._first))
        try:
            async for event in self._events:
                await send(_part(event))
        except Exception as error:
            await send(_part(self._error_event(failed(error))))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def event(data: Mapping[str, Any], name: str | None = None) -> str:
    """One server-sent event."""
    text = f"data: {to_json(data)}\n\n"
    return text if name is None else f"event: {name}\n{text}"


def to_json(data: Any) -> str:
    """JSON of one line. Raises ValueError for numbers that JSON has not."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _part(text: str) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text.encode(), "more_body": True}


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*futures: "asyncio.Future[Any]") -> None:
    for future in futures:
        future.cancel()
    await asyncio.gather(*futures, return_exceptions=True)
