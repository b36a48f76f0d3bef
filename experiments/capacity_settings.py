"""Settings of the capacity planner, checked."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from hybridcache.experiments.setting import flag, number, whole


@dataclass(frozen=True, slots=True)
class CapacitySettings:
    """What `conf/capacity.yaml` says under ``capacity``."""

    group: int | None  # one session of so many is replayed; None: as many as leave enough
    budgets: tuple[float, ...] | None  # bytes; None: the planner's own
    target: float  # part of what an infinite cache hits
    check: bool
    reserve: float  # part of a device's memory
    weight_bytes: float  # bytes of a weight
    gpus: Mapping[str, float]  # bytes of memory by name

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Read a resolved configuration.

        Raises:
            ValueError: a value is not allowed; the message names it and those that are.

        Warns:
            UserWarning: another mode than cache is set: the planner replays without time.
        """
        if config["mode"] != "cache":
            warnings.warn(f"mode={config['mode']} is ignored: the planner takes mode=cache", stacklevel=2)
        asked = config["capacity"]
        target = number("capacity.target", asked["target"])
        if not 0 < target <= 1:
            raise ValueError(f"capacity.target={target}: give a part of the bound, above 0 and up to 1")
        reserve = number("capacity.reserve", asked["reserve"])
        if not 0 <= reserve < 1:
            raise ValueError(f"capacity.reserve={reserve}: give a part of the memory, from 0 to below 1")
        gpus = asked["gpus"]
        if not isinstance(gpus, Mapping):
            raise ValueError(f"capacity.gpus={gpus}: give 1e9 bytes by name, {{NAME: 80}}")
        return cls(
            group=None if asked["group"] is None else whole("capacity.group", asked["group"], 1),
            budgets=None if asked["budgets_gb"] is None else _budgets(asked["budgets_gb"]),
            target=target,
            check=flag("capacity.check", asked["check"]),
            reserve=reserve,
            weight_bytes=_positive("capacity.weight_bytes", asked["weight_bytes"]),
            gpus={str(name): 1e9 * _positive(f"capacity.gpus.{name}", gb) for name, gb in gpus.items()},
        )


def _budgets(given: object) -> tuple[float, ...]:
    """Bytes; a single number is a list of one."""
    listed = given if isinstance(given, list) else [given]
    budgets = [number("capacity.budgets_gb", budget) for budget in listed]
    if not budgets or not all(0 < budget < math.inf for budget in budgets):
        raise ValueError(f"capacity.budgets_gb={given}: give positive numbers of 1e9 bytes")
    return tuple(1e9 * budget for budget in budgets)


def _positive(key: str, value: object) -> float:
    if not 0 < (found := number(key, value)) < math.inf:
        raise ValueError(f"{key}={value}: give a positive number")
    return found
