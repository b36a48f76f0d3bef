"""POST /v1/chat/completions."""

from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from hybridcache.request_output import Sample
from hybridcache.server.answers import Answers, Part
from hybridcache.server.call import Call
from hybridcache.server.chat_body import ChatBody
from hybridcache.server.logprobs import chat_logprobs
from hybridcache.server.models_list import ServedModels
from hybridcache.server.reply import Reply
from hybridcache.server.tool_calls import CallReader, calls_of, words_of
from hybridcache.text_codec import TextCodec
from hybridcache.worker import RequestOutput, Stream, Worker


class ChatReply(Reply):
    """Answers as messages."""

    prefix, whole_object, chunk_object = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(self, model: str, body: ChatBody, codec: TextCodec) -> None:
        super().__init__(model, include_usage=body.include_usage)
        self._codec = codec
        self._logprobs = bool(body.logprobs)
        self._calls = body.calls(codec)
        self._readers: dict[int, CallReader] = {}
        self._begun: set[int] = set()
        """Answers that have had a part."""
        self._num_calls: Counter[int] = Counter()
        """By answer, so far."""

    def choice(self, prompt: int, sample: Sample, output: RequestOutput) -> dict[str, Any]:
        logprobs = chat_logprobs(sample.logprobs or (), self._codec) if self._logprobs else None
        message: dict[str, Any] = {"role": "assistant", "content": sample.text or "", "refusal": None}
        if self._calls is None:
            return {"message": message, "logprobs": logprobs}
        reader = CallReader(self._calls)
        items = reader.add(sample.text or "") + reader.end()
        calls = calls_of(items)
        message["content"] = words_of(items) or (None if calls else "")
        if calls:
            message["tool_calls"] = [_tool_call(call) for call in calls]
        return {
            "message": message,
            "logprobs": logprobs,
            "finish_reason": _finish(sample.finish_reason, len(calls)),
        }

    def delta(self, part: Part) -> dict[str, Any] | None:
        chunk, at = part.chunk, part.choice
        items = self._read(part)
        text, calls = words_of(items), calls_of(items)
        if not items and not chunk.logprobs and chunk.finish_reason is None:
            return None
        begun = at in self._begun
        self._begun.add(at)
        delta: dict[str, Any] = {} if begun else {"role": "assistant"}
        if text or not begun:
            delta["content"] = text
        if calls:
            first = self._num_calls[at]
            delta["tool_calls"] = [{"index": i, **_tool_call(call)} for i, call in enumerate(calls, first)]
            self._num_calls[at] += len(calls)
        logprobs = chat_logprobs(chunk.logprobs, self._codec) if self._logprobs else None
        reason = _finish(chunk.finish_reason, self._num_calls[at])
        return {"delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def _read(self, part: Part) -> list[str | Call]:
        """Words and calls that a part brings to light."""
        text = part.chunk.text
        if self._calls is None:
            return [text] if text else []
        reader = self._readers.setdefault(part.choice, CallReader(self._calls))
        return reader.add(text) + (reader.end() if part.chunk.finish_reason is not None else [])


def _tool_call(call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments_json}
    return {"id": f"call_{uuid4().hex}", "type": "function", "function": function}


def _finish(reason: str | None, num_calls: int) -> str | None:
    """An answer that ended with calls ended for them."""
    return "tool_calls" if reason == "stop" and num_calls else reason


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
