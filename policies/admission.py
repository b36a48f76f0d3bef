"""What an admission policy is."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from hybridcache.policies.columns import BRANCH


class Planned(NamedTuple):
    """A position that is to get a checkpoint."""

    position: int
    """Tokens from the start of the prompt."""
    kind: int
    """BRANCH, PROMPT_END, INTERVAL or MESSAGE_END of columns.py."""


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
    """The end of the last turn of a user or a tool, where it is known."""
    block_size: int
    hints: tuple[int, ...] = ()
    """Other positions that prompts to come are likely to leave the prompt at, ascending."""
    boundaries: tuple[int, ...] = ()
    """Ends of the messages, ascending, where they are known."""
    gone: int = 0
    """The deepest position that the prompt would resume at if nothing had been evicted or expired; 0: none
    beyond the hit."""
    price: float = 0.0
    """Tokens that are computed again, of late, for every checkpoint's worth of bytes that is evicted."""
    keys: tuple[int, ...] = ()
    """Of the prompt's prefixes that end at the policy's ``candidates``: equal for equal prefixes."""


class AdmissionPolicy:
    """Decides which positions get a checkpoint. Knows neither tree nor pools, and changes neither.

    A prompt is shown to ``candidates``, ``learn`` and ``plan``, in this order. Only ``learn`` modifies the
    policy.
    """

    name: ClassVar[str]
    final: ClassVar[bool] = True
    """Whether a finished request's state is kept."""
    latest_only: ClassVar[bool] = False
    """Whether of a request's INTERVAL checkpoints only the last stays, and those that others resumed at."""

    def candidates(self, prompt: PromptFacts) -> Sequence[int]:
        """Positions in [hit, num_prompt) whose keys the policy asks for, ascending."""
        return ()

    def learn(self, prompt: PromptFacts) -> None:
        """A prompt came, with the keys asked for; each prompt once, however often it is preempted."""

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
