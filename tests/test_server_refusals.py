"""What a server does not take: answered, counted, and nothing is left of it."""

import asyncio
import json
from typing import Any

import pytest
from starlette.types import Message

from hybridcache.server.app import build_app
from hybridcache.server.errors import REASONS
from hybridcache.server.settings import ServerSettings
from tests.server_setup import MakeServer, http, make_server, scrape, wait_idle
from tests.worker_setup import MakeWorker, check_idle, make_worker, tokens

__all__ = ["make_server", "make_worker"]

ASKED = {"prompt": "Once upon a time", "max_tokens": 2, "temperature": 0.0, "ignore_eos": True}


def test_refused_requests_are_counted_by_reason(make_server: MakeServer) -> None:
    server = make_server(
        max_model_len=1_500, budget_gb=0.0012, max_num_seqs=2, max_queue=1,
        server={"api_keys": ("secret",), "most_body_bytes": 10_000},
    )  # fmt: skip
    key = {"x-api-key": "secret"}

    def send(headers: dict[str, str] = key, path: str = "/v1/completions", **fields: Any) -> int:
        return http.post(server.url + path, json=ASKED | fields, headers=headers).status_code

    def refused() -> dict[str, float]:
        seen = scrape(server)
        lost = sum(value for name, value in seen.items() if name.startswith("lost_tokens_total"))
        assert seen["prefix_cache_hits_total"] + lost == seen["prefix_cache_queries_total"]
        return {reason: seen[f"requests_refused_total{{reason={reason}}}"] for reason in REASONS}

    assert refused() == dict.fromkeys(REASONS, 0)
    assert send() == 200
    queries = scrape(server)["prefix_cache_queries_total"]
    # Too long for the model: it is not looked up. Too long for the budget: its tokens are lost.
    assert send(prompt=tokens(1_499)) == 400
    assert scrape(server)["prefix_cache_queries_total"] == queries
    assert send(prompt=tokens(1_400)) == 400
    seen = scrape(server)
    assert seen["lost_tokens_total{reason=too_large}"] == 1_400
    assert seen["prefix_cache_queries_total"] == queries + 1_400
    running = [server.worker.submit(tokens(9, i)) for i in range(3)]
    assert send() == 429
    for stream in running:
        stream.abort()
        stream.wait(60)
    assert send(n=4) == 400
    assert send(max_tokens="5") == 400
    assert send(best_of=2) == 400
    assert (
        send(path="/v1/chat/completions", messages=[{"role": "user", "content": [{"type": "image"}]}]) == 400
    )
    assert send(model="other") == 404
    assert send({"x-api-key": "public"}) == 401
    assert send(prompt="a" * 10_000) == 413
    parts = (b'{"prompt": "', *[b"a" * 1_000] * 12, b'"}')
    assert http.post(f"{server.url}/v1/completions", content=iter(parts), headers=key).status_code == 413
    assert http.get(f"{server.url}/nothing", headers=key).status_code == 404
    assert http.get(f"{server.url}/v1/completions", headers=key).status_code == 405
    assert send(temperature=-1.0) == 400
    assert refused() == {
        "context_length_exceeded": 2, "queue_full": 1, "invalid_body": 1, "unsupported_field": 1,
        "unsupported_content": 1, "model_not_found": 1, "invalid_api_key": 1, "body_too_large": 2,
        "invalid_request_error": 3, "not_found_error": 1,
    }  # fmt: skip
    assert send() == 200
    assert sum(refused().values()) == 14


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages"])
@pytest.mark.parametrize("kind", ["http.response.start", "http.response.body"])
def test_case_028_a_stream_that_cannot_begin_frees_everything(
    make_worker: MakeWorker, path: str, kind: str
) -> None:
    worker = make_worker()
    app = build_app(worker, ServerSettings())
    fields = {"messages": [{"role": "user", "content": "Once?"}], "max_tokens": 9_000, "stream": True}
    body = json.dumps(fields if path == "/v1/messages" else ASKED | {"max_tokens": 9_000, "stream": True})
    headers = [(b"content-type", b"application/json"), (b"host", b"test")]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    come = [{"type": "http.request", "body": body.encode(), "more_body": False}]

    async def receive() -> Message:
        if come:
            return come.pop()
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == kind:
            raise OSError("the connection is gone")

    async def ask() -> None:
        with pytest.raises(OSError, match="connection is gone") as held:
            await app(scope, receive, send)
        # Whoever keeps the error, for a log, keeps the response and its generators: nobody tidies up for it.
        assert held.tb is not None
        await asyncio.to_thread(wait_idle, worker, 20)

    asyncio.run(ask())
    assert worker.stats().engine.aborted == 1
    check_idle(worker)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion"),
        (b'{"prompt": "a", "seed": ' + b"9" * 5_000 + b"}", "digits"),
        (b'{"prompt": "\xff"}', "utf-8"),
    ],
    ids=["deep", "long", "bytes"],
)
def test_a_body_that_cannot_be_read_is_told(make_server: MakeServer, body: bytes, says: str) -> None:
    server = make_server()
    for path in ("/v1/completions", "/v1/messages"):
        found = http.post(server.url + path, content=body, headers={"content-type": "application/json"})
        assert found.status_code == 400
        message = found.json()["error"]["message"]
        assert "cannot be read as JSON" in message and says in message
    assert scrape(server)["requests_refused_total{reason=invalid_body}"] == 2
