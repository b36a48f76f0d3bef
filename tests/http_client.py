"""A client over bare sockets, that can leave whenever it likes."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Heard:
    """What came back before the end of the connection, or before the client left."""

    status: int = 0
    body: str = ""
    left: bool = False
    """Whether the client dropped the connection, with the answer unfinished for all it knew."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """Of a stream, [DONE] not among them."""

    @property
    def done(self) -> bool:
        """Whether a stream came to its end."""
        return self.body.endswith("data: [DONE]\n\n")

    @property
    def choices(self) -> list[dict[str, Any]]:
        """All choices of all events, or of the answer."""
        objects = self.events or ([json.loads(self.body)] if self.body and not self.left else [])
        return [choice for each in objects for choice in each.get("choices", ())]

    def text(self, index: int = 0) -> str:
        """Of one answer: of /v1/completions or /v1/chat/completions, streamed or not."""
        found = ""
        for choice in self.choices:
            if choice["index"] == index:
                message = choice.get("delta") or choice.get("message") or {}
                found += choice.get("text") or message.get("content") or ""
        return found

    @property
    def usage(self) -> dict[str, Any] | None:
        """The usage block, if there was one."""
        objects = self.events or ([json.loads(self.body)] if self.body and not self.left else [])
        return next((each["usage"] for each in objects if each.get("usage")), None)


async def ask(
    port: int,
    path: str,
    body: Mapping[str, Any],
    *,
    headers: Mapping[str, str] | None = None,
    leave_after_seconds: float | None = None,
    leave_after_events: int | None = None,
) -> Heard:
    """Post ``body``; leave after so many seconds or events, or never."""
    raw = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: test",
        "Connection: close",
        "Content-Type: application/json",
        f"Content-Length: {len(raw)}",
    ]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    heard = Heard()
    try:
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + raw)
        try:
            async with asyncio.timeout(leave_after_seconds):
                await _read(reader, heard, leave_after_events)
        except TimeoutError:
            heard.left = True
    finally:
        # A reset, as when a client dies.
        writer.transport.abort()
    return heard


async def _read(reader: asyncio.StreamReader, heard: Heard, leave_after_events: int | None) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    heard.status = int(head.split()[1])
    if b"chunked" not in head.lower():
        heard.body = (await reader.read()).decode()
        return
    pending = b""
    while True:
        if leave_after_events is not None and len(heard.events) >= leave_after_events:
            heard.left = not heard.done
            return
        size = int(await reader.readline(), 16)
        pending += (await reader.readexactly(size + 2))[:-2]
        *lines, pending = pending.split(b"\n")
        for line in lines:
            heard.body += line.decode() + "\n"
            if line.startswith(b"data: {"):
                heard.events.append(json.loads(line[6:]))
        if not size:
            assert not pending
            return
