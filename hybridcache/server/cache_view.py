"""GET /cache, what is cached and what would go next; POST /cache/explain, where a prompt would leave it."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse

from hybridcache.server.body import Items
from hybridcache.server.chat_body import ChatFields
from hybridcache.server.chat_message import ChatMessage
from hybridcache.server.errors import ApiError
from hybridcache.server.generation_body import salt_of
from hybridcache.server.models_list import ServedModels
from hybridcache.server.off_loop import off_loop
from hybridcache.worker import Worker

MOST_NODES = 100_000


class ExplainBody(ChatFields):
    """A prompt, or a chat, as it would be sent."""

    model: str | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    messages: Items[ChatMessage] | None = None  # type: ignore[assignment]
    prompt: str | Items[int] | None = None
    cache_salt: str | None = None


def cache_routes(worker: Worker, models: ServedModels) -> APIRouter:
    """The endpoints, for one worker."""
    router = APIRouter(tags=["cache"])

    @router.get("/cache")
    async def cache(limit: Annotated[int, Query(ge=1, le=MOST_NODES)] = 1_000) -> JSONResponse:
        """Nodes of the tree, bytes, scores, and the order in which they would be evicted."""
        return JSONResponse(await off_loop(lambda: worker.picture(limit).as_dict()))

    @router.post("/cache/explain")
    async def explain(body: ExplainBody, request: Request) -> JSONResponse:
        """Where the prefix of a prompt would be lost now, and why; nothing is generated."""
        headers = models.headers(body.ignored())
        models.check(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "give prompt or messages, one of them", param="prompt")
        salt = salt_of(request.headers, body.cache_salt)

        def act() -> dict[str, Any]:
            prompt = body.chat(worker) if body.prompt is None else body.prompt
            most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
            return worker.explain(prompt, max_tokens=1 if most is None else most, cache_salt=salt).as_dict()

        return JSONResponse(await off_loop(act), headers=headers)

    return router
