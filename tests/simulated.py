"""An engine over a simulated runner, for tests: submit, step, look."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from hybridcache import conf
from hybridcache.engine import Engine
from hybridcache.experiments.simulation import Simulation
from hybridcache.hardware import HardwareProfile
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.prefix_cache import PrefixCache
from hybridcache.request import FinishReason, Request
from hybridcache.sampling_params import SamplingParams
from hybridcache.scheduler import SchedulerConfig
from hybridcache.simulator import VirtualClock
from hybridcache.spec import ModelSpec
from hybridcache.tokens import TokenIds
from tests.serving import NAMESPACE, PLENTY, text, toy

ANSWER = 5
"""Tokens of an answer unless a test says otherwise."""


def profile(name: str, **changes: Any) -> HardwareProfile:
    """A file of conf/hardware/."""
    return HardwareProfile.from_config(config_group("hardware", name) | changes)


def config_group(group: str, name: str) -> dict[str, Any]:
    """A file of conf/ as plain containers."""
    path = Path(str(conf.__file__)).parent / group / f"{name}.yaml"
    config = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(config, dict)
    return {str(key): value for key, value in config.items()}


class Simulated:
    """A toy model served on a device; every step is checked by the runner, and the cache on demand."""

    def __init__(
        self,
        spec: ModelSpec | None = None,
        *,
        budget_bytes: int = PLENTY,
        hardware: HardwareProfile | None = None,
        admission: str = "branch_final_prompt",
        block_size: int = 16,
        memory: str = "unified",
        admission_settings: dict[str, int] | None = None,
        **scheduler: Any,
    ) -> None:
        self.spec = toy() if spec is None else spec
        self.cache = PrefixCache(
            self.spec,
            budget_bytes=budget_bytes,
            eviction=build_eviction("lru"),
            admission=build_admission(admission, **(admission_settings or {})),
            block_size=block_size,
            memory=memory,
        )
        # 1 ms a step, whatever is in it: figures are easy to follow.
        simple = HardwareProfile("simple", "int8", {"int8": np.inf}, np.inf, 1.0, 1.0, 1e-3, "test")
        self.simulation = Simulation.of(
            self.cache,
            hardware=simple if hardware is None else hardware,
            scheduler=SchedulerConfig(**scheduler),
        )
        self._next_id = 0

    @property
    def engine(self) -> Engine:
        return self.simulation.engine

    @property
    def clock(self) -> VirtualClock:
        return self.simulation.clock

    def submit(
        self, prompt: TokenIds, answer: Sequence[int] | TokenIds | None = None, **options: Any
    ) -> Request:
        """Queue a request that arrives now, with a scripted answer."""
        request_id, self._next_id = self._next_id, self._next_id + 1
        script = np.asarray(text(ANSWER, 3_000 + request_id) if answer is None else answer, dtype=np.uint32)
        settings: dict[str, Any] = {
            "params": SamplingParams(temperature=0.0),
            "script": script,
            "max_tokens": len(script),
            "namespace": NAMESPACE,
            "arrival": self.clock.now(),
        } | options
        request = Request(request_id, prompt, **settings)
        self.engine.submit(request)
        return request

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.engine.step()
            self.cache.check()

    def run(self, most_steps: int = 10_000) -> None:
        """Step until nothing is left; the cache is checked after every step."""
        for _ in range(most_steps):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.engine.has_work, self.engine.scheduler
        assert not self.cache.leases
        usage = self.cache.usage()
        assert usage.pinned == usage.leased == 0, usage

    def serve(self, prompt: TokenIds, **options: Any) -> Request:
        """One request, alone."""
        request = self.submit(prompt, **options)
        self.run()
        return request


def all_ended(requests: Iterable[Request]) -> bool:
    """Whether all had their whole answer, without an error."""
    return all(
        request.finish_reason is FinishReason.LENGTH
        and request.error is None
        and request.script is not None
        and request.output == request.script.tolist()
        for request in requests
    )
