"""GET /v1/models, and what the endpoints ask about the model's name."""

import time
from typing import Any

from fastapi import APIRouter

from hybridcache.server.body import told
from hybridcache.server.errors import ApiError

IGNORED_HEADER = "x-ignored-fields"


class ServedModels:
    """The names under which one worker's model is served."""

    def __init__(self, names: tuple[str, ...], max_model_len: int, vocab_size: int) -> None:
        """``max_model_len``: tokens of a prompt and its answer at most; ids lie below ``vocab_size``."""
        self.names = names
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self._created = int(time.time())

    def check(self, name: str | None) -> str:
        """The name to answer with; none given: the first one. Raises ApiError for another model."""
        if name is None:
            return self.names[0]
        if name not in self.names:
            raise ApiError(
                404,
                f"model={name!r} is not served here; served: {', '.join(self.names)}",
                param="model",
                code="model_not_found",
            )
        return name

    def describe(self, name: str) -> dict[str, Any]:
        """A model's entry in the list. Raises ApiError."""
        return {
            "id": self.check(name),
            "object": "model",
            "created": self._created,
            "owned_by": "hybridcache",
            "max_model_len": self.max_model_len,
            "vocab_size": self.vocab_size,
        }

    @staticmethod
    def headers(ignored: list[str]) -> dict[str, str]:
        """Response headers: the fields that were ignored, where there are any."""
        return {IGNORED_HEADER: told(ignored)} if ignored else {}


def model_routes(models: ServedModels) -> APIRouter:
    """The endpoints."""
    router = APIRouter(tags=["OpenAI"])

    @router.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        """The served names."""
        return {"object": "list", "data": [models.describe(name) for name in models.names]}

    @router.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        """One of them."""
        return models.describe(name)

    return router
