"""Turns what a client asks for into requests: everything is checked here, before the engine sees it."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridcache.answer import Answer
from hybridcache.engine import Clock
from hybridcache.namespace import Namespace
from hybridcache.prefix_cache import RequestTooLarge
from hybridcache.request import Request
from hybridcache.sampling_params import SamplingParams
from hybridcache.spec import ModelSpec
from hybridcache.text_codec import ChatPrompt, TextCodec, check_unicode
from hybridcache.text_stream import TextStream
from hybridcache.tokens import TokenIds, as_token_ids

MOST_SALT = 256
"""Characters of a cache salt."""

Prompt = str | Sequence[int] | NDArray[np.integer[Any]]
"""A text, or token ids."""


class Intake:
    """Makes requests for one model and one cache. Thread-safe."""

    def __init__(
        self,
        spec: ModelSpec,
        clock: Clock,
        fits: Callable[[int, int], bool],
        *,
        max_model_len: int,
        end_token_ids: Sequence[int],
        codec: TextCodec | None,
        cache: bool,
    ) -> None:
        """``fits`` as PrefixCache.fits; ``cache`` False makes every request private."""
        self.spec = spec
        self.codec = codec
        self._clock = clock
        self._fits = fits
        self._max_model_len = max_model_len
        self.end_token_ids = end_token_ids
        """The checkpoint's; may be set anew."""
        self._cache = cache
        self._ids = count()

    def answers(
        self,
        prompt: Prompt | ChatPrompt,
        params: SamplingParams,
        cache_salt: str | None,
        *,
        priority: int = 0,
        ttl_seconds: float | None = None,
    ) -> list[Answer]:
        """The `n` answers to a prompt, still to be submitted.

        Raises ValueError naming what is wrong; RequestTooLarge for what the model or the budget cannot hold.
        """
        chat = prompt if isinstance(prompt, ChatPrompt) else ChatPrompt(self._tokens(prompt))
        # A copy: the caller may use the array for its next prompt before this one has been computed.
        tokens = self._tokens(chat.token_ids).copy()
        tokens.flags.writeable = False
        self._check_params(params)
        if isinstance(priority, bool) or not isinstance(priority, int):
            # The queue is sorted by it: what cannot be compared would end the engine.
            raise ValueError(f"priority={priority!r}: give a whole number")
        if ttl_seconds is not None and not _is_duration(ttl_seconds):
            raise ValueError(f"ttl_seconds={ttl_seconds!r}: give seconds above 0, or None for the worker's")
        salt = checked_salt(cache_salt)
        max_tokens = self._max_tokens(len(tokens), params)
        ends = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            ends |= frozenset(self.end_token_ids)
        arrival = self._clock.now()
        anew = isinstance(prompt, ChatPrompt) and not prompt.goes_on
        before = None if anew else int(tokens[-1])
        answers = []
        for sample in range(params.n):
            request_id = next(self._ids)
            private = not self._cache or (params.prompt_logprobs is not None and sample == 0)
            reader = None if self.codec is None else self._reader(self.codec, params, before)
            request = Request(
                request_id,
                tokens,
                params if sample == 0 else params.without_prompt_logprobs(),
                max_tokens=max_tokens,
                namespace=Namespace(self.spec.fingerprint, salt=_private(request_id) if private else salt),
                arrival=arrival,
                end_token_ids=ends,
                boundaries=tuple(chat.boundaries),
                turn_end=chat.turn_end,
                hints=tuple(chat.hints),
                ttl_seconds=ttl_seconds,
                priority=priority,
                sample=sample,
                reader=reader,
                private=private,
            )
            answers.append(Answer(request, reader))
        return answers

    def _tokens(self, prompt: Prompt) -> TokenIds:
        if isinstance(prompt, bytes | bytearray):
            raise ValueError("the prompt is bytes: give a text, or token ids")
        if isinstance(prompt, str):
            tokens = as_token_ids(self._codec("a text prompt").encode(prompt))
        else:
            tokens = as_token_ids(prompt)
        if not len(tokens):
            raise ValueError("the prompt is empty: give at least one token")
        if (most := int(tokens.max())) >= self.spec.vocab_size:
            last = self.spec.vocab_size - 1
            raise ValueError(f"the prompt has token {most}; the vocabulary ends at {last}")
        return tokens

    def _max_tokens(self, num_prompt: int, params: SamplingParams) -> int:
        """What may be generated: what was asked for, or all that the model's length and the budget allow."""
        room = self._max_model_len - num_prompt
        asked = params.max_tokens
        if room < (asked or 1):
            raise RequestTooLarge(
                f"{num_prompt} prompt tokens and max_tokens={asked} exceed max_model_len="
                f"{self._max_model_len}: shorten the prompt or ask for fewer tokens"
            )
        if asked is not None:
            return asked
        if self._fits(num_prompt, room):
            return room
        fits, too_many = 1, room  # a prompt that does not fit with one token is refused at submission
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if self._fits(num_prompt, middle):
                fits = middle
            else:
                too_many = middle
        return max(fits, min(params.min_tokens, room))

    def _check_params(self, params: SamplingParams) -> None:
        if not isinstance(params, SamplingParams):
            raise ValueError(f"params={params!r}: give SamplingParams, or None for the checkpoint's own")
        for name in ("stop_token_ids", "shown_token_ids", "logit_bias"):
            for token in getattr(params, name):
                if token >= self.spec.vocab_size:
                    raise ValueError(
                        f"{name} has token {token}; the vocabulary ends at {self.spec.vocab_size - 1}"
                    )
        if params.stop:
            self._codec("stop texts")
        for text in params.stop:
            check_unicode(text, f"stop={text!r}")

    def _codec(self, what: str) -> TextCodec:
        if self.codec is None:
            raise ValueError(f"{what}: the checkpoint has no tokenizer; give token ids and stop_token_ids")
        return self.codec

    @staticmethod
    def _reader(codec: TextCodec, params: SamplingParams, before: int | None) -> TextStream:
        decode = codec.decoder(params.shown_token_ids)
        return TextStream(decode, params.stop, params.min_tokens, before=before)


