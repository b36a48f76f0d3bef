"""Running counters of one cache, and a picture of its bytes."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True)
class CacheStats:
    """Counts since the cache was made; none ever falls. A request counts once, at its first acquire."""

    requests: int = 0
    requests_refused: int = 0
    """Requests that could never fit."""
    input_tokens: int = 0
    hit_tokens: int = 0
    matched_tokens: int = 0
    request_hits: int = 0
    """Requests with at least one hit token."""
    flops_saved: float = 0.0
    """FLOPs of the hit tokens."""
    evictions: int = 0
    evicted_tokens: int = 0
    """Tokens whose KV was evicted."""
    expirations: int = 0
    checkpoints_admitted: int = 0
    checkpoints_skipped: int = 0
    """Planned, but there was no room, or the step passed the position."""
    checkpoints_used: int = 0
    """Checkpoints that at least one request resumed at."""
    waits: int = 0
    """Acquires that were told to wait for another request's prefix."""


class PoolUsage(NamedTuple):
    """Bytes of one pool. ``evictable + pinned + leased`` is what it holds."""

    evictable: int
    """In the tree, held by no lease."""
    pinned: int
    """In the tree, on a lease's path or about to be copied by it."""
    leased: int
    """Held by leases alone."""

    @property
    def used(self) -> int:
        return self.evictable + self.pinned + self.leased


class Usage(NamedTuple):
    """``free + evictable + pinned + leased = budget``, in bytes, both pools added up."""

    budget: float
    free: float
    kv: PoolUsage
    state: PoolUsage

    @property
    def evictable(self) -> int:
        return self.kv.evictable + self.state.evictable

    @property
    def pinned(self) -> int:
        return self.kv.pinned + self.state.pinned

    @property
    def leased(self) -> int:
        return self.kv.leased + self.state.leased
