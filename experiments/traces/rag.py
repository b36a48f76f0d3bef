"""Retrieval: popular documents in changing order before each question."""

from collections.abc import Iterator
from dataclasses import dataclass

from hybridcache.experiments.traces.sampler import Sampler
from hybridcache.experiments.traces.shared_text import shared_text
from hybridcache.experiments.traces.workload import Call, WorkloadSettings

_SYSTEM, _DOCUMENTS = 0, 1  # shelves of shared texts


@dataclass(frozen=True, slots=True, kw_only=True)
class RagSettings(WorkloadSettings):
    """Inputs of some 2,300 tokens; only documents that come first in both orders are reused."""

    sessions_per_second: float = 1.0
    system_tokens: float = 200.0
    documents: int = 200
    document_tokens: float = 600.0
    popularity_exponent: float = 1.2  # Zipf, of the documents
    documents_per_question: int = 3  # exactly; all different
    question_tokens: float = 50.0
    answer_tokens: float = 150.0
    turns: float = 1.5  # mean; geometric: the question and its follow-ups on the same documents
    think_seconds: float = 20.0  # before each follow-up


class Rag:
    """See the module."""

    def __init__(self, settings: RagSettings) -> None:
        """Raises ValueError when a question needs more documents than there are."""
        if settings.documents_per_question > settings.documents:
            raise ValueError(
                f"trace.documents_per_question = {settings.documents_per_question} exceeds "
                f"trace.documents = {settings.documents}"
            )
        self.settings = settings

    def session(self, seed: int, sampler: Sampler) -> Iterator[Call]:
        """One question and its follow-ups."""
        s = self.settings
        found = sampler.several(s.documents, s.popularity_exponent, s.documents_per_question)
        history = [shared_text(seed, _SYSTEM, 0, s.system_tokens, s.vocab_size)]
        history += [
            shared_text(seed, _DOCUMENTS, i, s.document_tokens, s.vocab_size) for i in sampler.shuffled(found)
        ]
        wait = 0.0
        for _ in range(sampler.count(s.turns)):
            history.append(sampler.message(s.question_tokens))
            answer = sampler.message(s.answer_tokens)
            yield Call(wait, list(history), answer)
            history.append(answer)
            wait = sampler.seconds(s.think_seconds)
