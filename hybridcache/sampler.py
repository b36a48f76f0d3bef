"""Chooses the next token from logits, in numpy: each request by itself, so that a batch changes nothing."""

import numpy as np
from numpy.typing import NDArray

from hybridcache.request import Choice, Request
from hybridcache.sampling_params import SamplingParams

Logits = NDArray[np.float32]
"""[vocab_size] of one position."""


class Sampler:
    """Stateless but for the seeds of requests that gave none."""

    __slots__ = ("_entropy",)

    def __init__(self, entropy: int | None = None) -> None:
        """``entropy`` seeds the requests without a seed; None: another one each time."""
        self._entropy = np.random.SeedSequence(entropy).entropy

    def next_token(self, request: Request, logits: Logits) -> int:
        """The token to go on with."""
        params = request.params
        scores = self._adjusted(request, logits)
        if params.greedy:
            return int(scores.argmax())
        # The likeliest stays at 0, however low the temperature.
        scores -= scores.max()
        with np.errstate(over="ignore"):
            scores /= params.temperature
        _keep_likeliest(scores, params)
        probabilities = np.exp(scores - scores.max())
        cumulated = probabilities.cumsum()
        # A draw of its own for every place in the answer: preemption and batching leave it as it is.
        seed = [*self._seed(request), len(request.output)]
        draw = np.random.Generator(np.random.PCG64(seed)).random() * cumulated[-1]
        return int(min(cumulated.searchsorted(draw, side="right"), np.flatnonzero(probabilities)[-1]))

    def choice(self, token: int, logits: Logits, num_top: int) -> Choice:
        """How likely ``token`` was, and the ``num_top`` likeliest tokens."""
        logprobs = log_softmax(logits)
        top = _likeliest(logprobs, num_top) if num_top else ()
        return Choice(token, float(logprobs[token]), tuple((int(i), float(logprobs[i])) for i in top))

    def _seed(self, request: Request) -> tuple[int, ...]:
        if request.params.seed is not None:
            return (0, request.params.seed, request.sample)
        assert isinstance(self._entropy, int)
        return (1, self._entropy, request.id)

    @staticmethod
    def _adjusted(request: Request, logits: Logits) -> NDArray[np.float64]:
        """Logits [vocab_size] after bias, penalties and min_tokens."""
        params = request.params
        scores = logits.astype(np.float64)
        for token, bias in params.logit_bias.items():
            scores[token] += bias
        if params.repetition_penalty != 1.0:
            seen = np.unique(request.tokens(0, request.num_tokens))
            score = scores[seen]
            penalty = params.repetition_penalty
            scores[seen] = np.where(score > 0, score / penalty, score * penalty)
        if (params.presence_penalty or params.frequency_penalty) and request.output:
            tokens, counts = np.unique(request.output, return_counts=True)
            scores[tokens] -= params.presence_penalty + params.frequency_penalty * counts
        if len(request.output) < params.min_tokens:
            scores[list(request.end_token_ids)] = -np.inf
        return scores


def log_softmax(logits: Logits) -> NDArray[np.float64]:
    """Log probabilities [vocab_size]."""
    scores = logits.astype(np.float64)
    scores -= scores.max()
    scores -= np.log(np.exp(scores).sum())
    return scores


def _likeliest(logprobs: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """The ``count`` likeliest tokens, of equals the lowest ids, without sorting all."""
    count = min(count, len(logprobs))
    least = np.partition(logprobs, len(logprobs) - count)[len(logprobs) - count]
    candidates = np.flatnonzero(logprobs >= least)
    return candidates[np.argsort(-logprobs[candidates], kind="stable")][:count]


def _keep_likeliest(scores: NDArray[np.float64], params: SamplingParams) -> None:
    """Set the scores that top_k, top_p and min_p leave out to -inf, in place; ties go by lowest id."""
    order = np.argsort(-scores, kind="stable")
    kept = len(order)
    if params.top_k:
        kept = min(kept, params.top_k)
    weights = np.exp(scores[order] - scores[order[0]])
    if params.top_p < 1.0:
        cumulated = weights[:kept].cumsum()
        kept = min(kept, int(cumulated.searchsorted(params.top_p * cumulated[-1])) + 1)
    if params.min_p > 0.0:
        kept = min(kept, max(1, int(np.count_nonzero(weights >= params.min_p))))
    scores[order[kept:]] = -np.inf
