"""What a replay with time runs through, and the simulated kind: an engine, its runner's seconds, a clock."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol, Self

from hybridcache.engine import Clock, Engine
from hybridcache.hardware import HardwareProfile
from hybridcache.latency import LatencyModel
from hybridcache.prefix_cache import PrefixCache
from hybridcache.sampler import Sampler
from hybridcache.scheduler import Scheduler, SchedulerConfig
from hybridcache.simulator import SimRunner, VirtualClock


class SkippingClock(Clock, Protocol):
    """A clock that leaves out time in which nothing runs."""

    @abstractmethod
    def advance_to(self, moment: float) -> None:
        """Skip what lies before ``moment``, seconds."""


class Busy(Protocol):
    """A runner that counts the seconds of its steps and copies."""

    @property
    def busy_seconds(self) -> float: ...


class TimedEngine(Protocol):
    """What requests are replayed through: a simulation, or a real model."""

    @property
    def engine(self) -> Engine: ...
    @property
    def runner(self) -> Busy: ...
    @property
    def clock(self) -> SkippingClock: ...


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
