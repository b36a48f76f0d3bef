"""Running counters of one cache, and a picture of its bytes."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from hybridcache.histogram import Histogram
from hybridcache.policies.columns import KIND_NAMES, NUM_KINDS

EVICTION_BOUNDS = tuple(a * 10.0**b for b in range(-5, 1) for a in (1, 2.5, 5))
"""Seconds, of the eviction histogram."""


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
    admission_errors: int = 0
    """Times that the admission policy failed, and a request went without its checkpoints."""
    checkpoints_admitted: int = 0
    checkpoints_skipped: int = 0
    """Planned, but there was no room, or the step passed the position."""
    checkpoints_used: int = 0
    """Checkpoints that at least one request resumed at."""
    waits: int = 0
    """Acquires that were told to wait for another request's prefix."""
    lost_tokens: dict[str, int] = field(default_factory=dict)
    """Prompt tokens by the reason why they were not hit; with ``hit_tokens`` they make ``input_tokens``."""
    admitted_by_kind: list[int] = field(default_factory=lambda: [0] * NUM_KINDS)
    """Checkpoints admitted, by the kind of their position (policies/columns.py)."""
    hits_by_kind: list[int] = field(default_factory=lambda: [0] * NUM_KINDS)
    """Requests that resumed at a checkpoint, by the kind of its position."""
    flops_saved_by_kind: list[float] = field(default_factory=lambda: [0.0] * NUM_KINDS)
    """FLOPs of their hit tokens, likewise."""
    eviction_seconds: Histogram = field(default_factory=lambda: Histogram(EVICTION_BOUNDS))
    """How long making room by eviction took, each time; empty without a timer."""

    def copy(self) -> Self:
        """As they stand now."""
        return replace(
            self,
            lost_tokens=dict(self.lost_tokens),
            admitted_by_kind=self.admitted_by_kind.copy(),
            hits_by_kind=self.hits_by_kind.copy(),
            flops_saved_by_kind=self.flops_saved_by_kind.copy(),
            eviction_seconds=self.eviction_seconds.copy(),
        )

    @property
    def admitted_by_reason(self) -> dict[str, int]:
        """`admitted_by_kind` by the names of the kinds."""
        return dict(zip(KIND_NAMES, self.admitted_by_kind, strict=True))

    @property
    def hits_by_reason(self) -> dict[str, int]:
        """`hits_by_kind` by the names of the kinds."""
        return dict(zip(KIND_NAMES, self.hits_by_kind, strict=True))

    @property
    def flops_saved_by_reason(self) -> dict[str, float]:
        """`flops_saved_by_kind` by the names of the kinds."""
        return dict(zip(KIND_NAMES, self.flops_saved_by_kind, strict=True))

    def hit(self, num_tokens: int, flops: float, kind: int | None) -> None:
        """Count a request's hit of ``num_tokens``, worth ``flops``, at a checkpoint of ``kind`` if any."""
        self.request_hits += 1
        self.hit_tokens += num_tokens
        self.flops_saved += flops
        if kind is not None:
            self.hits_by_kind[kind] += 1
            self.flops_saved_by_kind[kind] += flops

    def lose(self, reason: str, num_tokens: int) -> None:
        """Count tokens that were not hit."""
        self.lost_tokens[reason] = self.lost_tokens.get(reason, 0) + num_tokens


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
