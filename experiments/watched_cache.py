"""A cache whose leases somebody looks at."""

from collections.abc import Callable, Sequence
from typing import Any

from hybridcache.lease import Lease, Wait
from hybridcache.namespace import Namespace
from hybridcache.prefix_cache import PrefixCache
from hybridcache.tokens import TokenIds


class WatchedCache(PrefixCache):
    """Calls ``on_lease`` with every prompt let in, when that was, the ends of its messages, and its lease."""

    on_lease: Callable[[TokenIds, float, Sequence[int], Lease], None] = staticmethod(
        lambda tokens, now, ends, lease: None
    )

    def acquire(self, tokens: Any, namespace: Namespace, now: float, **settings: Any) -> Lease | Wait | None:
        """As the cache does."""
        lease = super().acquire(tokens, namespace, now, **settings)
        if isinstance(lease, Lease):
            self.on_lease(tokens, now, settings.get("boundaries", ()), lease)
        return lease
