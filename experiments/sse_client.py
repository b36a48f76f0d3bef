"""A client of completions over a bare socket, cheap enough not to be what is measured."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> "Address":
        """Of http://HOST:PORT. Raises ValueError for anything else."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"--url {url}: give http://HOST:PORT")
        return cls(parts.hostname, parts.port or 80)


@dataclass(slots=True)
class Answer:
    """One streamed answer; seconds of `perf_counter`."""

    sent: float
    events: list[float] = field(default_factory=list)
    """When each event with text came."""
    ended: float = 0.0
    usage: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    """What went wrong; None for a whole answer."""


async def post(address: Address, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> str:
    """The body of an answer that is not streamed. Raises OSError for a status other than 200."""
    found: list[str] = []
    answer = Answer(perf_counter())
    await _exchange(address, path, body, headers, answer, found.append)
    if answer.error is not None:
        raise OSError(f"POST {path}: {answer.error}")
    return "".join(found)


async def complete(address: Address, body: Mapping[str, Any], headers: Mapping[str, str]) -> Answer:
    """Post to /v1/completions, and note when its events come. What goes wrong is in the answer."""
    answer = Answer(perf_counter())

    def take(line: str) -> None:
        if not line.startswith("data: {"):
            return
        event = json.loads(line[6:])
        if "error" in event:
            answer.error = str(event["error"].get("message"))
        elif event.get("usage"):
            answer.usage = event["usage"]
        elif event["choices"]:
            answer.events.append(perf_counter())

    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    try:
        await _exchange(address, "/v1/completions", body, headers, answer, take)
    except (OSError, ValueError, EOFError) as error:
        answer.error = answer.error or repr(error)
    if not answer.usage and answer.error is None:
        answer.error = "the stream ended without its usage"
    answer.ended = perf_counter()
    return answer


async def _exchange(
    address: Address,
    path: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str],
    answer: Answer,
    take: Callable[[str], object],
) -> None:
    raw = json.dumps(body).encode()
    sent = {
        "Host": address.host,
        "Connection": "close",
        "Content-Type": "application/json",
        "Content-Length": str(len(raw)),
        **headers,
    }
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + raw)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        if " 200 " not in head.partition("\r\n")[0]:
            answer.error = f"{head.partition(chr(13))[0]}: {(await reader.read()).decode()[:300]}"
        elif "transfer-encoding: chunked" in head:
            await _take_chunks(reader, take)
        else:
            take((await reader.read()).decode())
    finally:
        writer.close()


async def _take_chunks(reader: asyncio.StreamReader, take: Callable[[str], object]) -> None:
    pending = b""
    while size := int(await reader.readline(), 16):
        *lines, pending = (pending + (await reader.readexactly(size + 2))[:-2]).split(b"\n")
        for line in lines:
            take(line.decode())
