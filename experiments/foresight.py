"""When the positions of a trace are used again, as an infinite cache shows."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from hybridcache.experiments.replay_cache import replay_cache
from hybridcache.experiments.request_rows import RequestRows
from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.experiments.watched_cache import WatchedCache
from hybridcache.lease import Lease
from hybridcache.policies.admission import AdmissionPolicy
from hybridcache.policies.lru import Lru
from hybridcache.prefix_cache import PrefixCache
from hybridcache.prefix_hash import Digest
from hybridcache.spec import ModelSpec
from hybridcache.tokens import TokenIds


class Foresight:
    """Knows at which position each request of a trace resumes when nothing is ever evicted.

    The first pass replays the trace through an infinite cache with the same ``admission``: what it holds is
    what the trace holds, each shared prefix once. Kept of it is one hash and one time a request. ``due``
    then answers for the nodes of ``cache``, which replays the same trace, request by request.
    """

    def __init__(
        self, trace: Iterable[TraceRequest], spec: ModelSpec, admission: AdmissionPolicy, block_size: int
    ) -> None:
        self.cache: PrefixCache | None = None
        """The cache whose nodes are asked for."""
        self._uses: defaultdict[Digest, list[int]] = defaultdict(list)
        """Indices of the requests that resume at a position, ascending."""
        self._arrivals: list[float] = []
        infinite = WatchedCache(
            spec, budget_bytes=inf, eviction=Lru(), admission=admission, block_size=block_size
        )

        def note(tokens: TokenIds, ends: Sequence[int], lease: Lease) -> None:
            if lease.source is not None:
                digest = infinite.store.tree.prefix_hash(lease.source).intdigest()
                self._uses[digest].append(len(self._arrivals) - 1)

        def arriving() -> Iterable[TraceRequest]:
            for request in trace:
                self._arrivals.append(request.arrival)
                yield request

        infinite.on_lease = note
        rows = RequestRows(None)
        replay_cache(arriving(), infinite, spec, rows)
        rows.close()

    def due(self, n: int) -> NDArray[np.float64]:
        """The time [n] of the next use of the nodes in rows [0, n) of the cache's table, seconds; inf: none.

        Requests that the cache has counted lie in the past.
        """
        times = np.full(n, inf)
        if self.cache is None:
            return times
        store = self.cache.store
        next_request = store.stats.requests
        for row, node in enumerate(store.table.nodes[:n]):
            if node is None or (uses := self._uses.get(store.tree.prefix_hash(node).intdigest())) is None:
                continue
            place = bisect_left(uses, next_request)
            if place < len(uses):
                times[row] = self._arrivals[uses[place]]
        return times
