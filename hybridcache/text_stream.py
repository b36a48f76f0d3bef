"""Text of an answer while its tokens come, cut at the first stop text."""

from bisect import bisect_right
from collections.abc import Callable, Sequence

from hybridcache.request import Reader
from hybridcache.stop_texts import StopTexts

Decode = Callable[[Sequence[int]], str]
"""Text of token ids."""

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""What a decoder gives for bytes that are no character (yet)."""
_LONG_WINDOW = 16
"""Tokens without a clean end of a character after which the window is shortened."""
_LONGEST_CHARACTER = 4
"""Bytes of a character in UTF-8, so tokens that it can be spread over."""


class TextStream(Reader):
    """Decodes an answer token by token; what it has given out it never takes back.

    ::

        0 ............ given ......... settled                 characters
        [ for the client | held back  ]  an incomplete character

    Held back is what may turn out to be the beginning of a stop text. A token is given once all of its text
    is. Only a window of the last tokens is decoded again; it starts where its text does not depend on what
    comes before it.
    """

    __slots__ = ("stopped_at", "_decode", "_stops", "_min_tokens", "_tokens", "_ends", "_text",
                 "_start", "_shown", "_given", "_closed")  # fmt: skip

    def __init__(self, decode: Decode, stop: Sequence[str] = (), min_tokens: int = 0) -> None:
        """``stop`` ends the answer where the earliest of them begins, once there are ``min_tokens``."""
        self.stopped_at: str | None = None
        """The stop text that was found."""
        self._decode = decode
        self._stops = StopTexts(stop)
        self._min_tokens = min_tokens
        self._tokens: list[int] = []
        self._ends: list[int] = []
        """Characters settled once each token's text is complete; for the settled tokens."""
        self._text = ""
        """Settled text; after a stop text has been found, what comes before it."""
        self._start = 0
        """First token of the window."""
        self._shown = 0
        """Characters of the window's text that are settled."""
        self._given = 0
        """Characters that the client may have."""
        self._closed = False

    def text(self, start: int = 0) -> str:
        """What the client may have, from character ``start`` on."""
        return self._text[start : self._given]

    @property
    def num_given(self) -> int:
        return bisect_right(self._ends, self._given)

    def read(self, token: int) -> bool:
        assert not self._closed, "the answer has ended"
        self._tokens.append(token)
        decoded = self._decode(self._tokens[self._start :])
        whole = not decoded.endswith(_INCOMPLETE)
        before = len(self._text)
        self._settle(decoded, len(decoded) if whole else len(decoded) - 1, whole=whole)
        if whole:
            self._move(len(self._tokens) - 1)
        elif len(self._tokens) - self._start > _LONG_WINDOW:
            self._shorten(decoded)
        found = self._stops.read(self._text[before:])
        if found is not None and len(self._tokens) >= self._min_tokens:
            self.stopped_at = found.stop
            self._text = self._text[: found.at]
            self._given, self._closed = found.at, True
            return True
        self._given = len(self._text) - self._stops.num_begun
        return False

    def close(self) -> None:
        """The answer has ended: nothing more can complete what was held back."""
        if not self._closed and self.stopped_at is None:
            decoded = self._decode(self._tokens[self._start :]) if self._tokens else ""
            self._settle(decoded, len(decoded), whole=True)
            self._given = len(self._text)
        self._closed = True

    def _settle(self, decoded: str, upto: int, *, whole: bool) -> None:
        """The window's text up to ``upto`` characters will not change; ``whole``: no token is left over."""
        self._text += decoded[self._shown : upto]
        self._shown = max(self._shown, upto)
        if whole:
            self._ends += [len(self._text)] * (len(self._tokens) - len(self._ends))

    def _move(self, start: int) -> None:
        self._start = start
        self._shown = len(self._decode(self._tokens[start:]))

    def _shorten(self, decoded: str) -> None:
        """Move the window on within bytes that are no text, where that changes nothing."""
        middle = len(self._tokens) - _LONGEST_CHARACTER
        head, tail = self._decode(self._tokens[self._start : middle]), self._decode(self._tokens[middle:])
        if head + tail == decoded:
            settled = middle - len(self._ends)
            self._ends += [len(self._text) - max(self._shown - len(head), 0)] * max(settled, 0)
            self._start, self._shown = middle, max(self._shown - len(head), 0)
