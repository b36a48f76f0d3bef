"""Tree search over thoughts: several continuations of each stem, the best are continued (beam search).

Yao et al., Tree of Thoughts, NeurIPS '23, with a beam.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hybridcache.experiments.traces.sampler import Sampler
from hybridcache.experiments.traces.shared_text import shared_text
from hybridcache.experiments.traces.workload import Call, WorkloadSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSearchSettings(WorkloadSettings):
    """About 33 searches of up to 30 calls."""

    sessions_per_second: float = 0.2
    instruction_tokens: float = 800.0  # one text, shared by all searches
    problem_tokens: float = 400.0
    depth: int = 4  # levels of thoughts, exactly
    beam: int = 3  # stems kept a level, exactly
    branches: int = 3  # thoughts sampled from each stem, exactly
    thought_tokens: float = 150.0
    level_seconds: float = 5.0  # from one level to the next
    stagger_seconds: float = 0.05  # between calls of one level


class TreeSearch:
    """See the module."""

    def __init__(self, settings: TreeSearchSettings) -> None:
        self.settings = settings

    def session(self, seed: int, sampler: Sampler) -> Iterator[Call]:
        """One search: calls on one stem have equal inputs and different outputs."""
        s = self.settings
        root = [
            shared_text(seed, 0, 0, s.instruction_tokens, s.vocab_size),
            sampler.message(s.problem_tokens),
        ]
        stems = [root]
        for _ in range(s.depth):
            grown = []
            wait = sampler.seconds(s.level_seconds)
            for stem in stems:
                for _ in range(s.branches):
                    thought = sampler.message(s.thought_tokens)
                    yield Call(wait, list(stem), thought)
                    grown.append([*stem, thought])
                    wait = sampler.seconds(s.stagger_seconds)
            best = sampler.shuffled(list(range(len(grown))))[: s.beam]
            stems = [grown[i] for i in best]
