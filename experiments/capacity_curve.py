"""The hit rate against the budget, from a sample of sessions."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hybridcache.experiments.replay_cache import replay_cache
from hybridcache.experiments.replay_settings import UNBOUNDED_BYTES
from hybridcache.experiments.request_rows import COLUMNS, RequestRows
from hybridcache.experiments.trace_sample import TraceSample
from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.policies.admission import AdmissionPolicy
from hybridcache.policies.eviction import EvictionPolicy
from hybridcache.prefix_cache import PrefixCache
from hybridcache.spec import ModelSpec

_HIT = list(COLUMNS).index("hit_tokens")

NUM_BUDGETS = 12
_SMALLEST, _LARGEST = 1 / 256, 1 / 2  # budgets, as parts of all that is ever stored
_EVEN = 0.015
"""Of the input: between two budgets whose hit rates differ by no more, the rest is not replayed."""
_LITTLE = 0.02  # of the input: hits that are worth no replay of their own
_AS_GOOD = 0.002  # of the input: common texts that hit so nearly what they can need no replay of their own


class Policies(NamedTuple):
    """What learns from replay to replay."""

    eviction: EvictionPolicy
    admission: AdmissionPolicy


MakePolicies = Callable[[], Policies]
MakeCache = Callable[[float, Policies], PrefixCache]
"""A new cache of so many bytes."""


class Curve(NamedTuple):
    """Estimates for the whole trace; rates are parts of all input tokens."""

    budgets: Sequence[float]
    """Bytes, ascending."""
    rates: Sequence[float]
    bound: float
    """Of an infinite cache."""
    stored: float
    """Bytes that an infinite cache holds in the end."""

    def budget_for(self, rate: float) -> float | None:
        """Bytes from which on the estimate is ``rate`` or more (between budgets by logarithm), or None."""
        rates = np.maximum.accumulate(self.rates)
        place = int(np.searchsorted(rates, rate))
        if place == len(rates):
            return None
        if not place:
            return float(self.budgets[0])
        low, high = np.log(self.budgets[place - 1 : place + 1])
        part = (rate - rates[place - 1]) / (rates[place] - rates[place - 1])
        return float(np.exp(low + part * (high - low)))

    def rate_at(self, budget: float) -> float:
        """The estimate at a budget in bytes."""
        if budget >= self.stored:
            return self.bound
        below = [place for place, known in enumerate(self.budgets) if known < self.stored]
        budgets = [*(self.budgets[place] for place in below), self.stored]
        rates = [*np.maximum.accumulate(self.rates)[below], self.bound]
        return float(np.interp(np.log(budget), np.log(budgets), rates))


class Checked(NamedTuple):
    """Full replays beside the estimate."""

    rates: Sequence[float]
    """Of all input tokens, by budget."""
    seconds: float
    """Of the processor, for all of them."""


class Plan(NamedTuple):
    """An estimate, and what it took."""

    trace: str
    model: str
    curve: Curve
    rate: float
    num_sampled: int
    num_sessions: int
    seconds: float
    """Of the processor, for the estimate, reading the trace included."""
    checked: Checked | None


def estimate_curve(
    sample: TraceSample,
    spec: ModelSpec,
    make_policies: MakePolicies,
    make_cache: MakeCache,
    budgets: Sequence[float] | None = None,
) -> Curve:
    """Replay the sample, infinite cache and budgets (bytes; None: 12 of them), as far as needed.

    A budget B of the trace is rate x (B - fixed) + fixed of the sample's, where the requests that run and the
    common texts are fixed. That is so for what sessions reuse of their own. A common text is used by fewer
    requests of the sample, in as much less time than the cache takes to be filled anew: its hits are those of
    a cache of B bytes, and the rest is replayed alone where there is no room for both. Each part is scaled by
    what an endless cache hits in the trace and in the sample.
    """
    replays = _Replays(sample, make_policies, make_cache)
    endless = replays.run(UNBOUNDED_BYTES)
    # Hits are counted in tokens, and a token is met in a long request more often than in a short one.
    lengths = np.array([len(request.tokens) for request in sample.requests], np.float64)
    running = float(np.average(lengths, weights=lengths)) * spec.kv_bytes_per_token + spec.checkpoint_bytes
    common = sample.common_tokens * spec.kv_bytes_per_token
    common += sample.common_checkpoints * spec.checkpoint_bytes
    stored = max(endless.kept - common, 0.0) / sample.rate + common
    if budgets is None:
        least = max(_SMALLEST * stored, 2 * (running + common))
        budgets = np.geomspace(least, max(_LARGEST * stored, 2 * least), NUM_BUDGETS).tolist()
    bound = min(sample.own_scale * endless.own + sample.common_scale * endless.common, 1.0)

    def rate_at(budget: float) -> float:
        fixed = budget if sample.whole else min(running + common, budget)
        own, within, _ = replays.run(sample.rate * (budget - fixed) + fixed)
        if within < endless.common - _AS_GOOD and not sample.whole:
            within = endless.common if budget >= endless.kept else replays.run(budget).common
            if endless.own > _LITTLE:
                # What the common texts leave of their room is not for the rest to take.
                left = fixed - common if fixed < budget else sample.rate * budget
                own = replays.run(sample.rate * (budget - fixed) + left, own_only=True).own
        return min(sample.own_scale * own + sample.common_scale * within, bound)

    ascending = sorted(budgets)
    even = 0.0 if sample.whole else _EVEN
    return Curve(ascending, _by_halves(ascending, rate_at, even), bound, stored)


def _by_halves(budgets: Sequence[float], rate_at: Callable[[float], float], even: float) -> list[float]:
    """The rates at ascending budgets: replayed at both ends, and halfway between any two that differ by more
    than ``even``; on a line over the logarithm of the budget elsewhere."""
    last = len(budgets) - 1
    known = {place: rate_at(budgets[place]) for place in dict.fromkeys((last, 0))}
    spans = [(0, last)]
    while spans:
        low, high = spans.pop()
        if high - low > 1 and (not even or abs(known[high] - known[low]) > even):
            middle = (low + high) // 2
            known[middle] = rate_at(budgets[middle])
            spans += [(low, middle), (middle, high)]
    places = sorted(known)
    rates = np.interp(np.log(budgets), np.log([budgets[k] for k in places]), [known[k] for k in places])
    return [known.get(place, rate) for place, rate in enumerate(rates.tolist())]


class _Found(NamedTuple):
    """By one replay."""

    own: float
    """Hits beyond the common texts, as a part of all input tokens."""
    common: float
    """Hits within the common texts, as a part of all input tokens."""
    kept: float
    """Bytes that the cache holds in the end."""


class _Replays:
    """One after the other, of one sample.

    A sample tells a policy that learns less than the whole trace would. So it goes on with what it has learnt
    in the replay before, and time goes on too. A whole trace is replayed by new policies each time.
    """

    def __init__(self, sample: TraceSample, make_policies: MakePolicies, make_cache: MakeCache) -> None:
        self._sample = sample
        self._make_policies = make_policies
        self._make_cache = make_cache
        self._policies = make_policies()
        self._start = 0.0  # seconds

    def run(self, budget_bytes: float, own_only: bool = False) -> _Found:
        """Replay through a new cache; ``own_only``: each request from the end of its common text on."""
        if self._sample.whole:
            self._policies, self._start = self._make_policies(), 0.0
        cache = self._make_cache(budget_bytes, self._policies)
        found: list[float] = []
        rows = RequestRows(None, on_row=lambda row: found.append(row[_HIT]))
        replay_cache(self._requests(own_only), cache, cache.spec, rows)
        rows.close()
        self._start += self._sample.requests[-1].arrival + 1.0
        hits, total = np.array(found), sum(request.num_prompt for request in self._sample.requests)
        within = np.zeros_like(hits) if own_only else np.minimum(hits, self._sample.common)
        return _Found(
            float((hits - within).sum() / total), float(within.sum() / total), float(cache.usage().evictable)
        )

    def _requests(self, own_only: bool) -> Iterator[TraceRequest]:
        for request, common in zip(self._sample.requests, self._sample.common.tolist(), strict=True):
            part = _without(request, common) if own_only else request
            yield part._replace(arrival=self._start + request.arrival)


def _without(request: TraceRequest, common: int) -> TraceRequest:
    """``request`` from its token ``common`` on."""
    ends = request.boundaries[request.boundaries > common] - common
    return request._replace(
        tokens=request.tokens[common:], num_prompt=request.num_prompt - common, boundaries=ends
    )
