"""What a generator of sessions provides."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from math import isfinite
from typing import NamedTuple, Protocol

from hybridcache.experiments.traces.sampler import Sampler
from hybridcache.tokens import TokenIds

MAX_VOCAB = 2**31  # token ids stay below, so that they also fit int32


class Call(NamedTuple):
    """One request of a session."""

    wait: float  # seconds after the session's previous request; ignored for the first
    messages: list[TokenIds]  # the input, message by message; not empty
    output: TokenIds  # [n] uint32, n >= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSettings:
    """What every generator is told. Subclasses add their own; all numbers are positive.

    Names tell the unit: `_tokens` and `_seconds` are means unless said otherwise, `_fraction` lies in [0, 1].
    """

    requests: int = 1000  # requests in the trace, before thinning and limit
    sessions_per_second: float = 1.0  # mean rate at which sessions start
    sessions_per_burst: float = 1.0  # mean, geometric; 1: a Poisson process
    vocab_size: int = 32_000  # token ids are drawn from [0, vocab_size)

    def __post_init__(self) -> None:
        """Raises ValueError for a number of the wrong type or sign."""
        for field in fields(self):
            value = getattr(self, field.name)
            wanted = (int,) if field.type is int else (int, float)
            if isinstance(value, bool) or not isinstance(value, wanted) or not isfinite(value):
                raise ValueError(f"trace.{field.name} must be {wanted[-1].__name__}, got {value!r}")
            if field.name.endswith("_fraction"):
                if not 0 <= value <= 1:
                    raise ValueError(f"trace.{field.name} must lie in [0, 1], got {value}")
            elif field.name.endswith("_exponent"):
                if value < 0:
                    raise ValueError(f"trace.{field.name} must be 0 (all alike) or more, got {value}")
            elif value <= 0:
                raise ValueError(f"trace.{field.name} must be positive, got {value}")
            elif field.name in ("turns", "steps", "sessions_per_burst") and value < 1:
                raise ValueError(f"trace.{field.name} must be 1 or more, got {value}")
        if self.vocab_size > MAX_VOCAB:
            raise ValueError(f"trace.vocab_size must be at most 2**31, got {self.vocab_size}")


class Workload(Protocol):
    """A kind of traffic."""

    @property
    def settings(self) -> WorkloadSettings:
        """What it was built with."""
        ...

    def session(self, seed: int, sampler: Sampler) -> Iterator[Call]:
        """One session's calls, at least one, in order. Texts that sessions share depend on `seed` alone."""
        ...