def prompts_of(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as several. Raises ValueError for none, and for what is no prompt."""
    if isinstance(prompts, str | bytes | bytearray | np.ndarray) and np.ndim(prompts) < 2:
        return [prompts]
    if isinstance(prompts, Mapping | Set) or not isinstance(prompts, Iterable):
        # Of a mapping the names would be answered, of a set the elements in any order.
        raise ValueError(f"prompts={prompts!r}: give a text, token ids or a list of them; chats go to chat()")
    found = list(prompts)
    if not found:
        raise ValueError("prompts is empty: give a text, token ids, or a list of them")
    if isinstance(found[0], int | np.integer):
        return [found]
    if not all(isinstance(prompt, str | Sequence | np.ndarray) for prompt in found):
        kinds = sorted({type(prompt).__name__ for prompt in found})
        raise ValueError(
            f"prompts has {', '.join(kinds)}: give texts or lists of token ids; chats go to chat()"
        )
    return found


def checked_salt(salt: str | None) -> str:
    """A namespace's salt. Raises ValueError for what is none."""
    if salt is None:
        return ""
    if not isinstance(salt, str) or not 1 <= len(salt) <= MOST_SALT:
        raise ValueError(f"cache_salt={salt!r}: give a text of 1 to {MOST_SALT} characters, or None")
    check_unicode(salt, f"cache_salt={salt!r}")
    return salt


def _is_duration(seconds: object) -> bool:
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    return number and 0 < seconds < float("inf")  # type: ignore[operator]


def _private(request_id: int) -> str:
    """A salt that no client can give: longer than any of theirs."""
    return f"request {request_id}".rjust(MOST_SALT + 1)
