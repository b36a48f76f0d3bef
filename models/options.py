"""Fields of a transformers config that a model reads beyond its dimensions."""

import math
from collections.abc import Mapping

from hybridcache.hf_config import HfConfig


def number(config: HfConfig, name: str, default: float | None = None) -> float:
    """Finite number in field `name`, or `default` when it is absent or null."""
    if default is not None and not config.has(name):
        return default
    value = config.fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise config.error(name, "a number")
    return float(value)


def numbers(config: HfConfig, name: str, default: tuple[float, ...]) -> tuple[float, ...]:
    """As many finite numbers as `default` has in list field `name`, or `default`."""
    if not config.has(name):
        return default
    value = config.fields[name]
    items = value if isinstance(value, list | tuple) else []
    good = [float(v) for v in items if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(good) != len(items) or len(good) != len(default) or not all(map(math.isfinite, good)):
        raise config.error(name, f"a list of {len(default)} numbers")
    return tuple(good)


def fraction(config: HfConfig, name: str, default: float) -> float:
    """Number in field `name` in (0, 1], or `default` when it is absent or null."""
    value = number(config, name, default)
    if not 0 < value <= 1:
        raise config.error(name, "more than 0 and at most 1")
    return value


def choice(config: HfConfig, name: str, default: str, allowed: tuple[str, ...]) -> str:
    """Text in field `name`, or `default`; it must be one of `allowed`."""
    value = config.text(name, default)
    if value not in allowed:
        raise config.error(name, " or ".join(repr(option) for option in allowed))
    return value


def limits(config: HfConfig, name: str) -> tuple[float, float]:
    """The two bounds in list field `name`; 0 and infinity when it is absent or null.

    Infinity is written as `Infinity` or, by transformers 5, as {"__float__": "Infinity"}.
    """
    if not config.has(name):
        return 0.0, math.inf
    value = config.fields[name]
    bounds = [_bound(item) for item in value] if isinstance(value, list | tuple) else []
    match bounds:
        case [float(low), float(high)] if low <= high:
            return low, high
        case _:
            raise config.error(name, "two numbers, the lower bound first")


def _bound(item: object) -> float | None:
    if isinstance(item, Mapping) and item.get("__float__") in ("Infinity", "-Infinity"):
        return float(item["__float__"])
    if isinstance(item, bool) or not isinstance(item, int | float) or math.isnan(item):
        return None
    return float(item)
