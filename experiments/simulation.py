"""An engine whose runner is simulated, and its clock."""

from dataclasses import dataclass
from typing import Self

from hybridcache.engine import Engine
from hybridcache.hardware import HardwareProfile
from hybridcache.latency import LatencyModel
from hybridcache.prefix_cache import PrefixCache
from hybridcache.sampler import Sampler
from hybridcache.scheduler import Scheduler, SchedulerConfig
from hybridcache.simulator import SimRunner, VirtualClock


@dataclass(frozen=True, slots=True)
class Simulation:
    """The parts of a served model without the model."""

    engine: Engine
    runner: SimRunner
    clock: VirtualClock

    @classmethod
    def of(
        cls,
        cache: PrefixCache,
        *,
        hardware: HardwareProfile,
        scheduler: SchedulerConfig,
        kv_fraction: float = 0.5,
    ) -> Self:
        """Serve the model of ``cache`` on ``hardware``; ``kv_fraction`` as it was given to the cache."""
        clock = VirtualClock()
        runner = SimRunner(
            LatencyModel(cache.spec, hardware),
            clock,
            budget_bytes=cache.budget.budget_bytes,
            block_size=cache.store.blocks.block_size,
            memory=cache.budget.memory,
            kv_fraction=kv_fraction,
        )
        # Answers are scripted: the sampler is never asked.
        engine = Engine(cache, Scheduler(cache, scheduler), runner, clock, Sampler(0))
        return cls(engine, runner, clock)
