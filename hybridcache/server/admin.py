"""Endpoints about the server itself: /health, /version, /flush_cache."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse

from hybridcache import __version__
from hybridcache.server.body import Body, told
from hybridcache.server.errors import ApiError
from hybridcache.server.generation_body import salt_of
from hybridcache.server.off_loop import off_loop
from hybridcache.worker import Worker


class FlushBody(Body):
    """What to forget."""

    cache_salt: str | None = None


def admin_routes(worker: Worker) -> APIRouter:
    """The endpoints, for one worker."""
    router = APIRouter(tags=["server"])

    @router.head("/health", include_in_schema=False)
    @router.get("/health")
    async def health() -> JSONResponse:
        """200 while requests are taken; 503 once the engine has died or been closed."""
        healthy = worker.health
        return JSONResponse({"status": "ok" if healthy else "down"}, 200 if healthy else 503)

    @router.get("/version")
    async def version() -> dict[str, Any]:
        """Of the package."""
        return {"version": __version__}

    @router.post("/flush_cache")
    async def flush_cache(request: Request, body: FlushBody | None = None) -> JSONResponse:
        """Forget what is cached, of one salt or of all; requests that run go on.

        The header of a proxy that knows the tenant counts here too, so that a tenant forgets only its own.
        """
        salt = salt_of(request.headers, None if body is None else body.cache_salt)
        if body is not None and (unknown := body.ignored()):
            # One that was meant for the salt would forget everybody's.
            message = f"unknown fields: {told(unknown)}; cache_salt is the only one"
            raise ApiError(400, message, param=unknown[0])
        await off_loop(lambda: worker.flush(salt))
        return JSONResponse({"status": "ok"})

    return router
