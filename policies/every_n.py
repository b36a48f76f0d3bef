"""Checkpoints at regular distances."""

from collections.abc import Sequence

from hybridcache.policies.admission import AdmissionPolicy, Planned, PromptFacts
from hybridcache.policies.columns import INTERVAL


class EveryN(AdmissionPolicy):
    """The state at every multiple of ``n`` tokens, in prompts and in answers, and at the end."""

    name = "every_n"

    def __init__(self, n: int = 512) -> None:
        if not isinstance(n, int) or n < 1:
            raise ValueError(f"admission.n={n!r}: give the tokens between checkpoints, at least 1")
        self.n = n

    def plan(self, prompt: PromptFacts) -> Sequence[Planned]:
        n = self.n
        return [Planned(at, INTERVAL) for at in range(prompt.hit // n * n + n, prompt.num_prompt + 1, n)]

    def next_generated(self, position: int, block_size: int) -> int | None:
        return position // self.n * self.n + self.n
