"""A cache whose leases somebody looks at."""

from collections.abc import Callable, Sequence
from typing import Any

from hybridcache.lease import Lease, Wait
from hybridcache.namespace import Namespace
from hybridcache.prefix_cache import PrefixCache
from hybridcache.tokens import TokenIds


class WatchedCache(PrefixCache):
    """Calls ``on_lease`` with every prompt that is let in, the ends of its messages, and its new lease."""

    on_lease: Callable[[TokenIds, Sequence[int], Lease], None] = staticmethod(
        lambda tokens, ends, lease: None
    )
    asked_at: float
    """When a lease was last asked for, seconds."""

    def acquire(self, tokens: Any, namespace: Namespace, now: float, **settings: Any) -> Lease | Wait | None:
        """As the cache does."""
        self.asked_at = now
        lease = super().acquire(tokens, namespace, now, **settings)
        if isinstance(lease, Lease):
            self.on_lease(tokens, settings.get("boundaries", ()), lease)
        return lease
