"""Texts that many sessions have in common."""

from hybridcache.experiments.traces.sampler import Sampler
from hybridcache.tokens import TokenIds

_SHARED = 1  # second name of these random streams; sessions have 2, arrivals 3


def shared_texts(seed: int, shelf: int, index: int, vocab_size: int) -> Sampler:
    """Makes the texts at place `index` of `shelf` (e.g. the documents): the same ones each time it is called.

    They are made again rather than kept, so that memory does not grow with their number.
    """
    return Sampler(seed, _SHARED, shelf, index, vocab_size=vocab_size)


def shared_text(seed: int, shelf: int, index: int, mean_tokens: float, vocab_size: int) -> TokenIds:
    """The first text there, of about `mean_tokens`."""
    return shared_texts(seed, shelf, index, vocab_size).message(mean_tokens)
