"""A worker's counters at one moment."""

from dataclasses import dataclass, replace

from hybridcache.engine import Engine, EngineStats
from hybridcache.scheduler import SchedulerStats
from hybridcache.stats import CacheStats, Usage


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """Copies: they do not change any more."""

    num_running: int
    num_waiting: int
    engine: EngineStats
    scheduler: SchedulerStats
    cache: CacheStats
    """A prompt counts once, however many answers it has."""
    usage: Usage
    num_checkpoints: int
    """In the tree now."""
    peak_bytes: int
    """The most bytes that blocks and slots ever held together."""

    @property
    def token_hit_rate(self) -> float:
        """Prompt tokens that were not computed, per prompt token; 0 before the first request."""
        return self.cache.hit_tokens / self.cache.input_tokens if self.cache.input_tokens else 0.0

    @classmethod
    def of(cls, engine: Engine) -> "WorkerStats":
        """Taken between two steps, in the engine's thread; what has expired goes first."""
        engine.sweep()
        scheduler, cache = engine.scheduler, engine.cache
        usage = cache.usage()
        return cls(
            len(scheduler.running),
            len(scheduler.waiting),
            engine.stats.copy(),
            replace(scheduler.stats),
            cache.stats.copy(),
            usage,
            (usage.state.evictable + usage.state.pinned) // (cache.spec.checkpoint_bytes or 1),
            cache.peak_bytes,
        )
