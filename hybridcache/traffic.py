"""The prompts that a worker was sent, explained when somebody asks."""

from collections import deque
from collections.abc import Sequence
from threading import Lock

from hybridcache.explainer import Explainer
from hybridcache.explanation import Explanation, TemplateTotals
from hybridcache.prompt_log import MOST_PROMPTS, PromptRecord
from hybridcache.request import Request


class Traffic:
    """Noting a request costs an append; comparing prompts is left to whoever asks, in their thread.

    Of what was sent between two questions, the last 512 prompts count. Thread-safe.
    """

    def __init__(self, explainer: Explainer) -> None:
        self._explainer = explainer
        self._lock = Lock()
        self._noted: deque[PromptRecord] = deque(maxlen=MOST_PROMPTS)

    def note(self, request: Request) -> None:
        """A request ended. One that shares nothing by its own wish, or was never let in, does not count."""
        if request.private or not (request.hit or request.lost):
            return
        self._noted.append(
            PromptRecord(
                request.namespace,
                request.prompt,
                request.boundaries,
                request.hit,
                request.matched,
                request.lost,
            )
        )

    def explain(self, record: PromptRecord) -> Explanation:
        """Explain a prompt against those that were sent."""
        with self._lock:
            self._take_in()
            return self._explainer.explain(record)

    def totals(self) -> Sequence[TemplateTotals]:
        """What was lost so far, by namespace and template, and why."""
        with self._lock:
            self._take_in()
            return self._explainer.totals

    def _take_in(self) -> None:
        while self._noted:
            self._explainer.add(self._noted.popleft())
