"""A cache that tunes Marconi's alpha by replaying its recent requests."""

import math
from collections import deque
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np

from hybridcache.experiments.replay_cache import replay_cache
from hybridcache.experiments.request_rows import RequestRows
from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.lease import Lease, Wait
from hybridcache.namespace import Namespace
from hybridcache.policies.eviction import EvictionPolicy
from hybridcache.policies.marconi_tuned import MarconiTuned
from hybridcache.prefix_cache import PrefixCache
from hybridcache.spec import ModelSpec
from hybridcache.tokens import TOKEN_BYTES


class Tuning(NamedTuple):
    """One choice of alpha."""

    now: float
    """Seconds."""
    alpha: float
    hit_tokens: dict[float, int]
    """What each alpha hit in the replayed window, tokens."""


class TunedCache(PrefixCache):
    """Sets the alpha of `marconi_tuned` as the Marconi paper does (Pan et al., MLSys 2025, section 4.3).

    Let n requests end before the first eviction. After each ``window`` x n further ones all of these n +
    ``window`` x n are replayed, once for each alpha to try, through an empty cache of the same size (ids
    only): its first n requests fill it, and no alpha matters to them. So no copy of the tree is needed,
    which the paper takes when the first eviction comes. The alpha that hits most tokens rules from then on,
    the smaller one of equals.
    """

    def __init__(self, spec: ModelSpec, *, eviction: MarconiTuned, **settings: Any) -> None:
        """``settings`` as of PrefixCache."""
        eviction.tuned_by_replays = True
        super().__init__(spec, eviction=eviction, **settings)
        self.tunings: list[Tuning] = []
        self._policy = eviction
        self._settings = settings
        self._arrivals: dict[int, float] = {}
        """Of the requests that run, by lease."""
        self._log: deque[TraceRequest] = deque()
        self._window: int | None = None
        """Requests between tunings, known from the first eviction on."""
        self._left = 0
        """Requests until the next tuning; below 0: there is none."""

    def acquire(
        self, tokens: Any, namespace: Namespace, now: float, *, first: bool = True, **settings: Any
    ) -> Lease | Wait | None:
        """As the cache does."""
        lease = super().acquire(tokens, namespace, now, first=first, **settings)
        if isinstance(lease, Lease) and first:
            self._arrivals[lease.id] = now
        return lease

    def finish(self, lease: Lease, keep_tokens: int, now: float) -> None:
        """As the cache does; then it may be time to tune."""
        kept = (lease.prompt + lease.generated)[: keep_tokens * TOKEN_BYTES]
        super().finish(lease, keep_tokens, now)
        arrival = self._arrivals.pop(lease.id, None)
        if arrival is None or keep_tokens < lease.num_prompt:
            return
        # One token more, which is never fed: so what is kept is the same.
        tokens = np.append(np.frombuffer(kept, dtype=np.uint32), np.uint32(0))
        ends = np.array([lease.num_prompt], dtype=np.int64)
        self._log.append(TraceRequest(arrival, 0, 0, tokens, lease.num_prompt, ends))
        if self._window is None:
            if self.stats.evictions:
                self._left = self._window = math.ceil(self._policy.window * len(self._log))
                self._log = deque(self._log, maxlen=len(self._log) + self._window)
            return
        self._left -= 1
        if self._left == 0:
            self._tune(now)
            self._left = -1 if self._policy.once else self._window

    def drop(self, lease: Lease, now: float) -> None:
        """As the cache does."""
        self._arrivals.pop(lease.id, None)
        super().drop(lease, now)

    def _tune(self, now: float) -> None:
        requests = sorted(self._log, key=lambda request: request.arrival)
        found = {policy.alpha: self._hit_tokens(policy, requests) for policy in self._policy.candidates}
        self._policy.alpha = max(found, key=found.__getitem__)
        self.tunings.append(Tuning(now, self._policy.alpha, found))

    def _hit_tokens(self, eviction: EvictionPolicy, requests: list[TraceRequest]) -> int:
        # An admission policy that learns must not learn from replays of what it has seen.
        settings = {**self._settings, "admission": deepcopy(self.admission)}
        shadow = PrefixCache(self.spec, eviction=eviction, **settings)
        rows = RequestRows(None)
        replay_cache(requests, shadow, self.spec, rows)
        rows.close()
        return rows.totals.hit_tokens
