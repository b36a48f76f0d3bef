"""A tokenizer's three uses: prompts from texts, texts from answers, prompts from chats."""

import copy
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridcache.text_stream import Decode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, Any]
"""As chat templates take them: a `role`, and usually a `content`."""


class ChatPrompt(NamedTuple):
    """A chat as tokens."""

    token_ids: list[int]
    boundaries: list[int]
    """Ends of the messages, in tokens, ascending; those that the template lets be found."""
    turn_end: int | None
    """End of the last user message, in tokens."""


class TextCodec:
    """Thread-safe: encoding changes a tokenizer for a moment, so it has a lock, and decoding has a copy."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        self._encoding = Lock()
        self.decode: Decode = _decoder(copy.deepcopy(tokenizer))
        """Text of token ids, without special tokens. One thread at a time."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with the special tokens that the tokenizer puts around one."""
        with self._encoding:
            tokens: list[int] = self._tokenizer.encode(text)
        return tokens

    def chat(self, messages: Sequence[Message], **template_settings: object) -> ChatPrompt:
        """A chat through the checkpoint's template, up to where the answer begins.

        Raises ValueError without messages or without a template.
        """
        if not messages:
            raise ValueError("the chat is empty: give at least one message")
        if self._tokenizer.chat_template is None:
            raise ValueError("the checkpoint's tokenizer has no chat template: give texts or token ids")
        text = self._render(messages, add_generation_prompt=True, **template_settings)
        with self._encoding:
            encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        starts = [start for start, _ in encoded["offset_mapping"]]
        ends = self._message_ends(messages, text, **template_settings)
        at = {characters: _tokens_before(starts, characters) for characters in ends.values()}
        users = [i for i, message in enumerate(messages, 1) if message.get("role") == "user" and i in ends]
        return ChatPrompt(
            list(encoded["input_ids"]), sorted(set(at.values())), at[ends[users[-1]]] if users else None
        )

    def _message_ends(self, messages: Sequence[Message], text: str, **settings: object) -> dict[int, int]:
        """Characters of ``text`` before the end of the first k messages, by k."""
        from jinja2 import TemplateError

        ends = {}
        for count in range(1, len(messages) + 1):
            try:
                part = self._render(messages[:count], add_generation_prompt=False, **settings)
            except TemplateError:
                continue  # there are templates that refuse a chat without a user's message
            if part and text.startswith(part):
                ends[count] = len(part)
        return ends

    def _render(self, messages: Sequence[Message], **settings: object) -> str:
        chat = [dict(message) for message in messages]
        text: str = self._tokenizer.apply_chat_template(chat, tokenize=False, **settings)
        return text


def _decoder(tokenizer: "PreTrainedTokenizerBase") -> Decode:
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is not None:

        def decode(token_ids: Sequence[int]) -> str:
            text: str = fast.decode(token_ids, skip_special_tokens=True)
            return text

        return decode

    def decode_slowly(token_ids: Sequence[int]) -> str:
        text: str = tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    return decode_slowly


def _tokens_before(starts: Sequence[int], characters: int) -> int:
    """Tokens that begin before a character; `starts` are their first characters."""
    return sum(start < characters for start in starts)
