"""Checkpoints on a grid of tokens, as SGLang keeps them."""

from collections.abc import Sequence

from hybridcache.policies.admission import AdmissionPolicy, Planned, PromptFacts
from hybridcache.policies.columns import BRANCH, PROMPT_END


class Grid(AdmissionPolicy):
    """The end of the known path and the prompt's end, both rounded down to multiples of ``grid`` tokens.

    Of an answer the last multiple of ``every`` tokens; nothing at its end. SGLang keeps states so, since its
    kernels hand them out at every 64th token of a prompt, and it tracks every 256th position of an answer
    (``mamba_track_interval``; strategy ``extra_buffer``). Ends of prefill chunks are left out here.
    """

    name = "grid"
    final = False
    latest_only = True

    def __init__(self, grid: int = 64, every: int = 256) -> None:
        for key, value in (("grid", grid), ("every", every)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"admission.{key}={value!r}: give a number of tokens, at least 1")
        self.grid = grid
        self.every = every

    def plan(self, prompt: PromptFacts) -> Sequence[Planned]:
        ends = ((prompt.matched, BRANCH), (prompt.num_prompt, PROMPT_END))
        on_grid = [Planned(at // self.grid * self.grid, kind) for at, kind in ends]
        return [planned for planned in on_grid if planned.position > prompt.hit]

    def next_generated(self, position: int, block_size: int) -> int | None:
        return position // self.every * self.every + self.every
