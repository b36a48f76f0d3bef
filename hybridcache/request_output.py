"""What a client gets: answers, and what the cache did for their prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hybridcache.request import Choice
from hybridcache.tokens import TokenIds


class Chunk(NamedTuple):
    """The next part of one answer."""

    sample: int
    """Which of the `n` answers to the prompt, from 0."""
    token_ids: Sequence[int]
    text: str
    """Empty without a tokenizer, and while a character or a possible stop text is incomplete."""
    logprobs: Sequence[Choice]
    """One a token, where they were asked for."""
    finish_reason: str | None
    """Set in an answer's last chunk."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer. All parts of a Chunk joined are equal to it."""

    token_ids: Sequence[int]
    """The end token and what a stop text cut off are not among them, nor a token that it cut in two."""
    num_generated_tokens: int
    """All that were generated but for the end token: those that a stop text cut off too."""
    text: str | None
    """None without a tokenizer."""
    finish_reason: str
    """stop (an end token or a stop text), length, or abort."""
    stop_text: str | None
    """The stop text that ended the answer."""
    logprobs: Sequence[Choice] | None
    """One a token; None unless asked for."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The answers to one prompt. The prompt counts once, however many answers there are."""

    request_id: str
    prompt_token_ids: Sequence[int] | TokenIds
    """[num_prompt_tokens]"""
    num_prompt_tokens: int
    num_cached_tokens: int
    """Prompt tokens that were not computed for the first answer; the others share what it computes."""
    miss: Mapping[str, int]
    """Prompt tokens by the reason why they were not cached (`hybridcache.loss.LOSS_REASONS`).

    With `num_cached_tokens` they add up to `num_prompt_tokens`; empty when the request ended in the queue.
    """
    ttft_seconds: float | None
    """From submission to the first token; None when there was none."""
    prompt_logprobs: Sequence[Choice | None] | None
    """One a prompt token, None for the first; None unless asked for."""
    samples: Sequence[Sample]
    """The `n` answers."""

    @property
    def token_ids(self) -> Sequence[int]:
        """Of the first answer."""
        return self.samples[0].token_ids

    @property
    def text(self) -> str | None:
        """Of the first answer."""
        return self.samples[0].text

    @property
    def finish_reason(self) -> str:
        """Of the first answer."""
        return self.samples[0].finish_reason

    @property
    def logprobs(self) -> Sequence[Choice] | None:
        """Of the first answer."""
        return self.samples[0].logprobs
