"""POST /v1/messages, Anthropic's form of a chat."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any
from uuid import uuid4

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hybridcache.request_output import Sample
from hybridcache.server.answers import Answers
from hybridcache.server.call import Call
from hybridcache.server.client import EventStream, event, unless_gone
from hybridcache.server.errors import ApiError
from hybridcache.server.messages_body import CountBody, MessagesBody
from hybridcache.server.models_list import ServedModels
from hybridcache.server.off_loop import off_loop
from hybridcache.server.tool_calls import CallFormat, CallReader, calls_of
from hybridcache.text_codec import ChatPrompt
from hybridcache.worker import Stream, Worker


class MessageReply:
    """One answer in Anthropic's form."""

    def __init__(
        self, model: str, prompt: ChatPrompt, calls: CallFormat | None, *, for_an_hour: bool
    ) -> None:
        """``calls``: how calls are read out of the answer, if they are.

        ``for_an_hour``: what is cached up to the prompt's last breakpoint lives so long, not 5 minutes.
        """
        self._head: dict[str, Any] = {
            "id": f"msg_{uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": model,
        }
        self._num_prompt = len(prompt.token_ids)
        self._last_breakpoint = max(prompt.breakpoints, default=0)
        self._for_an_hour = for_an_hour
        self._reader = None if calls is None else CallReader(calls)

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
        items = self._read(sample.text or "", ended=True)
        content: list[dict[str, Any]] = []
        for item in items or [""]:
            if isinstance(item, Call):
                content.append({**_tool_use(item), "input": item.arguments})
            elif content and content[-1]["type"] == "text":
                content[-1]["text"] += item
            else:
                content.append({"type": "text", "text": item})
        return {
            **self._head,
            "content": content,
            **_stop(sample, called=bool(calls_of(items))),
            "usage": self.usage(num_cached, sample.num_generated_tokens),
        }

    async def events(self, answers: Answers) -> AsyncGenerator[str, None]:
        """The events of a stream. Raises ApiError."""
        (stream,) = answers.streams
        blocks, begun, called = _Blocks(), False, False
        async for part in answers.parts():
            # What the cache gave is known with the first part.
            text = "" if begun else self._beginning(stream.num_cached_tokens)
            begun = True
            items = self._read(part.chunk.text, ended=part.chunk.finish_reason is not None)
            called = called or bool(calls_of(items))
            if text := text + "".join(map(blocks.add, items)):
                yield text
        output = stream.result()
        sample = output.samples[0]
        usage = self.usage(output.num_cached_tokens, sample.num_generated_tokens)
        yield blocks.end() + _event("message_delta", delta=_stop(sample, called=called), usage=usage)
        yield _event("message_stop")

    def _beginning(self, num_cached: int) -> str:
        usage = self.usage(num_cached, 0)
        message = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        return _event("message_start", message=message)

    def _read(self, text: str, *, ended: bool) -> list[str | Call]:
        """Words and calls that the next part of the text brings to light."""
        if self._reader is None:
            return [text] if text else []
        return self._reader.add(text) + (self._reader.end() if ended else [])


class _Blocks:
    """The content blocks of a stream: texts, and a tool's use for each call."""

    def __init__(self) -> None:
        self._count = 0
        """Blocks begun."""
        self._open = False
        """Whether the last one is a text that goes on."""

    def add(self, item: str | Call) -> str:
        """The events of what comes next."""
        if isinstance(item, str):
            return self._text() + self._delta({"type": "text_delta", "text": item})
        events = self._close() + self._begin({**_tool_use(item), "input": {}})
        events += self._delta({"type": "input_json_delta", "partial_json": item.arguments_json})
        return events + self._stop()

    def end(self) -> str:
        """Nothing comes any more; an answer has one block at least."""
        return ("" if self._count else self._text()) + self._close()

    def _text(self) -> str:
        if self._open:
            return ""
        self._open = True
        return self._begin({"type": "text", "text": ""})

    def _close(self) -> str:
        if not self._open:
            return ""
        self._open = False
        return self._stop()

    def _begin(self, block: dict[str, Any]) -> str:
        self._count += 1
        return _event("content_block_start", index=self._count - 1, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> str:
        return _event("content_block_delta", index=self._count - 1, delta=delta)

    def _stop(self) -> str:
        return _event("content_block_stop", index=self._count - 1)


def message_routes(worker: Worker, models: ServedModels) -> APIRouter:
    """The endpoints, for one worker."""
    router, codec = APIRouter(tags=["Anthropic"]), worker.codec

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
        calls = body.calls(codec)
        reply = MessageReply(model, prompts[0], calls, for_an_hour="1h" in body.conversation().ttls)
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


def _tool_use(call: Call) -> dict[str, Any]:
    """A block, but for its input."""
    return {"type": "tool_use", "id": f"toolu_{uuid4().hex}", "name": call.name}


def _stop(sample: Sample, *, called: bool) -> dict[str, Any]:
    """Why the answer ended, in Anthropic's words."""
    if sample.finish_reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if called:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    found = sample.stop_text
    return {"stop_reason": "end_turn" if found is None else "stop_sequence", "stop_sequence": found}


def _event(name: str, **data: Any) -> str:
    return event({"type": name, **data}, name)


def _error_event(error: ApiError) -> str:
    return event(error.body(anthropic=True), "error")
