"""The body of /v1/chat/completions."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field
from starlette.datastructures import Headers

from hybridcache.sampling_params import SamplingParams
from hybridcache.server.body import Body, Items
from hybridcache.server.call import ARGUMENTS
from hybridcache.server.chat_message import ChatMessage, Conversation, conversation
from hybridcache.server.errors import ApiError
from hybridcache.server.generation_body import GenerationBody, seconds
from hybridcache.server.tool_calls import CallFormat, marks_of
from hybridcache.text_codec import ChatPrompt, TextCodec
from hybridcache.worker import Worker

MOST_BREAKPOINTS = 16
"""Named in one chat; the chat is rendered up to each of them."""
FREE_CHOICES = ("none", "auto")
"""Values of `tool_choice` that no call has to come of; with the first, none is read out of an answer."""


def _named(function: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(name := function.get("name"), str) or not name:
        raise ValueError(f"name={name!r}: give the function's name")
    return function


class Tool(Body):
    """A function that the model is told of."""

    type: Literal["function"] = "function"
    function: Annotated[dict[str, Any], AfterValidator(_named)]


class ChatFields(Body):
    """What makes a prompt of a chat: also the body of /tokenize."""

    messages: Items[ChatMessage]
    tools: Items[Tool] | None = None
    continue_final_message: bool | None = Field(None, description="go on with the last message")
    chat_template_kwargs: dict[str, Any] | None = None

    def chat(self, worker: Worker) -> ChatPrompt:
        """The chat through the checkpoint's template. Raises ApiError, ValueError."""
        return chat_prompt(
            worker,
            conversation(self.messages),
            tools=None if self.tools is None else [tool.model_dump() for tool in self.tools],
            continue_final=bool(self.continue_final_message),
            template_settings=self.chat_template_kwargs,
        )


class ChatBody(ChatFields, GenerationBody):
    """OpenAI's fields, and those of GenerationBody."""

    max_completion_tokens: int | None = None
    max_tokens: int | None = Field(None, description="the older name of max_completion_tokens")
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tool_choice: str | dict[str, Any] | None = Field(
        None, description="auto, or none: calls stay in the text; tools are in the prompt with either"
    )

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **GenerationBody.unsupported,
        "functions": ([],),
        "function_call": FREE_CHOICES,
        "audio": (),
        "modalities": (["text"],),
        "prediction": (),
        "web_search_options": (),
        "chat_template": (),
        "documents": ([],),
        "echo": (False,),
        "add_generation_prompt": (True,),
        "add_special_tokens": (False,),
        "reasoning_effort": (),
        "verbosity": (),
    }

    def checked(self) -> list[str]:
        if self.tool_choice not in (None, *FREE_CHOICES):
            raise unforced_calls(self.tool_choice)
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs: only with logprobs=true", param="top_logprobs")
        return super().checked()

    def calls(self, codec: TextCodec) -> CallFormat | None:
        """How calls are read out of answers; None: they are not."""
        functions = [tool.function for tool in self.tools or ()]
        named = {str(function.get("name")): function.get("parameters") for function in functions}
        return call_format(codec, named, self.tool_choice)

    def sampling(self, worker: Worker) -> SamplingParams:
        """How to sample. Raises ValueError."""
        newer = self.max_completion_tokens is not None
        return self.params(
            worker,
            {"max_tokens": "max_completion_tokens" if newer else "max_tokens", "logprobs": "top_logprobs"},
            max_tokens=self.max_completion_tokens if newer else self.max_tokens,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            shown_token_ids=shown_tokens(worker.codec, self.calls(worker.codec)),
        )

    def cache_settings(self, headers: Headers) -> dict[str, Any]:
        settings = super().cache_settings(headers)
        if self.ttl is None:
            settings["ttl_seconds"] = longest(conversation(self.messages).ttls)
        return settings


def chat_prompt(
    worker: Worker,
    chat: Conversation,
    *,
    tools: Sequence[Mapping[str, Any]] | None,
    continue_final: bool = False,
    template_settings: Mapping[str, Any] | None = None,
) -> ChatPrompt:
    """A chat through the checkpoint's template. Raises ApiError, ValueError."""
    if len(chat.breakpoints) > MOST_BREAKPOINTS:
        message = f"{len(chat.breakpoints)} cache breakpoints: give at most {MOST_BREAKPOINTS}"
        raise ApiError(400, message, param="cache_control")
    settings: dict[str, Any] = dict(template_settings or {})
    own = sorted(settings.keys() & {"tools", "breakpoints", "continue_final"})
    if own:
        raise ValueError(f"chat_template_kwargs has {', '.join(own)}: not to be set there")
    if tools:
        settings["tools"] = list(tools)
    return worker.codec.chat(
        chat.messages, breakpoints=chat.breakpoints, continue_final=continue_final, **settings
    )


def call_format(codec: TextCodec, schemas: Mapping[str, object], choice: object) -> CallFormat | None:
    """How calls are read out of answers: between the marks of the checkpoint's template, if it has some."""
    marks = marks_of(codec.template) if schemas and choice != "none" else None
    if marks is None:
        return None
    return CallFormat(marks, schemas, tuple(codec.special_tokens((*marks, ARGUMENTS))))


def shown_tokens(codec: TextCodec, form: CallFormat | None) -> tuple[int, ...]:
    """The special tokens that an answer's text has to have, for calls to be read out of it."""
    return () if form is None else tuple(codec.special_tokens(form.hidden).values())


def unforced_calls(choice: object) -> ApiError:
    """Why a ``tool_choice`` that demands a call is refused."""
    return ApiError(
        400,
        f"tool_choice={choice!r} asks for a call, and nothing here can make a model call: leave it out, or "
        "choose auto; tools are put in the prompt, and calls are read out of the answer",
        param="tool_choice",
        code="unsupported_field",
    )


def longest(ttls: Sequence[str]) -> float | None:
    """Of the times that breakpoints name, the longest, in seconds: a request has one."""
    return max((found for ttl in ttls if (found := seconds(ttl)) is not None), default=None)
