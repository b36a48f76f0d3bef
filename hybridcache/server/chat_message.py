"""Messages of a chat, in OpenAI's form, for the checkpoint's template."""

import json
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from pydantic import Field

from hybridcache.chat_outline import Breakpoint, Message
from hybridcache.server.body import Body, Items
from hybridcache.server.errors import ApiError

PART_SEPARATOR = "\n"
"""Between the text parts of one message."""


class CacheControl(Body):
    """A breakpoint: chats to come may leave this one here."""

    type: Literal["ephemeral"] = "ephemeral"
    ttl: Literal["5m", "1h"] | None = None


class TextPart(Body):
    """A part of a message; only texts are served."""

    type: str
    text: str | None = None
    cache_control: CacheControl | None = None


class FunctionCall(Body):
    """What an earlier answer called."""

    name: str
    arguments: str | dict[str, Any] = ""


class ToolCall(Body):
    """One call of an earlier answer."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(Body):
    """Fields that are not declared are the template's to read."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Items[TextPart] | None = None
    tool_calls: Items[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    cache_control: CacheControl | None = Field(None, description="a cache breakpoint at the message's end")


class Conversation(NamedTuple):
    """What the codec takes."""

    messages: list[Message]
    breakpoints: list[Breakpoint]
    ttls: list[str]
    """Of the breakpoints that name one."""


def conversation(messages: Sequence[ChatMessage]) -> Conversation:
    """Messages as templates read them: contents are texts, arguments are objects. Raises ApiError."""
    found = Conversation([], [], [])
    for index, message in enumerate(messages):
        fields: dict[str, Any] = {**(message.model_extra or {}), "role": message.role}
        if message.role == "developer":
            fields["role"] = "system"
        fields["content"] = _content(index, message.content, found)
        if message.tool_calls:
            fields["tool_calls"] = [_call(call) for call in message.tool_calls]
        for name in ("tool_call_id", "name"):
            if getattr(message, name) is not None:
                fields[name] = getattr(message, name)
        if message.cache_control is not None:
            _break(found, Breakpoint(index), message.cache_control)
        found.messages.append(fields)
    return found


def _content(index: int, content: str | list[TextPart] | None, found: Conversation) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for part in content:
        if part.type not in ("text", "input_text") or part.text is None:
            raise ApiError(
                400,
                f"messages[{index}] has a part of type {part.type!r}: only text parts are served",
                param="messages",
                code="unsupported_content",
            )
        texts.append(part.text)
        if part.cache_control is not None:
            last = len(texts) == len(content)
            characters = None if last else len(PART_SEPARATOR.join(texts))
            _break(found, Breakpoint(index, characters), part.cache_control)
    return PART_SEPARATOR.join(texts)


def _break(found: Conversation, breakpoint: Breakpoint, control: CacheControl) -> None:
    found.breakpoints.append(breakpoint)
    if control.ttl is not None:
        found.ttls.append(control.ttl)


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = call.function.arguments
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            parsed = arguments
        # Templates write objects as JSON; a text in their place would be written as a text within quotes.
        arguments = parsed if isinstance(parsed, dict) else arguments
    function = {"name": call.function.name, "arguments": arguments}
    return {**({} if call.id is None else {"id": call.id}), "type": "function", "function": function}
