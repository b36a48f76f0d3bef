"""mode=worker: the engine over a real model, and time that passes by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Self

from hybridcache.engine import Engine
from hybridcache.experiments.simulation import SkippingClock
from hybridcache.kernels.dispatch import build_ops
from hybridcache.lease import StateCopy
from hybridcache.models.load import load_model
from hybridcache.pool import Ids
from hybridcache.prefix_cache import PrefixCache
from hybridcache.runner import ModelRunner
from hybridcache.sampler import Sampler
from hybridcache.scheduler import Scheduler, SchedulerConfig
from hybridcache.step import Runner, StepBatch, StepResult
from hybridcache.storage import Storage


class RealClock(SkippingClock):
    """The machine's clock from 0 on, without the time in which nothing runs."""

    def __init__(self) -> None:
        self._start = perf_counter()
        self._skipped = 0.0

    def now(self) -> float:
        return perf_counter() - self._start + self._skipped

    def advance_to(self, moment: float) -> None:
        self._skipped += max(0.0, moment - self.now())


class BusyRunner(Runner):
    """A runner that counts the seconds it takes."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.busy_seconds = 0.0

    def execute(self, step: StepBatch) -> StepResult:
        start = perf_counter()
        try:
            return self._runner.execute(step)
        finally:
            self.busy_seconds += perf_counter() - start

    def release(self, freed_blocks: Ids, freed_slots: Ids) -> None:
        self._runner.release(freed_blocks, freed_slots)

    def copy(self, state_copies: Sequence[StateCopy]) -> None:
        start = perf_counter()
        self._runner.copy(state_copies)
        self.busy_seconds += perf_counter() - start


@dataclass(frozen=True, slots=True)
class RealModel:
    """A loaded model behind the engine that simulations use as well."""

    engine: Engine
    runner: BusyRunner
    clock: RealClock

    @classmethod
    def of(
        cls,
        cache: PrefixCache,
        folder: Path,
        *,
        scheduler: SchedulerConfig,
        memory: str = "unified",
        kv_fraction: float = 0.5,
    ) -> Self:
        """Load the checkpoint in ``folder``, whose geometry the cache has.

        Raises ValueError for a checkpoint that cannot be loaded and for an infinite budget.
        """
        loaded = load_model(folder, ops=build_ops(), name=cache.spec.name)
        assert loaded.spec == cache.spec, (loaded.spec, cache.spec)
        storage = Storage(
            loaded.spec,
            cache.budget.budget_bytes,
            cache.store.blocks.block_size,
            memory=memory,
            kv_fraction=kv_fraction,
        )
        runner, clock = BusyRunner(ModelRunner(loaded.model, storage)), RealClock()
        return cls(Engine(cache, Scheduler(cache, scheduler), runner, clock, Sampler(0)), runner, clock)
