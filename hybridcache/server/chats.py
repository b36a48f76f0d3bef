"""POST /v1/chat/completions."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from hybridcache.request_output import Sample
from hybridcache.server.answers import Answers, Part
from hybridcache.server.chat_body import ChatBody
from hybridcache.server.logprobs import chat_logprobs
from hybridcache.server.models_list import ServedModels
from hybridcache.server.reply import Reply
from hybridcache.text_codec import TextCodec
from hybridcache.worker import RequestOutput, Stream, Worker


class ChatReply(Reply):
    """Answers as messages."""

    prefix, whole_object, chunk_object = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(self, model: str, body: ChatBody, codec: TextCodec) -> None:
        super().__init__(model, include_usage=body.include_usage)
        self._codec = codec
        self._logprobs = bool(body.logprobs)
        self._begun: set[int] = set()
        """Answers that have had a part."""

    def choice(self, prompt: int, sample: Sample, output: RequestOutput) -> dict[str, Any]:
        message = {"role": "assistant", "content": sample.text or "", "refusal": None}
        logprobs = chat_logprobs(sample.logprobs or (), self._codec) if self._logprobs else None
        return {"message": message, "logprobs": logprobs}

    def delta(self, part: Part) -> dict[str, Any] | None:
        chunk, begun = part.chunk, part.choice in self._begun
        if not chunk.text and not chunk.logprobs and chunk.finish_reason is None:
            return None
        self._begun.add(part.choice)
        delta: dict[str, Any] = {} if begun else {"role": "assistant"}
        if chunk.text or not begun:
            delta["content"] = chunk.text
        logprobs = chat_logprobs(chunk.logprobs, self._codec) if self._logprobs else None
        return {"delta": delta, "logprobs": logprobs}


def chat_routes(worker: Worker, models: ServedModels) -> APIRouter:
    """The endpoint, for one worker."""
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/chat/completions")
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        """Answer the last message of a chat."""
        headers = models.headers(body.checked())
        model = models.check(body.model)

        def submit() -> Sequence[Stream]:
            params = body.sampling(worker)
            return worker.submit_all([body.chat(worker)], params, **body.cache_settings(request.headers))

        answers = await Answers.to(submit, body.n or 1)
        reply = ChatReply(model, body, worker.codec)
        return await reply.respond(request, answers, stream=bool(body.stream), headers=headers)

    return router
