"""One request from its submission to its end."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

import numpy as np

from hybridcache.lease import Lease, Wait
from hybridcache.namespace import Namespace
from hybridcache.sampling_params import SamplingParams
from hybridcache.tokens import TokenIds


class Choice(NamedTuple):
    """A token and how likely it was."""

    token: int
    logprob: float
    """Natural logarithm of its probability before temperature, penalties and filters."""
    top: tuple[tuple[int, float], ...]
    """The likeliest tokens and their log probabilities, as many as were asked for."""


class Reader(Protocol):
    """Turns an answer's tokens into what the client is given of it."""

    @property
    @abstractmethod
    def num_given(self) -> int:
        """Tokens of the answer that the client has in whole, and can send back."""

    @abstractmethod
    def read(self, token: int) -> bool:
        """Take the next token; whether the answer ends here, in a stop text."""


class FinishReason(Enum):
    """Why a request ended."""

    STOP = "stop"
    """An end token or a stop text."""
    LENGTH = "length"
    """max_tokens, or the most that model and budget allow."""
    ABORT = "abort"
    """The client went away or asked for it."""
    ERROR = "error"
    """A step failed; `Request.error` says how."""


class Request:
    """Prompt, parameters, and where the request stands. Changed by Scheduler and Engine alone.

    Times are seconds of the engine's clock.
    """

    __slots__ = (
        "id", "prompt", "params", "max_tokens", "end_token_ids", "namespace", "arrival", "boundaries",
        "turn_end", "hints", "ttl_seconds", "priority", "script", "sample", "reader", "private",
        "prompt_choices", "output", "lease", "wait", "waited", "looked_at", "finish_reason", "error", "hit",
        "matched", "lost",
        "num_preemptions", "admitted_at", "first_token_at", "last_token_at",
        "finished_at",
    )  # fmt: skip

    def __init__(
        self,
        request_id: int,
        prompt: TokenIds,
        params: SamplingParams,
        *,
        max_tokens: int,
        namespace: Namespace,
        arrival: float,
        end_token_ids: frozenset[int] = frozenset(),
        boundaries: Sequence[int] = (),
        turn_end: int | None = None,
        hints: Sequence[int] = (),
        ttl_seconds: float | None = None,
        priority: int = 0,
        script: TokenIds | None = None,
        sample: int = 0,
        reader: Reader | None = None,
        private: bool = False,
    ) -> None:
        self.id = request_id
        """Unique in the engine."""
        self.prompt = prompt
        self.params = params
        self.max_tokens = max_tokens
        """Tokens to generate at most; resolved, at least 1."""
        self.end_token_ids = end_token_ids
        """Tokens that end the answer."""
        self.namespace = namespace
        self.arrival = arrival
        self.boundaries = boundaries
        """Ends of the prompt's messages, tokens, ascending."""
        self.turn_end = turn_end
        """End of the last turn of a user or a tool, tokens, where it is known."""
        self.hints = hints
        """Positions in the prompt where others are likely to leave it, tokens, ascending."""
        self.ttl_seconds = ttl_seconds
        """How long what it computes or reads lives, seconds; None: the cache's own."""
        self.priority = priority
        """Lower runs first."""
        self.script = script
        """The answer, given beforehand (a replay): nothing is sampled."""
        self.sample = sample
        """Which of the `n` answers to one prompt this is, from 0."""
        self.reader = reader
        """None: the client is given every token as it comes."""
        self.private = private
        """Nothing of it is kept: no other request has its namespace, which goes with it."""
        self.prompt_choices: list[Choice] = []
        """How likely each prompt token from the second on was, where that was asked for."""
        self.output: list[int] = []
        """Tokens generated so far; the last one is not computed yet."""
        self.lease: Lease | None = None
        self.wait: Wait | None = None
        """What the request waits for before it acquires again."""
        self.waited: set[int] = set()
        """Positions it has waited for."""
        self.looked_at = -1
        """How many leases had been given when it last looked for others' prefixes without taking one."""
        self.finish_reason: FinishReason | None = None
        self.error: BaseException | None = None
        self.hit = 0
        """Prompt tokens that the cache gave, at the first acquire."""
        self.matched = 0
        self.lost: Mapping[str, int] = {}
        """Prompt tokens by loss reason, at the first acquire."""
        self.num_preemptions = 0
        self.admitted_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at = 0.0
        """Of the latest token, once there is one."""
        self.finished_at: float | None = None

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt)

    @property
    def num_tokens(self) -> int:
        """Tokens known: prompt and answer so far."""
        return len(self.prompt) + len(self.output)

    @property
    def finished(self) -> bool:
        """Whether it has ended in any way."""
        return self.finish_reason is not None

    def tokens(self, start: int, stop: int) -> TokenIds:
        """Ids [stop - start] of prompt and answer at the positions [start, stop)."""
        num_prompt = len(self.prompt)
        if stop <= num_prompt:
            return self.prompt[start:stop]
        tail = np.array(self.output[max(start - num_prompt, 0) : stop - num_prompt], dtype=np.uint32)
        return np.concatenate((self.prompt[start:], tail)) if start < num_prompt else tail

    def __repr__(self) -> str:
        return (
            f"Request({self.id}, prompt={self.num_prompt}, output={len(self.output)}, "
            f"finish_reason={self.finish_reason})"
        )
