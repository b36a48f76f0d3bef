"""The body of Anthropic's /v1/messages, as a chat for the checkpoint's template."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field
from starlette.datastructures import Headers

from hybridcache.chat_outline import Breakpoint
from hybridcache.sampling_params import SamplingParams
from hybridcache.server.body import Body, Items
from hybridcache.server.chat_body import (
    FREE_CHOICES,
    call_format,
    chat_prompt,
    longest,
    shown_tokens,
    unforced_calls,
)
from hybridcache.server.chat_message import PART_SEPARATOR, CacheControl, Conversation
from hybridcache.server.errors import ApiError
from hybridcache.server.generation_body import salt_of, sampling_params, seconds
from hybridcache.server.tool_calls import CallFormat
from hybridcache.text_codec import ChatPrompt, TextCodec
from hybridcache.worker import Worker

DEFAULT_TTL = "5m"
"""Of a breakpoint that names none, as Anthropic has it."""
DROPPED = ("thinking", "redacted_thinking")
"""Blocks of earlier turns that Anthropic leaves out of prompts too."""
CLEARS_THINKING = "clear_thinking_"
"""Begins the types of edits that take earlier thinking out of a chat."""
BILLING_HEADER = "x-anthropic-billing-header:"
"""Begins a line that Claude Code writes before its system prompt, another one in each request: with it no two
prompts would share more than a few tokens."""
_BILLING_LINE = re.compile(rf"\A{BILLING_HEADER}[^\n]*\n?")


class Block(Body):
    """A part of a message."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: "str | Items[Block] | None" = None
    cache_control: CacheControl | None = None


class Turn(Body):
    """A message; a system's stays at its place, so that the prompt before it is as it was."""

    role: Literal["user", "assistant", "system"]
    content: str | Items[Block]


class AnthropicTool(Body):
    """A function that the model is told of."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any] = Field(default_factory=dict)
    cache_control: CacheControl | None = None


class ToolChoice(Body):
    """Whether answers may call tools."""

    type: Literal["auto", "none", "any", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    """Whether the model thinks before it answers: here that is its template's and its own affair."""

    type: Literal["disabled", "enabled", "adaptive", "between_tools"]


class OutputConfig(Body):
    """How the answer is to be: no field of it changes anything, and a form cannot be promised."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {"format": ()}


class Edit(Body):
    """What the API takes out of a chat."""

    type: str


class ContextManagement(Body):
    """What the API takes out of the chat before the model sees it."""

    edits: Items[Edit] | None = None


class CountBody(Body):
    """What makes the prompt: the body of /v1/messages/count_tokens."""

    model: str | None = None
    messages: Items[Turn]
    system: str | Items[Block] | None = None
    tools: Items[AnthropicTool] | None = None
    cache_control: CacheControl | None = Field(None, description="a breakpoint at the prompt's end")
    tool_choice: ToolChoice | None = Field(
        None, description="auto, or none: calls stay in the text; tools are in the prompt with either"
    )
    thinking: Thinking | None = Field(None, description="changes nothing: the template and the model decide")
    output_config: OutputConfig | None = Field(None, description="effort, which changes nothing")
    context_management: ContextManagement | None = Field(
        None, description="edits that clear thinking: earlier thinking is never part of a prompt"
    )

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "mcp_servers": ([],),
        "container": (),
        "output_format": (),
    }
    without_effect: ClassVar[frozenset[str]] = frozenset(("metadata", "service_tier"))

    def ignored(self) -> list[str]:
        if self.tool_choice is not None and self.tool_choice.type not in FREE_CHOICES:
            raise unforced_calls(self.tool_choice.type)
        names = super().ignored()
        if self.thinking is not None and self.thinking.type != "disabled":
            names.append("thinking")
        if self.output_config is not None:
            names += [f"output_config.{name}" for name in self.output_config.ignored()]
        for edit in (self.context_management and self.context_management.edits) or ():
            if not edit.type.startswith(CLEARS_THINKING):
                raise ApiError(
                    400,
                    f"context_management has an edit of type {edit.type!r}: no other than those that clear "
                    "thinking, which is never part of a prompt here, is supported",
                    param="context_management",
                    code="unsupported_field",
                )
        return names

    def conversation(self) -> Conversation:
        """Messages in OpenAI's form, and the breakpoints in them. Raises ApiError."""
        found = Conversation([], [], [])
        for tool in self.tools or ():
            # Templates write tools before the first message's content.
            _break(found, Breakpoint(0, 0), tool.cache_control)
        if system := _system(self.system):
            _Gathered(found, "system").add(system)
        for turn in self.messages:
            content = _system(turn.content) if turn.role == "system" else turn.content
            if content or turn.role != "system":
                _Gathered(found, turn.role).add(content)
        if found.messages:
            _break(found, Breakpoint(len(found.messages) - 1), self.cache_control)
        return found

    def chat(self, worker: Worker) -> ChatPrompt:
        """The chat through the checkpoint's template; a last message of the assistant is gone on with.

        Raises ApiError, ValueError.
        """
        tools = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description or "",
                    "parameters": tool.input_schema,
                },
            }
            for tool in self.tools or ()
        ]
        found = self.conversation()
        last = found.messages[-1] if found.messages else {}
        prefilled = last.get("role") == "assistant" and not last.get("tool_calls")
        return chat_prompt(worker, found, tools=tools, continue_final=prefilled)

    def calls(self, codec: TextCodec) -> CallFormat | None:
        """How calls are read out of the answer; None: they are not."""
        named = {tool.name: tool.input_schema for tool in self.tools or ()}
        return call_format(codec, named, None if self.tool_choice is None else self.tool_choice.type)


