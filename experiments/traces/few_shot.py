"""Few-shot prompting: a task's examples are shared, the question is new."""

from collections.abc import Iterator
from dataclasses import dataclass

from hybridcache.experiments.traces.sampler import Sampler
from hybridcache.experiments.traces.shared_text import shared_texts
from hybridcache.experiments.traces.workload import Call, WorkloadSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class FewShotSettings(WorkloadSettings):
    """40 tasks whose examples hold some 1,200 tokens each."""

    sessions_per_second: float = 2.0
    tasks: int = 40
    popularity_exponent: float = 1.0  # Zipf, of the tasks
    examples: int = 8  # exactly so many in each prompt, in fixed order
    example_tokens: float = 150.0
    question_tokens: float = 80.0
    answer_tokens: float = 40.0


class FewShot:
    """See the module."""

    def __init__(self, settings: FewShotSettings) -> None:
        self.settings = settings

    def session(self, seed: int, sampler: Sampler) -> Iterator[Call]:
        """One question."""
        s = self.settings
        task = sampler.popular(s.tasks, s.popularity_exponent)
        texts = shared_texts(seed, 0, task, s.vocab_size)
        examples = [texts.message(s.example_tokens) for _ in range(s.examples)]
        yield Call(0.0, [*examples, sampler.message(s.question_tokens)], sampler.message(s.answer_tokens))
