"""POST /v1/messages, Anthropic's form of a chat."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any
from uuid import uuid4

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hybridcache.request_output import Sample
from hybridcache.server.answers import Answers
from hybridcache.server.client import EventStream, event, unless_gone
from hybridcache.server.errors import ApiError
from hybridcache.server.messages_body import CountBody, MessagesBody
from hybridcache.server.models_list import ServedModels
from hybridcache.server.off_loop import off_loop
from hybridcache.text_codec import ChatPrompt
from hybridcache.worker import Stream, Worker


class MessageReply:
    """One answer in Anthropic's form."""

    def __init__(self, model: str, prompt: ChatPrompt, *, for_an_hour: bool) -> None:
        """``for_an_hour``: what is cached up to the prompt's last breakpoint lives so long, not 5 minutes."""
        self._head: dict[str, Any] = {
            "id": f"msg_{uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": model,
        }
        self._num_prompt = len(prompt.token_ids)
        self._last_breakpoint = max(prompt.breakpoints, default=0)
        self._for_an_hour = for_an_hour

    def usage(self, num_cached: int, num_generated: int) -> dict[str, Any]:
        """The prompt in three parts that add up: read, written up to the last breakpoint, and the rest."""
        created = max(self._last_breakpoint - num_cached, 0)
        return {
            "input_tokens": self._num_prompt - num_cached - created,
            "cache_read_input_tokens": num_cached,
            "cache_creation_input_tokens": created,
            "cache_creation": {
                "ephemeral_5m_input_tokens": 0 if self._for_an_hour else created,
                "ephemeral_1h_input_tokens": created if self._for_an_hour else 0,
            },
            "output_tokens": num_generated,
        }

    def whole(self, sample: Sample, num_cached: int) -> dict[str, Any]:
        """The JSON object of an answer that is not streamed."""
        return {
            **self._head,
            "content": [{"type": "text", "text": sample.text or ""}],
            **_stop(sample),
            "usage": self.usage(num_cached, sample.num_generated_tokens),
        }

    async def events(self, answers: Answers) -> AsyncGenerator[str, None]:
        """The events of a stream. Raises ApiError."""
        (stream,) = answers.streams
        begun = False
        async for part in answers.parts():
            # What the cache gave is known with the first part.
            text = "" if begun else self._beginning(stream.num_cached_tokens)
            begun = True
            if part.chunk.text:
                delta = {"type": "text_delta", "text": part.chunk.text}
                text += _event("content_block_delta", index=0, delta=delta)
            if text:
                yield text
        output = stream.result()
        sample = output.samples[0]
        usage = self.usage(output.num_cached_tokens, sample.num_generated_tokens)
        yield _event("content_block_stop", index=0)
        yield _event("message_delta", delta=_stop(sample), usage=usage)
        yield _event("message_stop")

    def _beginning(self, num_cached: int) -> str:
        usage = self.usage(num_cached, 0)
        message = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        block = {"type": "text", "text": ""}
        return _event("message_start", message=message) + _event(
            "content_block_start", index=0, content_block=block
        )


def message_routes(worker: Worker, models: ServedModels) -> APIRouter:
    """The endpoints, for one worker."""
    router = APIRouter(tags=["Anthropic"])

    @router.post("/v1/messages")
    async def messages(body: MessagesBody, request: Request) -> Response:
        """Answer the last message of a chat."""
        headers = models.headers(body.ignored())
        model = models.check(body.model)
        prompts: list[ChatPrompt] = []

        def submit() -> Sequence[Stream]:
            params = body.sampling(worker)
            prompts.append(body.chat(worker))
            return worker.submit_all(prompts, params, **body.cache_settings(request.headers))

        answers = await Answers.to(submit)
        reply = MessageReply(model, prompts[0], for_an_hour="1h" in body.conversation().ttls)
        if not body.stream:
            (output,) = await unless_gone(request, answers, answers.outputs())
            return JSONResponse(reply.whole(output.samples[0], output.num_cached_tokens), headers=headers)
        events = reply.events(answers)
        first = await unless_gone(request, answers, anext(events))
        return EventStream(first, events, answers, _error_event, headers)

    @router.post("/v1/messages/count_tokens")
    async def count_tokens(body: CountBody) -> JSONResponse:
        """Tokens of the prompt that a body makes."""
        headers = models.headers(body.ignored())
        models.check(body.model)
        prompt = await off_loop(lambda: body.chat(worker))
        return JSONResponse({"input_tokens": len(prompt.token_ids)}, headers=headers)

    return router


def _stop(sample: Sample) -> dict[str, Any]:
    """Why the answer ended, in Anthropic's words."""
    if sample.finish_reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    found = sample.stop_text
    return {"stop_reason": "end_turn" if found is None else "stop_sequence", "stop_sequence": found}


def _event(name: str, **data: Any) -> str:
    return event({"type": name, **data}, name)


def _error_event(error: ApiError) -> str:
    return event(error.body(anthropic=True), "error")
