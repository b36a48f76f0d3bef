"""Log probabilities in OpenAI's two forms."""

from collections.abc import Sequence
from typing import Any

from hybridcache.request import Choice
from hybridcache.text_codec import TextCodec

LEAST = -9999.0
"""Stands for minus infinity, which JSON has not."""
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""What a part of a character is read as."""
MOST_BYTES = 4
"""Of a character, and so tokens."""


class TextOffsets:
    """Where tokens begin in their text, while they come.

    A character may be made of several tokens, and a token's own text may lack a space that it has among
    others: so each is read together with those before it, since the last whole character.
    """

    def __init__(self, codec: TextCodec, before: int | None = None) -> None:
        """``before`` is the token that the text goes on from."""
        head = "" if before is None else codec.text([before], special=False)
        whole = head and INCOMPLETE not in head
        self._codec = codec
        self._read: list[int] = [before] if before is not None and whole else []
        """The latest tokens that end with a whole character."""
        self._head = head if whole else ""
        """Their text."""
        self._open: list[int] = []
        """Those since."""
        self._text = ""
        """Theirs."""
        self._start = 0
        """Where that begins."""

    def place(self, token_ids: Sequence[int], *, special: bool = False) -> list[int]:
        """The first character of each; ``special``: of a text that special tokens are part of."""
        offsets: list[int] = []
        for token in token_ids:
            self._open.append(token)
            before, text = self._text, self._opened(special)
            goes_on = len(text) > len(before) and text.startswith(before)
            offsets.append(self._start + len(before if goes_on else before.rstrip(INCOMPLETE)))
            self._text = text
            whole = not text.endswith(INCOMPLETE)
            if whole or len(self._open) == MOST_BYTES:
                # Bytes that are tokens (byte fallback) look like as many characters before they are one.
                last = self._start + max(len(text) - 1, 0) if whole else offsets[-1]
                first = max(len(offsets) - len(self._open), 0)
                offsets[first:] = [min(offset, last) for offset in offsets[first:]]
                self._start += len(text)
                self._read, self._open = self._open, []
                self._head, self._text = self._codec.text(self._read, special=special), ""
        return offsets

    def _opened(self, special: bool) -> str:
        """Text of the open tokens."""
        text = self._codec.text([*self._read, *self._open], special=special)
        if text.startswith(self._head):
            return text[len(self._head) :]
        # With byte fallback, one byte that is no text (yet) spoils those before it.
        return self._codec.text(self._open, special=special)


def completion_logprobs(
    token_ids: Sequence[int], choices: Sequence[Choice | None], codec: TextCodec, offsets: Sequence[int]
) -> dict[str, Any]:
    """The form of /v1/completions; a choice a token, None for a prompt's first; an offset a token."""
    return {
        "tokens": codec.texts(token_ids),
        "token_logprobs": [None if choice is None else _finite(choice.logprob) for choice in choices],
        "top_logprobs": [None if choice is None else _tops(choice, codec) for choice in choices],
        "text_offset": list(offsets),
    }


def chat_logprobs(choices: Sequence[Choice], codec: TextCodec) -> dict[str, Any]:
    """The form of /v1/chat/completions."""
    content = []
    for choice in choices:
        own, *others = codec.texts([choice.token, *(token for token, _ in choice.top)])
        top = [_entry(text, logprob) for text, (_, logprob) in zip(others, choice.top, strict=True)]
        content.append({**_entry(own, choice.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


def _tops(choice: Choice, codec: TextCodec) -> dict[str, float]:
    texts = codec.texts([choice.token, *(token for token, _ in choice.top)])
    values = [choice.logprob, *(logprob for _, logprob in choice.top)]
    # Two tokens may have one text: the likelier one is told.
    found: dict[str, float] = {}
    for text, value in zip(texts, values, strict=True):
        found[text] = max(_finite(value), found.get(text, LEAST))
    return found


def _entry(text: str, logprob: float) -> dict[str, Any]:
    whole = INCOMPLETE not in text
    return {"token": text, "logprob": _finite(logprob), "bytes": list(text.encode()) if whole else None}


def _finite(logprob: float) -> float:
    return max(logprob, LEAST)
