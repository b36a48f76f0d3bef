"""The hit rate against the budget, from a sample of sessions."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hybridcache.experiments.replay_cache import replay_cache
from hybridcache.experiments.replay_settings import UNBOUNDED_BYTES
from hybridcache.experiments.request_rows import RequestRows
from hybridcache.experiments.session_sample import SessionSample
from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.experiments.watched_cache import WatchedCache
from hybridcache.lease import Lease
from hybridcache.prefix_cache import PrefixCache
from hybridcache.spec import ModelSpec
from hybridcache.tree import subtree

MakeCache = Callable[[float], WatchedCache]
"""A new cache of so many bytes."""

NUM_BUDGETS = 12
_SMALLEST, _LARGEST = 1 / 256, 1 / 2  # budgets, as parts of all that is ever stored


class Fixed(NamedTuple):
    """Bytes that do not shrink with the sample."""

    request: float
    """Of the request that runs: KV of its prompt and answer, and its states. The sample's are as long."""
    shared: float
    """Of texts that several sessions begin with, and their checkpoints. The sample needs all of them."""


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
    sample: SessionSample,
    spec: ModelSpec,
    make_cache: MakeCache,
    budgets: Sequence[float] | None = None,
) -> Curve:
    """Replay the sample through an infinite cache, and through one for each budget (bytes; None: 12 of them).

    A budget B of the trace is rate x (B - fixed) + fixed of the sample's (see Fixed), and a hit rate is
    scaled by the sample's repetition.
    """
    bound, stored, fixed = _infinite(sample, spec, make_cache)
    stored = sample.rate * stored if not sample.rate else (stored - fixed.shared) / sample.rate + fixed.shared
    if budgets is None:
        least = max(_SMALLEST * stored, 2 * (fixed.request + fixed.shared))
        budgets = np.geomspace(least, max(_LARGEST * stored, 2 * least), NUM_BUDGETS).tolist()
    bound = min(bound * sample.repetition, 1.0)
    rates = []
    for budget in sorted(budgets):
        held = min(fixed.request + fixed.shared, budget)
        rate = _hit_rate(sample.requests, make_cache(sample.rate * (budget - held) + held))
        rates.append(min(rate * sample.repetition, bound))
    return Curve(sorted(budgets), rates, bound, stored)


def _hit_rate(requests: Sequence[TraceRequest], cache: PrefixCache) -> float:
    rows = RequestRows(None)
    replay_cache(requests, cache, cache.spec, rows)
    rows.close()
    return rows.totals.token_hit_rate


def _infinite(sample: SessionSample, spec: ModelSpec, make_cache: MakeCache) -> tuple[float, float, Fixed]:
    """The bound, the bytes held in the end, and what is fixed, of the sample."""
    cache, shared = make_cache(UNBOUNDED_BYTES), make_cache(UNBOUNDED_BYTES)
    matched: list[int] = []
    cache.on_lease = lambda _tokens, _ends, lease: _note(matched, lease)
    rate = _hit_rate(sample.requests, cache)
    seen: set[int] = set()
    begun = []
    for request, known in zip(sample.requests, matched, strict=True):
        # What a session's first request knows already it has in common with other sessions.
        if request.session not in seen and known:
            tokens = request.tokens[: known + 1]
            begun.append(request._replace(tokens=tokens, num_prompt=known, boundaries=np.array([known])))
        seen.add(request.session)
    _hit_rate(begun, shared)
    length = float(np.mean([len(request.tokens) for request in sample.requests]))
    running = length * spec.kv_bytes_per_token + spec.checkpoint_bytes
    parted = sum(
        len(node.children) > 1 for root in shared.store.tree.roots.values() for node in subtree(root)
    )
    held = float(shared.usage().kv.evictable) + parted * spec.checkpoint_bytes
    return rate, float(cache.usage().evictable), Fixed(running, held)


def _note(matched: list[int], lease: Lease) -> None:
    matched.append(lease.matched)
