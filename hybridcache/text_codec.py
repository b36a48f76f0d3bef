"""A tokenizer's three uses: prompts from texts, texts from answers, prompts from chats."""

import copy
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from hybridcache.chat_outline import TEMPLATE_ERRORS, Breakpoint, ChatOutline, Message
from hybridcache.text_stream import Decode
from hybridcache.tokens import TokenIds

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

RESERVED: Final = frozenset(
    ("conversation", "chat_template", "tokenize", "return_dict", "return_tensors", "padding", "truncation",
     "max_length", "tokenizer_kwargs", "return_assistant_tokens_mask", "add_generation_prompt",
     "continue_final_message", "messages", "self")
)  # fmt: skip
"""Names that a client cannot set for a template: the codec's own."""

NO_QUESTION = ("assistant", "system")
"""Roles whose messages do not end a turn."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat as tokens; positions are tokens from its start."""

    token_ids: Sequence[int] | TokenIds
    boundaries: Sequence[int] = ()
    """Ends of the messages, ascending; those that the template lets be found."""
    turn_end: int | None = None
    """End of the last message of a user, or of a tool: what the answer answers."""
    hints: Sequence[int] = ()
    """Where chats to come may leave it, ascending: behind tools and system prompt, and at breakpoints."""
    breakpoints: Sequence[int] = ()
    """Those of them that the client named."""
    goes_on: bool = False
    """Whether the answer goes on from the last message, rather than being one."""


