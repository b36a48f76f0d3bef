"""Where the parts of a chat end in its rendered text."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from jinja2 import TemplateError

Message = Mapping[str, Any]
"""As chat templates take them: a `role`, and usually a `content`."""
TEMPLATE_ERRORS: Final = (TemplateError, TypeError, AttributeError, LookupError, ArithmeticError, ValueError)
"""What rendering raises: the template's own refusals, and its mistakes over messages it does not expect."""

MOST_ENDS: Final = 32
"""Messages whose end is looked for: the first quarter and the last ones of a longer chat. Each costs a
rendering of what comes before it."""
MOST_RENDERED: Final = 4_096
"""Messages rendered for that, about: of a chat of more than 128 messages fewer ends are looked for."""


class Breakpoint(NamedTuple):
    """Where a client says that chats to come may leave this one."""

    message: int
    """Index of the message."""
    characters: int | None = None
    """Of its content, up to the breakpoint; None: the message's end."""


class ChatOutline:
    """Finds positions, in characters, by rendering parts of the chat and comparing them with the whole."""

    def __init__(self, render: Callable[..., str], messages: Sequence[Message], text: str) -> None:
        """``render`` takes messages, and raises ValueError; ``text`` is what became of all ``messages``."""
        self._render = render
        self._messages = messages
        self._text = text

    def message_ends(self) -> dict[int, int]:
        """Characters before the end of the first k messages, by k; ends that cannot be told are left out."""
        num = len(self._messages)
        counts, most = range(1, num + 1), min(MOST_ENDS, MOST_RENDERED // num + 1)
        first = most // 4
        looked = counts if num <= most else [*counts[:first], *counts[first - most :]]
        users = [k for k in counts if self._messages[k - 1].get("role") == "user"][-1:]
        ends = {}
        for count in sorted({*looked, *users, self._num_system()} - {0}):
            part = self._part(self._messages[:count])
            if part and self._text.startswith(part):
                ends[count] = len(part)
        return ends

    def head_end(self, ends: Mapping[int, int], *, tools: bool) -> int:
        """Characters of tools and system prompt, which other chats are likely to share; 0 without them."""
        count = self._num_system()
        if count:
            return ends.get(count, 0)
        if not tools:
            return 0
        first = self._messages[0]
        other = "1" if str(first.get("content")).startswith("0") else "0"
        return self._shared_with([_with(first, other), *self._messages[1:]])

    def position(self, breakpoint: Breakpoint) -> int:
        """Characters before a breakpoint; 0 when it cannot be told."""
        index, characters = breakpoint
        if characters is None:
            part = self._part(self._messages[: index + 1])
            return len(part) if self._text.startswith(part) else 0
        message = self._messages[index]
        return self._shared_with([*self._messages[:index], _with(message, message["content"][:characters])])

    def _num_system(self) -> int:
        roles = [message.get("role") for message in self._messages]
        return next((i for i, role in enumerate(roles) if role not in ("system", "developer")), len(roles))

    def _shared_with(self, messages: Sequence[Message]) -> int:
        text, part = self._text, self._part(messages)
        same, differ = 0, min(len(text), len(part)) + 1
        while differ - same > 1:
            middle = (same + differ) // 2
            if text.startswith(part[:middle]):
                same = middle
            else:
                differ = middle
        return same

    def _part(self, messages: Sequence[Message]) -> str:
        try:
            return self._render(messages, add_generation_prompt=False)
        except ValueError:
            return ""  # there are templates that refuse a chat without a user's message


def _with(message: Message, content: str) -> Message:
    return {**message, "content": content}
