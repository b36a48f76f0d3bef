"""Settings of a replay in which time passes."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from hybridcache.experiments.setting import choice, number, whole
from hybridcache.hardware import HardwareProfile
from hybridcache.scheduler import ORDERS, SchedulerConfig

ENGINE_KEYS = ("hardware", "max_running", "order", "max_wait_seconds", "speed")
"""Keys of a configuration that mode=cache does not look at; the hardware is for mode=engine alone."""

DEFAULT_HARDWARE = "h100"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The device, the limits of a step, and how fast requests come."""

    hardware: HardwareProfile
    scheduler: SchedulerConfig
    speed: float  # arrivals are this many times as close together as in the trace

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, used: bool) -> Self | None:
        """Read a resolved configuration; None, with a warning for each key that was set, unless ``used``.

        Raises:
            ValueError: a value is not allowed; the message names it and those that are.
        """
        if not used:
            for key, default in engine_defaults().items():
                value = config.get(key, default)
                if key == "hardware" and isinstance(value, Mapping):
                    value = value.get("name")
                if value != default:
                    warnings.warn(
                        f"{key}={value} is ignored: it needs mode=engine or mode=worker", stacklevel=3
                    )
            return None
        max_running = whole("max_running", config["max_running"], 1)
        max_tokens = whole("max_num_batched_tokens", config["max_num_batched_tokens"], 1)
        if max_tokens < max_running:
            raise ValueError(
                f"max_num_batched_tokens={max_tokens} is below max_running={max_running}: every running "
                "request needs a token a step"
            )
        max_wait = number("max_wait_seconds", config["max_wait_seconds"])
        if max_wait < 0:
            raise ValueError(f"max_wait_seconds={max_wait}: give seconds, at least 0")
        speed = number("speed", config["speed"])
        if not 0 < speed < math.inf:
            raise ValueError(f"speed={speed}: give a positive number; 2 has requests come twice as fast")
        scheduler = SchedulerConfig(
            max_running, max_tokens, choice("order", config["order"], ORDERS), max_wait
        )
        return cls(HardwareProfile.from_config(config["hardware"]), scheduler, speed)


def engine_defaults() -> dict[str, Any]:
    """What conf/replay.yaml says of ENGINE_KEYS; of the hardware the name."""
    config = SchedulerConfig()
    values = (
        DEFAULT_HARDWARE,
        config.max_num_seqs,
        config.order,
        config.max_wait_seconds,
        1.0,
    )
    return dict(zip(ENGINE_KEYS, values, strict=True))