class TextCodec:
    """Thread-safe: encoding changes a tokenizer for a moment, so it has a lock, and decoding has a copy."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        self._lock = Lock()
        own = copy.deepcopy(tokenizer)
        self._special = {
            str(token): index for index, token in own.added_tokens_decoder.items() if token.special
        }
        """Token ids, by their texts."""
        self._decode_all = _decoder(own, skip_special_tokens=False)
        self.decode: Decode = _decoder(own, skip_special_tokens=True)
        """Text of token ids, without special tokens. One thread at a time."""

    @property
    def template(self) -> str:
        """The checkpoint's chat templates as one text; empty without any."""
        found = self._tokenizer.chat_template or ""
        return found if isinstance(found, str) else "\n".join(found.values())

    def is_of(self, tokenizer: "PreTrainedTokenizerBase") -> bool:
        """Whether ``tokenizer`` gives the same tokens, texts and chats."""
        with self._lock:
            return _content(self._tokenizer) == _content(tokenizer)

    def special_tokens(self, texts: Iterable[str]) -> dict[str, int]:
        """Those of ``texts`` that are special tokens, with their ids."""
        return {text: self._special[text] for text in texts if text in self._special}

    def decoder(self, shown_token_ids: Collection[int]) -> Decode:
        """`decode`, but that these special tokens are part of the text. One thread at a time."""
        if not shown_token_ids:
            return self.decode
        left_out = set(self._special.values()).difference(shown_token_ids)

        def decode(token_ids: Sequence[int]) -> str:
            return self._decode_all([token for token in token_ids if token not in left_out])

        return decode

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, with the special tokens that the tokenizer puts around one.

        Raises ValueError for a text that is no Unicode (a lone surrogate).
        """
        check_unicode(text)
        with self._lock:
            tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return tokens

    def texts(self, token_ids: Sequence[int]) -> list[str]:
        """The text that each token adds to one before it, special tokens included.

        By itself a token that begins a word may lack the space before it.
        """
        found = []
        with self._lock:
            for token in token_ids:
                alone, twice = (str(self._tokenizer.decode([token] * count)) for count in (1, 2))
                found.append(twice[len(alone) :] if twice.startswith(alone) else alone)
        return found

    def text(self, token_ids: Sequence[int] | TokenIds, *, special: bool = True) -> str:
        """The text of tokens together, special tokens included unless ``special`` is false."""
        tokens = [int(token) for token in token_ids]
        with self._lock:
            return str(self._tokenizer.decode(tokens, skip_special_tokens=not special))

    def chat(
        self,
        messages: Sequence[Message],
        /,
        *,
        breakpoints: Sequence[Breakpoint] = (),
        continue_final: bool = False,
        **template_settings: object,
    ) -> ChatPrompt:
        """A chat through the checkpoint's template, up to where the answer begins.

        With ``continue_final`` the answer goes on from the last message. System messages behind the first
        message count as a user's where the template refuses them. Raises ValueError without messages or
        without a template, and for what the template refuses.
        """
        if not messages:
            raise ValueError("the chat is empty: give at least one message")
        if not is_chat(messages) or not all(isinstance(message, Mapping) for message in messages):
            raise ValueError(f"{messages!r:.99} is no chat: give a list of messages with role and content")
        if self._tokenizer.chat_template is None:
            raise ValueError("the checkpoint's tokenizer has no chat template: give texts or token ids")
        if refused := RESERVED & template_settings.keys():
            raise ValueError(f"{', '.join(sorted(refused))}: not to be set for a chat template")
        how = "continue_final_message" if continue_final else "add_generation_prompt"
        settings: dict[str, Any] = template_settings
        messages, text = self._accepted(messages, **{**settings, how: True})
        check_unicode(text)
        with self._lock:
            encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        token_ids, offsets = list(encoded["input_ids"]), encoded.get("offset_mapping")
        begun = ended = partial(self._num_tokens, text, token_ids)
        if offsets is not None:
            begun = partial(bisect_left, [start for start, _ in offsets])
            ended = partial(bisect_right, [stop for _, stop in offsets])
        outline = ChatOutline(partial(self._render, **settings), messages, text)
        ends = outline.message_ends()
        at = {count: begun(end) for count, end in ends.items()}
        asked = [count for count in ends if messages[count - 1].get("role") not in NO_QUESTION]
        named = sorted({ended(end) for end in map(outline.position, breakpoints) if end} - {0})
        head = ended(outline.head_end(ends, tools=bool(template_settings.get("tools"))))
        hints = {*named, head} - {0, len(token_ids)}
        turn_end = at[asked[-1]] or None if asked else None
        boundaries = sorted({*at.values()} - {0})
        return ChatPrompt(token_ids, boundaries, turn_end, sorted(hints), named, continue_final)

    def _num_tokens(self, text: str, token_ids: Sequence[int], end: int) -> int:
        """Tokens of the first ``end`` characters of ``text``; 0 where these end within one of ``token_ids``.

        For tokenizers in Python, which do not tell where their tokens are.
        """
        tokens = self.encode(text[:end], add_special_tokens=False)
        return len(tokens) if tokens == token_ids[: len(tokens)] else 0

    def _accepted(self, messages: Sequence[Message], /, **settings: object) -> tuple[Sequence[Message], str]:
        """The messages as the template takes them, and their text. Raises ValueError.

        Some templates (Qwen3.5's) refuse a system message behind the first message, which agents send all the
        same: it becomes a user's then, at its place, since at the head it would change the prefix.
        """
        try:
            return messages, self._render(messages, **settings)
        except ValueError as refusal:
            late = [message.get("role") == "system" and index > 0 for index, message in enumerate(messages)]
            if not any(late):
                raise
            others = [
                {**m, "role": "user"} if is_late else m for m, is_late in zip(messages, late, strict=True)
            ]
            try:
                return others, self._render(others, **settings)
            except ValueError:
                raise refusal from None

    def _render(self, messages: Sequence[Message], /, **settings: object) -> str:
        chat = [dict(message) for message in messages]
        try:
            text: str = self._tokenizer.apply_chat_template(chat, tokenize=False, **settings)
        except TEMPLATE_ERRORS as error:
            raise ValueError(f"the chat template refuses this chat: {error}") from error
        return text


def _content(tokenizer: "PreTrainedTokenizerBase") -> tuple[object, object]:
    fast = getattr(tokenizer, "backend_tokenizer", None)
    return tokenizer.get_vocab() if fast is None else fast.to_str(), tokenizer.chat_template


def _decoder(tokenizer: "PreTrainedTokenizerBase", *, skip_special_tokens: bool) -> Decode:
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is not None:

        def decode(token_ids: Sequence[int]) -> str:
            text: str = fast.decode(token_ids, skip_special_tokens=skip_special_tokens)
            return text

        return decode

    def decode_slowly(token_ids: Sequence[int]) -> str:
        text: str = tokenizer.decode(
            token_ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text

    return decode_slowly


def is_chat(prompt: object) -> bool:
    """Whether this is a list of messages, rather than of token ids."""
    return isinstance(prompt, Sequence) and bool(prompt) and isinstance(prompt[0], Mapping)


def check_unicode(text: str, name: str = "the text") -> None:
    """Raise ValueError for a lone surrogate, which no encoding has."""
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"{name} is no Unicode: {error.reason} at character {error.start}") from error
