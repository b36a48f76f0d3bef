"""Workers over the tiny checkpoints, and requests through them."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from hybridcache.engine import Engine
from hybridcache.kernels.dispatch import build_ops
from hybridcache.kernels.ops import Ops
from hybridcache.models.load import LoadedModel, load_model
from hybridcache.request_output import RequestOutput
from hybridcache.step import Runner
from hybridcache.worker import SamplingParams, Worker

MakeWorker = Callable[..., Worker]
GREEDY = SamplingParams(max_tokens=6, temperature=0.0, logprobs=3, ignore_eos=True)
VOCABULARY = 1_024
"""Tokens that every tiny checkpoint has, at the least."""


def tokens(length: int, seed: int = 0) -> list[int]:
    """Random token ids; none of the special ones."""
    found: list[int] = np.random.default_rng([seed, length]).integers(16, VOCABULARY, length).tolist()
    return found


@pytest.fixture
def make_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeWorker]:
    """Calling it as Worker makes one with small settings; every one is closed and found whole at the end."""
    # A model keeps weights alone, so that workers may share it.
    monkeypatch.setattr("hybridcache.worker.load_model", _shared_model)
    made: list[Worker] = []

    def make(model: str | Path = "tiny", **settings: Any) -> Worker:
        worker = Worker(model, **{"budget_gb": 0.05, "threads": 1, "debug_poison": True} | settings)
        made.append(worker)
        return worker

    yield make
    for worker in made:
        if worker.health:
            check_idle(worker)
        worker.close()


def _shared_model(folder: Path, *, ops: Ops, dtype: str, name: str | None = None) -> LoadedModel:
    return _loaded(folder, ops.name, dtype, name)


@cache
def _loaded(folder: Path, backend: str, dtype: str, name: str | None) -> LoadedModel:
    return load_model(folder, ops=build_ops(backend), dtype=dtype, name=name)


def in_engine(worker: Worker, act: Callable[[Engine], Any]) -> Any:
    """What ``act`` finds, in the engine's thread."""
    return worker.in_engine(act)


def check_idle(worker: Worker) -> None:
    """Nothing runs, waits or is held; every block and slot is free or evictable, and the bytes add up."""
    stats = worker.stats()
    assert stats.num_running == stats.num_waiting == 0, stats
    worker.check()
    usage = stats.usage
    assert usage.pinned == usage.leased == 0 and usage.free + usage.evictable == usage.budget, usage
    assert not in_engine(worker, lambda engine: engine.has_work or engine.cache.leases)
    assert not worker._jobs and not worker._engine._jobs


class Given(NamedTuple):
    """What a client got for a prompt, to be compared to the bit."""

    token_ids: tuple[int, ...]
    logprobs: tuple[object, ...]

    @classmethod
    def of(cls, output: RequestOutput) -> "Given":
        return cls(tuple(output.token_ids), tuple(output.logprobs or ()))


def serve(
    worker: Worker,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams = GREEDY,
    *,
    together: bool = True,
) -> list[RequestOutput]:
    """All at once, or one after the other."""
    if together:
        return worker.generate(list(prompts), params)
    return [worker.generate([prompt], params)[0] for prompt in prompts]


def given(outputs: Sequence[RequestOutput]) -> list[Given]:
    """What the client got, and that what was cached and what was lost add up."""
    for output in outputs:
        assert output.num_cached_tokens + sum(output.miss.values()) == output.num_prompt_tokens, output
    return [Given.of(output) for output in outputs]


class Broken:
    """Stands in for an object; one of its methods raises on the calls of the given numbers, from 1."""

    def __init__(self, target: object, name: str, calls: Sequence[int]) -> None:
        self._target, self._name, self._calls, self._count = target, name, calls, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        return self._call if name == self._name else found

    def _call(self, *arguments: Any, **settings: Any) -> Any:
        self._count += 1
        if self._count in self._calls:
            raise OSError("planted")
        return getattr(self._target, self._name)(*arguments, **settings)


class Watched(Broken):
    """Stands in for a runner; calls ``look`` with the number of steps so far before each."""

    def __init__(self, runner: Runner, look: Callable[[int], object]) -> None:
        super().__init__(runner, "execute", ())
        self._look = look

    def _call(self, *arguments: Any, **settings: Any) -> Any:
        self._look(self._count)
        return super()._call(*arguments, **settings)


def break_part(worker: Worker, part: str, name: str, *calls: int) -> None:
    """Let ``engine.part.name`` raise on its next calls of these numbers."""

    def plant(engine: Engine) -> None:
        setattr(engine, part, Broken(getattr(engine, part), name, calls))

    in_engine(worker, plant)
