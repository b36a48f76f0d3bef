"""A cache whose leases somebody looks at."""

from collections.abc import Callable, Sequence
from typing import Any

from hybridcache.lease import Lease, Wait
from hybridcache.prefix_cache import PrefixCache
from hybridcache.tokens import TokenIds


class WatchedCache(PrefixCache):
    """Calls ``on_lease`` with every prompt that is let in, the ends of its messages, and its new lease."""

    on_lease: Callable[[TokenIds, Sequence[int], Lease], None] = staticmethod(
        lambda tokens, ends, lease: None
    )

    def acquire(self, tokens: Any, *where: Any, **settings: Any) -> Lease | Wait | None:
        """As the cache does."""
        lease = super().acquire(tokens, *where, **settings)
        if isinstance(lease, Lease):
            self.on_lease(tokens, settings.get("boundaries", ()), lease)
        return lease
