"""Settings of one replay, checked."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from hybridcache.experiments.engine_settings import EngineSettings
from hybridcache.experiments.setting import choice, flag, number, whole
from hybridcache.experiments.worker_settings import WorkerSettings
from hybridcache.scheduler import SchedulerConfig

MODES = ("cache", "engine", "worker")
MEMORIES = ("unified", "split")
WANDB_MODES = ("disabled", "offline", "online")

DEFAULT_STEP_TOKENS = SchedulerConfig().max_num_batched_tokens
"""Of configurations that were written before the key was."""

UNBOUNDED_BYTES = 2**63 - 1
"""Bytes of the infinite cache (``budget_gb=inf``): a number, so that summaries stay plain JSON."""


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """What `conf/replay.yaml` and the command line say, without the Hydra part.

    ``trace``, ``model``, ``eviction`` and ``admission`` are the chosen group's settings as they stand; who
    builds those parts checks them.
    """

    mode: str
    trace: Mapping[str, Any]
    model: Mapping[str, Any]
    eviction: Mapping[str, Any]
    admission: Mapping[str, Any]
    budget_bytes: int
    block_size: int  # tokens
    memory: str
    kv_fraction: float  # of budget_bytes, when memory is "split"
    ttl_seconds: float | None
    max_num_batched_tokens: int  # of one step
    seed: int  # of the trace, where it is generated
    overwrite: bool
    wandb: Mapping[str, Any]
    engine: EngineSettings | None  # with mode=engine and mode=worker
    worker: WorkerSettings | None  # with mode=worker

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Read a resolved configuration.

        Raises:
            ValueError: a value is not allowed; the message names it and those that are.
        """
        mode = choice("mode", config["mode"], MODES)
        memory = choice("memory", config["memory"], MEMORIES)
        kv_fraction = number("kv_fraction", config["kv_fraction"])
        if not 0.0 < kv_fraction < 1.0:
            raise ValueError(
                f"kv_fraction={kv_fraction}: the KV blocks' part of the budget lies between 0 and 1"
            )
        if memory == "unified" and kv_fraction != 0.5:
            warnings.warn(f"kv_fraction={kv_fraction} is ignored: it needs memory=split", stacklevel=2)
        budget_gb = number("budget_gb", config["budget_gb"])
        if not budget_gb > 0.0:
            raise ValueError(f"budget_gb={budget_gb}: give a positive number of 1e9 bytes, or inf")
        ttl_seconds = config["ttl_seconds"]
        if ttl_seconds is not None and not (ttl_seconds := number("ttl_seconds", ttl_seconds)) > 0.0:
            raise ValueError(
                f"ttl_seconds={ttl_seconds}: give a positive number of seconds, or null for never"
            )
        worker = WorkerSettings.from_config(config, used=mode == "worker")
        if worker is not None and math.isinf(budget_gb):
            raise ValueError("budget_gb=inf: mode=worker holds real memory; give a number of 1e9 bytes")
        choice("wandb.mode", config["wandb"]["mode"], WANDB_MODES)
        return cls(
            mode=mode,
            trace=config["trace"],
            model=config["model"] if worker is None else worker.geometry,
            eviction=config["eviction"],
            admission=config["admission"],
            budget_bytes=UNBOUNDED_BYTES if math.isinf(budget_gb) else round(budget_gb * 1e9),
            block_size=whole("block_size", config["block_size"], 1),
            memory=memory,
            kv_fraction=kv_fraction,
            ttl_seconds=ttl_seconds,
            max_num_batched_tokens=whole(
                "max_num_batched_tokens", config.get("max_num_batched_tokens", DEFAULT_STEP_TOKENS), 1
            ),
            seed=whole("trace.seed", config["trace"].get("seed", config["seed"]), 0),
            overwrite=flag("overwrite", config["overwrite"]),
            wandb=config["wandb"],
            engine=EngineSettings.from_config(config, used=mode != "cache"),
            worker=worker,
        )