class MessagesBody(CountBody):
    """Anthropic's fields, and the cache's own."""

    max_tokens: int
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: Items[str] | None = None
    cache_salt: str | None = Field(None, description="prompts of different salts share nothing")
    priority: int | None = Field(None, description="requests of a lower one run first")
    ttl: float | str | None = Field(None, description="seconds, or '5m', '1h': how long its entries live")

    def sampling(self, worker: Worker) -> SamplingParams:
        """How to sample. Raises ValueError."""
        defaults = worker.default_params
        settings = {
            "max_tokens": self.max_tokens,
            "temperature": defaults.temperature if self.temperature is None else self.temperature,
            "top_p": defaults.top_p if self.top_p is None else self.top_p,
            "top_k": defaults.top_k if self.top_k is None else self.top_k,
            "min_p": defaults.min_p,
            "repetition_penalty": defaults.repetition_penalty,
            "stop": tuple(self.stop_sequences or ()),
            "shown_token_ids": shown_tokens(worker.codec, self.calls(worker.codec)),
        }
        return sampling_params(settings, {"stop": "stop_sequences"})

    def cache_settings(self, headers: Headers) -> dict[str, Any]:
        """Arguments of Worker.submit that are about the cache and the queue. Raises ApiError, ValueError."""
        return {
            "cache_salt": salt_of(headers, self.cache_salt),
            "priority": self.priority or 0,
            "ttl_seconds": longest(self.conversation().ttls) if self.ttl is None else seconds(self.ttl),
        }


class _Gathered:
    """Blocks of one message, until something comes that has to be a message of its own."""

    def __init__(self, found: Conversation, role: str) -> None:
        self._found, self._role = found, role
        self._texts: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._pending: list[tuple[int | None, CacheControl]] = []
        """Breakpoints behind so many characters of the texts; None: behind a call."""

    def add(self, content: str | Sequence[Block]) -> None:
        """Put a message's content at the conversation's end. Raises ApiError."""
        blocks = [Block(type="text", text=content)] if isinstance(content, str) else content
        for block in blocks:
            self._take(block)
        if self._texts or self._calls or not blocks:
            self._close()

    def _take(self, block: Block) -> None:
        if block.type == "text" and block.text is not None:
            self._texts.append(block.text)
            at = None if self._calls else len(PART_SEPARATOR.join(self._texts))
        elif block.type == "tool_use" and self._role == "assistant" and block.name is not None:
            function = {"name": block.name, "arguments": block.input or {}}
            self._calls.append({"id": block.id or "", "type": "function", "function": function})
            at = None
        elif block.type == "tool_result" and self._role == "user":
            if self._texts:
                self._close()
            result = block.content or ""
            text = result if isinstance(result, str) else PART_SEPARATOR.join(map(self._text, result))
            _break(self._found, Breakpoint(len(self._found.messages)), block.cache_control)
            message = {"role": "tool", "tool_call_id": block.tool_use_id or "", "content": text}
            self._found.messages.append(message)
            return
        elif block.type in DROPPED:
            return
        else:
            raise self._unsupported(block)
        if block.cache_control is not None:
            self._pending.append((at, block.cache_control))

    def _text(self, block: Block) -> str:
        if block.type != "text" or block.text is None:
            raise self._unsupported(block)
        return block.text

    def _close(self) -> None:
        index, content = len(self._found.messages), PART_SEPARATOR.join(self._texts)
        for at, control in self._pending:
            whole = at is None or (at == len(content) and not self._calls)
            _break(self._found, Breakpoint(index, None if whole else at), control)
        message: dict[str, Any] = {"role": self._role, "content": content}
        self._found.messages.append(message | ({"tool_calls": self._calls} if self._calls else {}))
        self._texts, self._calls, self._pending = [], [], []

    def _unsupported(self, block: Block) -> ApiError:
        return ApiError(
            400,
            f"a message of {self._role} has a block of type {block.type!r}: text, and tools' calls and "
            "results, are served",
            param="messages",
            code="unsupported_content",
        )


def _system(system: str | Sequence[Block] | None) -> Sequence[Block]:
    """The blocks of a system prompt that say something: no empty ones, and no BILLING_HEADER."""
    blocks = [Block(type="text", text=system)] if isinstance(system, str) else system or ()
    told = [
        block.model_copy(update={"text": _BILLING_LINE.sub("", block.text)}) if block.text else block
        for block in blocks
    ]
    return [block for block in told if block.type != "text" or block.text != ""]


def _break(found: Conversation, breakpoint: Breakpoint, control: CacheControl | None) -> None:
    if control is not None:
        found.breakpoints.append(breakpoint)
        found.ttls.append(control.ttl or DEFAULT_TTL)
