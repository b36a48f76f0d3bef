"""How a server starts and ends, and what its command says to mistakes."""

import asyncio
import inspect
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from hybridcache.cli import main
from hybridcache.server.app import build_app
from hybridcache.server.http_version import EitherVersion
from hybridcache.server.serve import Server, serve_settings
from hybridcache.server.settings import ServerSettings
from hybridcache.worker import Worker
from tests.http_client import Heard, ask
from tests.server_setup import wait_until
from tests.worker_setup import MakeWorker, make_worker

__all__ = ["make_worker"]

ASKED: dict[str, Any] = {"prompt": "Once upon a time", "temperature": 0.0, "ignore_eos": True}


@contextmanager
def stopped_in(worker: Worker, grace_seconds: float) -> Iterator[tuple[int, Server]]:
    """Its port, and a server that has ended when the block has, well before it would cut connections."""
    listening = socket.create_server(("127.0.0.1", 0))
    ended = asyncio.Event()
    config = uvicorn.Config(
        build_app(worker, ServerSettings(api_keys=("key",)), ended=ended),
        http=EitherVersion,
        log_level="warning",
        lifespan="off",
        timeout_graceful_shutdown=1_000,
    )
    server = Server(config, worker, ended, "ready", grace_seconds)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
    thread.start()
    try:
        yield listening.getsockname()[1], server
    finally:
        server.should_exit = True
        thread.join(60)
    assert not thread.is_alive() and not worker.health


