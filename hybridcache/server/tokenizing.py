"""POST /tokenize and /detokenize, as vLLM has them."""

from collections.abc import Mapping
from typing import Any, ClassVar

from fastapi import APIRouter
from starlette.responses import JSONResponse

from hybridcache.server.body import Body, Items
from hybridcache.server.chat_body import ChatFields
from hybridcache.server.chat_message import ChatMessage
from hybridcache.server.errors import ApiError
from hybridcache.server.models_list import ServedModels
from hybridcache.server.off_loop import off_loop
from hybridcache.worker import Worker


class TokenizeBody(ChatFields):
    """A text, or a chat."""

    model: str | None = None
    messages: Items[ChatMessage] | None = None  # type: ignore[assignment]
    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {"add_generation_prompt": (True,)}


class DetokenizeBody(Body):
    """Token ids."""

    model: str | None = None
    tokens: Items[int]


def tokenizing_routes(worker: Worker, models: ServedModels) -> APIRouter:
    """The endpoints, for one worker."""
    router = APIRouter(tags=["tokens"])

    @router.post("/tokenize")
    async def tokenize(body: TokenizeBody) -> JSONResponse:
        """Token ids of a text or a chat."""
        headers = models.headers(body.ignored())
        models.check(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "give prompt or messages, one of them", param="prompt")
        if body.prompt is None and body.add_special_tokens:
            message = "add_special_tokens: only with prompt; a chat has those of its template"
            raise ApiError(400, message, param="add_special_tokens")

        def encode() -> dict[str, Any]:
            if body.prompt is None:
                tokens = list(body.chat(worker).token_ids)
            else:
                special = body.add_special_tokens is not False
                tokens = worker.codec.encode(body.prompt, add_special_tokens=special)
            found = {"count": len(tokens), "max_model_len": models.max_model_len, "tokens": tokens}
            return found | ({"token_strs": worker.codec.texts(tokens)} if body.return_token_strs else {})

        return JSONResponse(await off_loop(encode), headers=headers)

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> JSONResponse:
        """The text of token ids, special tokens included."""
        headers = models.headers(body.ignored())
        models.check(body.model)
        wrong = [token for token in body.tokens if not 0 <= token < models.vocab_size]
        if wrong:
            last = models.vocab_size - 1
            raise ApiError(400, f"token {wrong[0]}: the vocabulary is 0 to {last}", param="tokens")
        text = await off_loop(lambda: {"prompt": worker.codec.text(body.tokens)})
        return JSONResponse(text, headers=headers)

    return router
