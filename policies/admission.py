"""What an admission policy is."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from hybridcache.policies.columns import BRANCH


class Planned(NamedTuple):
    """A position that is to get a checkpoint."""

    position: int
    """Tokens from the start of the prompt."""
    kind: int
    """FINAL, BRANCH, PROMPT_END or INTERVAL of columns.py."""


class PromptFacts(NamedTuple):
    """A prompt and how far the tree knows it; tokens."""

    num_prompt: int
    hit: int
    """Tokens that need not be computed; checkpoints are planned beyond."""
    matched: int
    """Tokens on a known path."""
    leaves_path: bool
    """Whether a known path goes on from ``matched``, so that the prompt leaves it there."""
    turn_end: int | None
    """The end of the last user turn, where it is known."""
    block_size: int
    hints: tuple[int, ...] = ()
    """Other positions that prompts to come are likely to leave the prompt at, ascending."""


class AdmissionPolicy:
    """Decides which positions get a checkpoint. Knows neither tree nor pools; changes nothing."""

    name: ClassVar[str]
    final: ClassVar[bool] = True
    """Whether a finished request's state is kept."""
    latest_only: ClassVar[bool] = False
    """Whether of a request's INTERVAL checkpoints only the last stays, and those that others resumed at."""

    def plan(self, prompt: PromptFacts) -> Sequence[Planned]:
        """Positions in (hit, num_prompt], in any order, for a request about to start."""
        return ()

    def next_generated(self, position: int, block_size: int) -> int | None:
        """The next position beyond ``position`` to checkpoint among generated tokens, if any."""
        return None


def branch_point(prompt: PromptFacts) -> Sequence[Planned]:
    """Where the prompt leaves a known path: others may leave it there too.

    When the path knows the whole prompt, whether it goes on or not, one token earlier, since one token is
    always computed: a prompt sent again and again then hits from the third time on.
    """
    position = min(prompt.matched, prompt.num_prompt - 1)
    if (prompt.leaves_path or position < prompt.matched) and position > prompt.hit:
        return (Planned(position, BRANCH),)
    return ()
