"""Scans: long documents read once go by a working set that is read again and again."""

from collections.abc import Iterator
from dataclasses import dataclass

from hybridcache.experiments.traces.sampler import Sampler
from hybridcache.experiments.traces.shared_text import shared_text
from hybridcache.experiments.traces.workload import Call, WorkloadSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSettings(WorkloadSettings):
    """A working set of some 48,000 tokens, and one-off documents of 6,000 in between."""

    requests: int = 800
    documents: int = 24  # in the working set
    document_tokens: float = 2000.0
    popularity_exponent: float = 0.8  # Zipf, of the working set
    scan_fraction: float = 0.3  # of the requests are one-off
    scan_tokens: float = 6000.0
    question_tokens: float = 60.0
    answer_tokens: float = 120.0


class Scan:
    """See the module."""

    def __init__(self, settings: ScanSettings) -> None:
        self.settings = settings

    def session(self, seed: int, sampler: Sampler) -> Iterator[Call]:
        """One question about one document."""
        s = self.settings
        if sampler.happens(s.scan_fraction):
            document = sampler.message(s.scan_tokens)
        else:
            index = sampler.popular(s.documents, s.popularity_exponent)
            document = shared_text(seed, 0, index, s.document_tokens, s.vocab_size)
        yield Call(0.0, [document, sampler.message(s.question_tokens)], sampler.message(s.answer_tokens))
