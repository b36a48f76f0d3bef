"""`hybridcache serve`: a worker, the application over it, and the socket."""

import argparse
import asyncio
import inspect
import ipaddress
import logging
import os
import socket
from collections.abc import Mapping
from typing import Any

import uvicorn
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from hybridcache.server.app import build_app
from hybridcache.server.http_version import EitherVersion
from hybridcache.server.settings import ServerSettings
from hybridcache.worker import Worker

log = logging.getLogger("hybridcache")

AFTER_GRACE_SECONDS = 10
"""For streams to tell their clients that they failed; then connections are cut."""


class Server(uvicorn.Server):
    """Says where it serves, and ends as it should: what runs may finish for a while, then it fails."""

    def __init__(
        self, config: uvicorn.Config, worker: Worker, ended: asyncio.Event, ready: str, grace_seconds: float
    ) -> None:
        """``ended`` is the application's; ``ready`` is logged once connections are taken."""
        super().__init__(config)
        self._worker, self._ended = worker, ended
        self._ready, self._grace_seconds = ready, grace_seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        log.info(self._ready)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, wait for the answers that run, and close the worker."""
        log.info("stopping: running answers have %g seconds to end", self._grace_seconds)
        loop = asyncio.get_running_loop()

        def end() -> None:
            self._ended.set()
            loop.run_in_executor(None, self._worker.close)

        timer = loop.call_later(self._grace_seconds, end)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()
            await asyncio.to_thread(self._worker.close)


def serve(options: argparse.Namespace) -> None:
    """Serve until a signal ends it. Raises ValueError, OSError, Hydra's errors for what the user can mend."""
    settings = serve_settings(options.overrides)
    grace_seconds = settings.pop("shutdown_seconds")
    if not isinstance(grace_seconds, int | float) or not 0 <= grace_seconds < float("inf"):
        raise ValueError(f"shutdown_seconds={grace_seconds!r}: give seconds, at least 0 and not infinite")
    keys = tuple(options.api_key or ())
    names = tuple(options.served_model_name or [options.model])
    server_settings = ServerSettings(names, keys)
    bound = bind(options.host, options.port)
    if not keys and not _is_loopback(options.host):
        log.warning("everybody who reaches %s can use the model: see --api-key", options.host)
    worker = Worker(
        options.model,
        dtype=options.dtype,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        **settings,
    )
    try:
        ended = asyncio.Event()
        app = build_app(worker, server_settings, ended=ended)
        config = uvicorn.Config(
            app,
            http=EitherVersion,
            log_level="warning" if options.quiet else "info",
            access_log=not options.quiet,
            lifespan="off",
            timeout_graceful_shutdown=int(grace_seconds) + AFTER_GRACE_SECONDS,
        )
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        where = _url(options.host, bound.getsockname()[1])
        ready = f"{', '.join(names)} at {where}/v1, its API described at {where}/docs"
        try:
            Server(config, worker, ended, ready, grace_seconds).run(sockets=[bound])
        except KeyboardInterrupt:
            # uvicorn hands the signal on once all has ended well.
            log.info("stopped")
    finally:
        worker.close()
        bound.close()


def serve_settings(overrides: list[str]) -> dict[str, Any]:
    """The resolved conf/serve.yaml: arguments of Worker, and shutdown_seconds. Raises Hydra's errors."""
    with initialize_config_module("hybridcache.conf", version_base="1.3"):
        found = OmegaConf.to_container(compose("serve", overrides), resolve=True)
    assert isinstance(found, Mapping)
    settings = {str(name): value for name, value in found.items()}
    if unknown := sorted(
        settings.keys() - inspect.signature(Worker).parameters.keys() - {"shutdown_seconds"}
    ):
        raise ValueError(
            f"{unknown[0]}={settings[unknown[0]]!r}: there is no such setting in conf/serve.yaml"
        )
    return settings


def bind(host: str, port: int) -> socket.socket:
    """A socket at the address, not listening yet. Raises OSError or ValueError that says what to do."""
    if not 0 <= port < 2**16:
        raise ValueError(f"--port {port}: give 0 to {2**16 - 1}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except socket.gaierror as error:
        raise OSError(f"--host {host} --port {port}: no address to listen on ({error})") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(f"cannot listen on {_url(host, port)}: {reason}; choose another --port") from error
    return bound


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
