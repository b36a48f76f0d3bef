"""What every request passes first: the API key, the size of its body, its id."""

import asyncio
import hmac
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hybridcache.server.error_answers import ErrorAnswers
from hybridcache.server.errors import ApiError
from hybridcache.server.settings import ServerSettings

OPEN_PATHS = ("/health", "/version", "/metrics")
"""Answered without a key: probes and scrapers have none, and no text of a client is in there."""
MOST_ID = 128
"""Characters of a request id that is given back."""


class Gate:
    """ASGI middleware; it leaves the streams of bodies and answers as they are."""

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, answers: ErrorAnswers, ended: asyncio.Event
    ) -> None:
        """Once ``ended`` is set, no body is waited for any longer."""
        self._app = app
        self._ended = ended
        self._answers = answers
        self._keys = [key.encode() for key in settings.api_keys]
        self._most_bytes = settings.most_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        asked = headers.get("x-request-id", "")
        name = asked if asked.isascii() and asked.isprintable() and 0 < len(asked) <= MOST_ID else uuid4().hex

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                named = MutableHeaders(scope=message)
                named["x-request-id"] = named["request-id"] = name
            await send(message)

        error = self._refusal(scope["path"], headers)
        if error is not None:
            await self._discard(receive)
            await self._answers.answer(scope["path"], error)(scope, receive, send_named)
            return
        await self._app(scope, self._limited(receive), send_named)

    def _refusal(self, path: str, headers: Headers) -> ApiError | None:
        if self._keys and path not in OPEN_PATHS and not self._has_key(headers):
            return ApiError(
                401,
                "the API key is missing or wrong: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._most_bytes:
            return ApiError(413, self._too_long(), code="body_too_large", headers={"Connection": "close"})
        return None

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        raw = given.encode("utf-8", "surrogateescape")
        # All keys are compared, each in constant time: how long it takes tells nothing of them.
        return any([hmac.compare_digest(raw, key) for key in self._keys])

    def _limited(self, receive: Receive) -> Receive:
        """``receive`` that counts, for bodies that do not say how long they are, and waits until the end."""
        received, more = 0, True

        async def counted() -> Message:
            nonlocal received, more
            if not more:
                return await receive()
            message = await self._part(receive)
            if message is None:
                raise HTTPException(503, "the server ended before the whole body had come")
            received += len(message.get("body", b""))
            more = bool(message.get("more_body"))
            if received > self._most_bytes:
                if message.get("more_body"):
                    await self._discard(receive)
                raise HTTPException(413, self._too_long())
            return message

        return counted

    async def _discard(self, receive: Receive) -> None:
        """Read on, within limits: a client that is cut off while it sends does not see the answer."""
        left, more = self._most_bytes, True
        while more and left > 0 and (message := await self._part(receive)) is not None:
            left -= len(message.get("body", b""))
            more = bool(message.get("more_body"))

    async def _part(self, receive: Receive) -> Message | None:
        """The next part of a body; None when the server ends before it comes."""
        coming, ending = asyncio.ensure_future(receive()), asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait((coming, ending), return_when=asyncio.FIRST_COMPLETED)
            return coming.result() if coming.done() else None
        finally:
            coming.cancel()
            ending.cancel()

    def _too_long(self) -> str:
        return f"the body is longer than {self._most_bytes} bytes"
