"""Checkpoints at block boundaries, at the junction and at the prompt's end, as vLLM keeps them."""

from collections.abc import Sequence

from hybridcache.policies.admission import Planned, PromptFacts, branch_point
from hybridcache.policies.all_blocks import AllBlocks
from hybridcache.policies.columns import BRANCH, PROMPT_END


class BlockEnds(AllBlocks):
    """The state at every block boundary, where a prompt leaves a known path, and at the prompt's end.

    The last two are rounded down to multiples of ``unit`` tokens; nothing is kept at the end of an answer.
    ``boundaries="last"``: of a prompt's boundaries the last one only. vLLM keeps states of hybrid models on
    its block grid, at all boundaries (``mamba_cache_mode=all``) or at the last one of each chunk (``align``),
    and in finer units at a prompt's end and at the junction of two prompts (its documentation, "Automatic
    Prefix Caching", section on hybrid Mamba models).
    """

    name = "block_ends"
    final = False

    def __init__(self, unit: int = 16, boundaries: str = "all") -> None:
        if not isinstance(unit, int) or unit < 1:
            raise ValueError(f"admission.unit={unit!r}: give a number of tokens, at least 1")
        if boundaries not in ("all", "last"):
            raise ValueError(f"admission.boundaries={boundaries!r}: choose all or last")
        self.unit = unit
        self.kept = slice(None) if boundaries == "all" else slice(-1, None)

    def plan(self, prompt: PromptFacts) -> Sequence[Planned]:
        ends = [(junction.position, BRANCH) for junction in branch_point(prompt)]
        ends.append((prompt.num_prompt - 1, PROMPT_END))
        rounded = [Planned(at // self.unit * self.unit, kind) for at, kind in ends]
        boundaries = super().plan(prompt)[self.kept]
        return [*boundaries, *(planned for planned in rounded if planned.position > prompt.hit)]