def exchange(port: int, *parts: bytes) -> tuple[bytes, bytes]:
    """Head and body of what comes until the server closes; the request is sent in parts."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            client.sendall(part)
            time.sleep(0.01)
        answer = b"".join(iter(lambda: client.recv(65_536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.lower(), body


@pytest.mark.parametrize("stream", [True, False])
def test_http_1_0_has_no_chunks(make_worker: MakeWorker, stream: bool) -> None:
    body = json.dumps(ASKED | {"max_tokens": 4, "stream": stream}).encode()
    lines = b"\r\nAuthorization: Bearer key\r\nContent-Type: application/json\r\nConnection: close"
    rest = lines + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with stopped_in(make_worker(), 0) as (port, _):
        for cut in (0, 3, 24, 30):
            first = b"POST /v1/completions HTTP/1.0" + rest
            head, old = exchange(port, first[:cut], first[cut:])
            assert b" 200 ok" in head and b"transfer-encoding" not in head and b"connection: close" in head
            assert old.startswith(b"data: {" if stream else b"{")
        head, new = exchange(port, b"POST /v1/completions HTTP/1.1\r\nHost: x" + rest)
        assert (b"transfer-encoding: chunked" in head) == stream
        if stream:
            assert old.endswith(b"data: [DONE]\n\n") and new.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        else:
            assert json.loads(old)["choices"] == json.loads(new)["choices"]
        assert b" 400 " in exchange(port, b"HTTP/1.0 nonsense\r\n\r\n")[0]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages"])
@pytest.mark.parametrize("in_time", [True, False])
def test_what_runs_at_the_end_finishes_or_fails(make_worker: MakeWorker, path: str, in_time: bool) -> None:
    worker = make_worker()
    chat = [{"role": "user", "content": "Once?"}]
    body = ASKED | {"max_tokens": 40 if in_time else 9_000} if path == "/v1/completions" else {
        "messages": chat, "max_tokens": 40 if in_time else 9_000
    }  # fmt: skip

    async def ask_and_stop() -> list[Heard]:
        asking = [
            asyncio.create_task(ask(port, path, body | {"stream": stream}, headers={"x-api-key": "key"}))
            for stream in (True, False)
        ]
        await asyncio.to_thread(wait_until, lambda: worker.stats().engine.generated_tokens > 2)
        server.should_exit = True
        return await asyncio.gather(*asking)

    with stopped_in(worker, 60.0 if in_time else 0.3) as (port, server):
        streamed, whole = asyncio.run(ask_and_stop())
    if in_time:
        assert streamed.status == whole.status == 200
        assert streamed.done if path == "/v1/completions" else "message_stop" in streamed.body
    else:
        # Told, not cut: an event in the stream, an error where nothing was sent yet.
        assert streamed.status == 200 and "the worker is closed" in streamed.events[-1]["error"]["message"]
        assert whole.status == 503 and "the worker is closed" in whole.body
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


@pytest.mark.parametrize(
    ("key", "sent", "status"), [("key", b'{"prompt": "On', 503), ("key", b"", 503), ("no", b"{", 401)]
)
def test_half_a_body_is_not_waited_for(
    make_worker: MakeWorker, caplog: pytest.LogCaptureFixture, key: str, sent: bytes, status: int
) -> None:
    worker = make_worker()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: test\r\nX-Api-Key: {key}\r\nContent-Length: 99\r\n\r\n"
    with stopped_in(worker, 0.3) as (port, server):
        client = socket.create_connection(("127.0.0.1", port), 60)
        client.sendall(head.encode() + sent)
        wait_until(lambda: bool(server.server_state.tasks))
        server.should_exit = True
        with client:
            answer = b"".join(iter(lambda: client.recv(2**16), b"")).decode()
    assert answer.startswith(f"HTTP/1.1 {status} "), answer
    told = '"the server ended before the whole body had come"', '"code":"engine_unavailable"'
    assert all(text in answer for text in told) or status == 401
    assert not [each for each in caplog.records if each.exc_info or each.levelname == "ERROR"]


def test_the_command_serves_until_it_is_told_to_stop() -> None:
    arguments = [
        "serve",
        "tiny",
        "--port",
        "0",
        "budget_gb=0.02",
        "--quiet",
        "eviction=marconi",
        "eviction.alpha=2",
    ]
    command = [sys.executable, "-m", "hybridcache", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            ready = next(line for line in process.stderr if " at http://" in line)
            found = re.search(r"tiny at http://127\.0\.0\.1:(\d+)/v1", ready)
            assert found is not None, ready

            async def ask_and_stop() -> Heard:
                asking = asyncio.create_task(
                    ask(int(found[1]), "/v1/completions", ASKED | {"max_tokens": 60, "stream": True})
                )
                await asyncio.sleep(0.3)
                process.send_signal(signal.SIGTERM)
                return await asking

            answer = asyncio.run(ask_and_stop())
            assert answer.done and answer.choices[-1]["finish_reason"] == "length"
            rest = process.stderr.read()
        finally:
            process.kill() if process.poll() is None and sys.exc_info()[0] else None
        assert process.wait(60) in (0, -signal.SIGTERM) and "Traceback" not in rest


def test_a_port_in_use_is_said_before_the_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(SystemExit, match="2"):
            main(["serve", "no-such-model", "--port", port])
    assert f"cannot listen on http://127.0.0.1:{port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-model"], "neither a folder nor a preset"),
        (["tiny", "budget_gb=0"], "budget_gb=0"),
        (["tiny", "eviction=none"], "Could not find 'eviction/none'"),
        (["tiny", "novel=1"], "Could not override 'novel'"),
        (["tiny", "+novel=1"], "novel=1: there is no such setting"),
        (["tiny", "--port", "99999"], "--port 99999"),
        (["tiny", "--host", "256.0.0.1.1"], "no address to listen on"),
        (["tiny", "shutdown_seconds=-1"], "shutdown_seconds=-1"),
        (["tiny", "shutdown_seconds=inf"], "shutdown_seconds=inf"),
        (["tiny", "max_queue=-1"], "max_queue=-1"),
        (["tiny", "--api-key", ""], "an API key is empty"),
        (["tiny", "--max-model-len", "1"], "max_model_len=1"),
        (["tiny", "--novel"], "unrecognized arguments: --novel"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    port = [] if "--port" in arguments else ["--port", "0"]
    with pytest.raises(SystemExit, match="2"):
        main(["serve", arguments[0], *port, *arguments[1:]])
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("hybridcache: error: ") and message in last


def test_nobody_is_let_in_unawares(caplog: pytest.LogCaptureFixture) -> None:
    for host, warned in (("0.0.0.0", True), ("localhost", False), ("127.0.0.1", False)):
        caplog.clear()
        with pytest.raises(SystemExit):
            main(["serve", "no-such-model", "--host", host, "--port", "0"])
        assert ("see --api-key" in caplog.text) == warned, host


def test_settings_left_out_are_the_workers() -> None:
    settings = serve_settings([])
    names = {"max_queue", "shutdown_seconds", "eviction", "admission"}
    defaults = {name: value.default for name, value in inspect.signature(Worker).parameters.items()}
    for name in settings.keys() - names:
        assert settings[name] == defaults[name], name
    assert settings["eviction"]["name"] == defaults["eviction"]
    assert settings["admission"]["name"] == defaults["admission"]
