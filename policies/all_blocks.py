"""Checkpoints at every block boundary."""

from collections.abc import Sequence

from hybridcache.policies.admission import AdmissionPolicy, Planned, PromptFacts
from hybridcache.policies.every_n import EveryN


class AllBlocks(AdmissionPolicy):
    """The state at every block boundary, as vLLM keeps it with its "all" mode; the end too."""

    name = "all_blocks"

    def plan(self, prompt: PromptFacts) -> Sequence[Planned]:
        return EveryN(prompt.block_size).plan(prompt)

    def next_generated(self, position: int, block_size: int) -> int | None:
        return EveryN(block_size).next_generated(position, block_size)
