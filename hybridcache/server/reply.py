"""What OpenAI's two generating endpoints have in common: an object, or chunks of one."""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, ClassVar
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hybridcache.request_output import Sample
from hybridcache.server.answers import Answers, Part
from hybridcache.server.client import EventStream, event, unless_gone
from hybridcache.server.errors import ApiError
from hybridcache.server.usage import usage
from hybridcache.worker import RequestOutput

DONE = "data: [DONE]\n\n"


class Reply(ABC):
    """The form of one request's answers."""

    prefix: ClassVar[str]
    """Of ids."""
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, model: str, *, include_usage: bool) -> None:
        """``include_usage``: a stream's last chunk has the usage, and no choices."""
        self._include_usage = include_usage
        self._head = {"id": self.prefix + uuid4().hex, "created": int(time.time()), "model": model}

    @abstractmethod
    def choice(self, prompt: int, sample: Sample, output: RequestOutput) -> dict[str, Any]:
        """A whole answer to the prompt of this index, but for the index, and the sample's finish_reason."""

    @abstractmethod
    def delta(self, part: Part) -> dict[str, Any] | None:
        """The next part of one, likewise; None: there is nothing to tell yet."""

    def whole(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """The JSON object of an answer that is not streamed."""
        answers = [
            (prompt, sample, output) for prompt, output in enumerate(outputs) for sample in output.samples
        ]
        choices = [
            {"index": index, "finish_reason": answer[1].finish_reason, **self.choice(*answer)}
            for index, answer in enumerate(answers)
        ]
        return {**self._head, "object": self.whole_object, "choices": choices, "usage": usage(outputs)}

    async def events(self, answers: Answers) -> AsyncGenerator[str, None]:
        """The events of a stream. Raises ApiError."""
        head = {**self._head, "object": self.chunk_object}
        tail = {"usage": None} if self._include_usage else {}
        async for part in answers.parts():
            delta = self.delta(part)
            reason = part.chunk.finish_reason
            if delta is not None:
                choice = {"index": part.choice, "finish_reason": reason, **delta}
                yield event({**head, "choices": [choice], **tail})
        if self._include_usage:
            outputs = [stream.result() for stream in answers.streams]
            yield event({**head, "choices": [], "usage": usage(outputs)})
        yield DONE

    async def respond(
        self, request: Request, answers: Answers, *, stream: bool, headers: Mapping[str, str]
    ) -> Response:
        """The response. Raises ApiError while there is no first event; ClientGone."""
        if not stream:
            outputs = await unless_gone(request, answers, answers.outputs())
            return JSONResponse(self.whole(outputs), headers=dict(headers))
        events = self.events(answers)
        first = await unless_gone(request, answers, anext(events))
        return EventStream(first, events, answers, _error_event, headers)


def _error_event(error: ApiError) -> str:
    return event(error.body())
