"""Marconi's admission, and the end of the prompt."""

from collections.abc import Sequence

from hybridcache.policies.admission import AdmissionPolicy, Planned, PromptFacts, branch_point
from hybridcache.policies.columns import BRANCH, PROMPT_END


class BranchFinalPrompt(AdmissionPolicy):
    """As ``branch_and_final``, and the end of the last turn of a user or a tool, so that a prompt sent again
    hits, and so does the next turn when the answer comes back changed (without its reasoning, say).

    Where the turn's end is not known, or is the prompt's, one token before the prompt's end. A position that
    the client hints at (the end of a system prompt, a cache breakpoint) is kept the first time it is seen.
    """

    name = "branch_final_prompt"

    def plan(self, prompt: PromptFacts) -> Sequence[Planned]:
        position = prompt.num_prompt - 1
        if prompt.turn_end is not None:
            position = min(prompt.turn_end, position)
        end = [Planned(position, PROMPT_END)] if position > prompt.hit else []
        hinted = [Planned(hint, BRANCH) for hint in prompt.hints if prompt.hit < hint < prompt.num_prompt]
        return [*branch_point(prompt), *hinted, *end]
