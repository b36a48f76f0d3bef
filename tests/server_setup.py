"""Servers over small workers, and clients of them."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from prometheus_client.parser import text_string_to_metric_families

from hybridcache.server.app import build_app
from hybridcache.server.settings import ServerSettings
from hybridcache.worker import Worker
from tests.worker_setup import MakeWorker

http = httpx.Client(timeout=60)
"""Patient, since machines are shared."""
MakeServer = Callable[..., "Server"]


class Server:
    """An application behind a real socket, in a thread with an event loop of its own."""

    def __init__(self, worker: Worker, **settings: Any) -> None:
        self.worker = worker
        app = build_app(worker, ServerSettings(**{"model_names": ("tiny",)} | settings))
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(1_024)
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for what runs, and end."""
        self._server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))


@contextmanager
def serving(worker: Worker, **settings: Any) -> Iterator[Server]:
    """A server that is closed at the end."""
    server = Server(worker, **settings)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def make_server(make_worker: MakeWorker) -> Iterator[MakeServer]:
    """Calling it with a worker's settings serves one; ``server`` are the server's own settings."""
    made: list[Server] = []

    def make(*, server: dict[str, Any] | None = None, **settings: Any) -> Server:
        made.append(Server(make_worker(**settings), **(server or {})))
        return made[-1]

    yield make
    for each in made:
        each.close()


def wait_idle(worker: Worker, seconds: float = 60) -> None:
    """Wait until nothing runs or waits any more: a server hears of a dropped connection a moment later."""
    wait_until(
        lambda: not (worker.stats().num_running or worker.stats().num_waiting or worker._jobs), seconds
    )


def wait_until(met: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for what another thread is about to do."""
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end
        time.sleep(0.01)


def scrape(server: Server) -> dict[str, float]:
    """What /metrics says: by name, without the prefix and the model's label."""
    answer = http.get(f"{server.url}/metrics")
    assert answer.status_code == 200, answer.text
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.name.startswith("hybridcache:") and family.documentation
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "model_name"}
            assert sample.labels["model_name"] == "tiny"
            inner = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
            name = sample.name.removeprefix("hybridcache:") + (f"{{{inner}}}" if inner else "")
            assert name not in found, f"{name} comes twice"
            found[name] = sample.value
    return found
