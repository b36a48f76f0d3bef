"""POST /v1/completions."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from hybridcache.request_output import Sample
from hybridcache.server.answers import Answers, Part
from hybridcache.server.completion_body import CompletionBody
from hybridcache.server.errors import ApiError
from hybridcache.server.logprobs import TextOffsets, completion_logprobs
from hybridcache.server.models_list import ServedModels
from hybridcache.server.reply import Reply
from hybridcache.text_codec import TextCodec
from hybridcache.worker import RequestOutput, Stream, Worker


class CompletionReply(Reply):
    """Answers as texts."""

    prefix, whole_object, chunk_object = "cmpl-", "text_completion", "text_completion"

    def __init__(self, model: str, body: CompletionBody, codec: TextCodec) -> None:
        super().__init__(model, include_usage=body.include_usage)
        self._codec = codec
        self._logprobs = body.logprobs is not None
        self._judges_only = body.judges_only
        prompts: Sequence[str | list[int]] = body.prompts() if body.echo else ()
        self._echo = [prompt if isinstance(prompt, str) else codec.text(prompt) for prompt in prompts]
        self._texts = [isinstance(prompt, str) for prompt in prompts]
        """Whether a prompt is echoed as the text that it was, which has no special tokens."""
        self._told: dict[int, TextOffsets] = {}
        """Of the tokens told in parts so far, by answer; text may come before or after its tokens."""
        self._before: list[int | None] = []
        """The last token of each prompt whose answers are streamed."""

    def whole(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        if self._judges_only:
            outputs = [replace(each, samples=[*map(_unsaid, each.samples)]) for each in outputs]
        return super().whole(outputs)

    def choice(self, prompt: int, sample: Sample, output: RequestOutput) -> dict[str, Any]:
        logprobs = None
        if self._logprobs:
            judged = output.prompt_logprobs if self._echo else None
            choices = [*(judged or ()), *(sample.logprobs or ())]
            asked = [*(output.prompt_token_ids if judged else ())]
            places = TextOffsets(self._codec, None if judged else int(output.prompt_token_ids[-1]))
            offsets = places.place(asked, special=not (self._texts and self._texts[prompt]))
            offsets += places.place(sample.token_ids)
            logprobs = completion_logprobs([*asked, *sample.token_ids], choices, self._codec, offsets)
        return {"text": self._echoed(prompt) + (sample.text or ""), "logprobs": logprobs}

    def delta(self, part: Part) -> dict[str, Any] | None:
        chunk = part.chunk
        first = part.choice not in self._told
        text = self._echoed(part.prompt) + chunk.text if first else chunk.text
        if not text and not chunk.logprobs and chunk.finish_reason is None:
            return None
        if first:
            self._told[part.choice] = TextOffsets(self._codec, self._before[part.prompt])
        places = self._told[part.choice]
        logprobs = None
        if self._logprobs:
            offsets = places.place(chunk.token_ids)
            logprobs = completion_logprobs(chunk.token_ids, chunk.logprobs, self._codec, offsets)
        return {"text": text, "logprobs": logprobs}

    async def events(self, answers: Answers) -> AsyncGenerator[str, None]:
        self._before = [stream.last_prompt_token for stream in answers.streams]
        async for event in super().events(answers):
            yield event

    def _echoed(self, prompt: int) -> str:
        return self._echo[prompt] if self._echo else ""


def _unsaid(sample: Sample) -> Sample:
    """An answer of no tokens."""
    return replace(
        sample,
        token_ids=(),
        num_generated_tokens=0,
        text="",
        finish_reason="length",
        stop_text=None,
        logprobs=None if sample.logprobs is None else (),
    )


def completion_routes(worker: Worker, models: ServedModels) -> APIRouter:
    """The endpoint, for one worker."""
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/completions")
    async def completions(body: CompletionBody, request: Request) -> Response:
        """Go on with a prompt, or each of several."""
        headers = models.headers(body.checked())
        model = models.check(body.model)
        if body.echo and body.stream and body.logprobs is not None:
            raise ApiError(400, "echo with logprobs: not in a stream", param="echo")

        def submit() -> Sequence[Stream]:
            params = body.sampling(worker)
            prompts = body.tokens(worker.codec)
            return worker.submit_all(prompts, params, **body.cache_settings(request.headers))

        answers = await Answers.to(submit, body.n or 1)
        reply = CompletionReply(model, body, worker.codec)
        return await reply.respond(request, answers, stream=bool(body.stream), headers=headers)

    return router
