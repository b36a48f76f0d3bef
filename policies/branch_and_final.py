"""Marconi's admission."""

from collections.abc import Sequence

from hybridcache.policies.admission import AdmissionPolicy, Planned, PromptFacts, branch_point


class BranchAndFinal(AdmissionPolicy):
    """The state where a prompt leaves a known path, and at the end of each request.

    (Pan et al., "Marconi: Prefix Caching for the Era of Hybrid LLMs", MLSys 2025, section 4.1.)
    """

    name = "branch_and_final"

    def plan(self, prompt: PromptFacts) -> Sequence[Planned]:
        return branch_point(prompt)
