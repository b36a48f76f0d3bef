"""Text of an answer while its tokens come, cut at the first stop text."""

from bisect import bisect_right
from collections.abc import Callable, Sequence

from hybridcache.request import Reader
from hybridcache.stop_texts import StopTexts

Decode = Callable[[Sequence[int]], str]
"""Text of token ids."""

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""What a decoder gives for bytes that are no character (yet): one for them together, or one for each."""
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
    comes before it. First that is the prompt's last token, where the answer goes on from the prompt's text:
    tokenizers that mark the beginnings of words leave out the space before the first of the tokens they are
    given, which would join two words.
    """

    __slots__ = ("stopped_at", "_decode", "_stops", "_min_tokens", "_tokens", "_before", "_ends",
                 "_text", "_start", "_head", "_given", "_closed")  # fmt: skip

    def __init__(
        self, decode: Decode, stop: Sequence[str] = (), min_tokens: int = 0, *, before: int | None = None
    ) -> None:
        """``stop`` ends the answer where the earliest of them begins, once there are ``min_tokens``.

        ``before`` is the token that the answer goes on from; None: it begins anew.
        """
        self.stopped_at: str | None = None
        """The stop text that was found."""
        self._decode = decode
        self._stops = StopTexts(stop)
        self._min_tokens = min_tokens
        head = "" if before is None else decode([before])
        whole = head and _INCOMPLETE not in head
        self._tokens: list[int] = [before] if before is not None and whole else []
        self._before = len(self._tokens)
        """Tokens that are not the answer's."""
        self._ends: list[int] = [0] * self._before
        """Characters settled once each token's text is complete; for the tokens of complete characters."""
        self._text = ""
        """Settled text; after a stop text has been found, what comes before it."""
        self._start = 0
        """First token of the window."""
        self._head = head if whole else ""
        """Text of the window's tokens that `_ends` has."""
        self._given = 0
        """Characters that the client may have."""
        self._closed = False

    def text(self, start: int = 0) -> str:
        """What the client may have, from character ``start`` on."""
        return self._text[start : self._given]

    @property
    def num_given(self) -> int:
        return bisect_right(self._ends, self._given) - self._before

    def read(self, token: int) -> bool:
        assert not self._closed, "the answer has ended"
        self._tokens.append(token)
        before = len(self._text)
        while not self._settle() and self._give_up():
            pass
        found = self._stops.read(self._text[before:])
        if found is not None and len(self._tokens) - self._before >= self._min_tokens:
            self.stopped_at = found.stop
            self._text = self._text[: found.at]
            self._given, self._closed = found.at, True
            return True
        self._given = len(self._text) - self._stops.num_begun
        return False

    def close(self) -> None:
        """The answer has ended: nothing more can complete what was held back."""
        if not self._closed and self.stopped_at is None:
            if len(self._ends) < len(self._tokens):
                self._add(self._new(), len(self._tokens))
            self._given = len(self._text)
        self._closed = True

    def _settle(self) -> bool:
        """Settle what cannot change any more; whether that is the text of all tokens."""
        new = self._new()
        if new.endswith(_INCOMPLETE):
            self._add(new.rstrip(_INCOMPLETE), len(self._ends))
            return False
        self._add(new, len(self._tokens))
        self._move()
        return True

    def _new(self) -> str:
        """Text of the tokens that `_ends` lacks."""
        decoded = self._decode(self._tokens[self._start :])
        if decoded.startswith(self._head):
            return decoded[len(self._head) :]
        # Where bytes are tokens (byte fallback), one that is no text spoils the whole run that it is in.
        self._start, self._head = len(self._ends), ""
        return self._decode(self._tokens[self._start :])

    def _add(self, new: str, num_tokens: int) -> None:
        """``new``, of tokens that `_ends` lacks, will not change; the first ``num_tokens`` are complete."""
        complete = self._ends[-1] if self._ends else 0
        self._text += new[len(self._text) - complete :]
        self._ends += [complete + len(new)] * (num_tokens - len(self._ends))

    def _move(self) -> None:
        """Start the window at the last tokens that have a text by themselves."""
        for size in range(1, min(_LONGEST_CHARACTER, len(self._tokens)) + 1):
            head = self._decode(self._tokens[-size:])
            if head and _INCOMPLETE not in head:
                break
        else:
            size = len(self._tokens) - self._start
            if size > _LONG_WINDOW:
                size = 1
            head = self._decode(self._tokens[-size:])
        self._start, self._head = len(self._tokens) - size, head

    def _give_up(self) -> bool:
        """Settle the first tokens that `_ends` lacks if they begin no character, with so many behind them.

        Whether there were such.
        """
        tokens = self._tokens[len(self._ends) :]
        if len(tokens) < _LONGEST_CHARACTER:
            return False
        text = self._decode(tokens)
        for size in range(1, len(tokens)):
            first, rest = self._decode(tokens[:size]), self._decode(tokens[size:])
            if first + rest == text or _INCOMPLETE not in rest:
                self._add(first, len(self._ends) + size)
                self._start, self._head = len(self._ends), ""
                return True
        return False
