"""What tokens cost: the files of `conf/prices/`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Prices:
    """A provider's prices for prompts, or those of a machine of one's own.

    Raises ValueError, naming the file's name and the key, for what no price can be.
    """

    name: str
    currency: str
    input: float
    """Of a million prompt tokens that are neither read from a cache nor written to one."""
    cache_write: float
    """Of a million tokens computed and kept; equal to ``input`` where keeping costs nothing."""
    cache_read: float
    """Of a million tokens read from the cache."""
    second: float
    """Of a second of the device, for machines of one's own; 0 where tokens are paid for."""
    ttl_seconds: float | None
    """After so long without a use an entry is gone; None: that is not said, or never."""
    least_tokens: int
    """Shorter prefixes are not cached."""
    source: str
    """Where the numbers come from, and of when they are."""

    def __post_init__(self) -> None:
        for key in ("input", "cache_write", "cache_read", "second"):
            value = getattr(self, key)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and 0 <= value < float("inf")):
                raise ValueError(f"prices {self.name}: {key}={value!r}; give a number, at least 0")
        ttl, least = self.ttl_seconds, self.least_tokens
        if ttl is not None and not (isinstance(ttl, int | float) and isfinite(ttl) and ttl > 0):
            raise ValueError(f"prices {self.name}: ttl_seconds={ttl!r}; give seconds above 0, or null")
        if isinstance(least, bool) or not isinstance(least, int) or least < 0:
            raise ValueError(f"prices {self.name}: least_tokens={least!r}; give a whole number")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Read a file of conf/prices/. Raises ValueError for a key too many or too few."""
        names = {field.name for field in fields(cls)}
        if names != set(config):
            given = {str(key) for key in config}
            wrong = [f"no key {key}" for key in sorted(names - given)]
            wrong += [f"unknown key {key}" for key in sorted(given - names)]
            known = ", ".join(sorted(names))
            raise ValueError(f"prices {config.get('name')}: {', '.join(wrong)}; the keys are {known}")
        return cls(**config)

    def of_missed(self, tokens: int, seconds: float | None) -> float:
        """What ``tokens``, which take ``seconds`` to compute, cost more than read from the cache."""
        paid = tokens * (self.cache_write - self.cache_read) / 1e6
        return paid + (seconds or 0.0) * self.second
