"""The prompts that a worker was sent, explained when somebody asks."""

from collections import deque
from collections.abc import Mapping, Sequence
from threading import Lock

from hybridcache.explainer import Explainer
from hybridcache.explanation import Explanation, TemplateTotals
from hybridcache.prefix_cache import PrefixMatch
from hybridcache.prompt_log import MOST_PROMPTS, MOST_TOKENS, PromptRecord
from hybridcache.reclaimer import checked_ttl
from hybridcache.request import Request


class Traffic:
    """Noting a request costs an append; comparing prompts is left to whoever asks, in their thread.

    Of what was sent between two questions the last prompts count: at most ``most_prompts``, of at most
    ``most_tokens`` tokens (4 bytes each) together. Thread-safe.
    """

    def __init__(
        self,
        explainer: Explainer,
        ttl_seconds: float | None = None,
        *,
        most_prompts: int = MOST_PROMPTS,
        most_tokens: int = MOST_TOKENS,
    ) -> None:
        """``ttl_seconds``: how long what a request without a life of its own leaves in the cache lives."""
        self._explainer, self._ttl_seconds = explainer, ttl_seconds
        self._most_prompts, self._most_tokens = most_prompts, most_tokens
        self._lock = Lock()
        """Of the explainer: held for as long as explaining takes."""
        self._noting = Lock()
        """Of what was noted: held for a moment, since the engine waits for it."""
        self._noted: deque[PromptRecord] = deque()
        self._num_tokens = 0

    @property
    def num_noted_tokens(self) -> int:
        """Tokens of the prompts that nobody has asked about yet."""
        return self._num_tokens

    def note(self, request: Request) -> None:
        """A request ended. One that shares nothing by its own wish, or was never let in, does not count.

        Nor does a prompt longer than ``most_tokens``.
        """
        size = request.num_prompt
        if request.private or not (request.hit or request.lost) or size > self._most_tokens:
            return
        record = self._record(request, PrefixMatch(request.hit, request.matched), request.lost)
        with self._noting:
            self._noted.append(record)
            self._num_tokens += size
            while len(self._noted) > self._most_prompts or self._num_tokens > self._most_tokens:
                self._num_tokens -= len(self._noted.popleft().tokens)

    def explain(self, request: Request, match: PrefixMatch, lost: Mapping[str, int]) -> Explanation:
        """Explain a prompt that is not sent, and what it would find now, against those that were sent."""
        with self._lock:
            self._take_in()
            return self._explainer.explain(self._record(request, match, lost))

    def totals(self) -> Sequence[TemplateTotals]:
        """What was lost so far, by namespace and template, and why."""
        with self._lock:
            self._take_in()
            return self._explainer.totals

    def _record(self, request: Request, match: PrefixMatch, lost: Mapping[str, int]) -> PromptRecord:
        looked_at = request.arrival if request.admitted_at is None else request.admitted_at
        ended_at = looked_at if request.finished_at is None else request.finished_at
        ttl = self._ttl_seconds if request.ttl_seconds is None else request.ttl_seconds
        return PromptRecord(
            request.namespace,
            request.prompt,
            request.boundaries,
            *match,
            lost,
            looked_at,
            ended_at + checked_ttl(ttl),
        )

    def _take_in(self) -> None:
        with self._noting:
            taken, self._noted, self._num_tokens = self._noted, deque(), 0
        for record in taken:
            self._explainer.add(record)
