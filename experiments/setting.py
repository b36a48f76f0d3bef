"""Single settings, checked: each function raises ValueError that names key, value and what is allowed."""

import math
from collections.abc import Sequence


def choice(key: str, value: object, allowed: Sequence[str]) -> str:
    """One of ``allowed``."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{key}={value} is unknown; choose one of {', '.join(allowed)}")
    return value


def flag(key: str, value: object) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{key}={value}: give true or false")
    return value


def number(key: str, value: object) -> float:
    """Any number; infinite ones too."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ValueError(f"{key}={value} is not a number")
    return float(value)


def whole(key: str, value: object, least: int) -> int:
    """A whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{key}={value}: give a whole number, {least} or more")
    return value
