"""A trace whose tokens a model knows."""

import warnings
from collections.abc import Iterator

import numpy as np

from hybridcache.experiments.traces.request import Trace, TraceRequest


class VocabularyTrace:
    """Token ids modulo the vocabulary, with a warning when one lies beyond it.

    Equal tokens stay equal; two that differ meet with a chance of one in the vocabulary's size, which lets
    prompts share a token more than in the trace. Raises ValueError for a request that is too long.
    """

    def __init__(self, trace: Trace, vocab_size: int, max_tokens: int) -> None:
        self._trace = trace
        self._vocab_size = vocab_size
        self._max_tokens = max_tokens
        self.name = trace.name
        self.num_requests = trace.num_requests
        self.has_outputs = trace.has_outputs

    def __iter__(self) -> Iterator[TraceRequest]:
        warned = False
        for index, request in enumerate(self._trace):
            if len(request.tokens) > self._max_tokens:
                raise ValueError(
                    f"request {index} of {self.name} has {len(request.tokens)} tokens with its answer; the "
                    f"model is made for {self._max_tokens}: choose another model, or shorter requests"
                )
            most = int(request.tokens.max())
            if most < self._vocab_size:
                yield request
                continue
            if not warned:
                warnings.warn(
                    f"{self.name} has token {most}: ids are taken modulo the model's vocabulary of "
                    f"{self._vocab_size}",
                    stacklevel=2,
                )
                warned = True
            yield request._replace(tokens=request.tokens % np.uint32(self._vocab_size))
