"""What a device can do: the profiles of conf/hardware/ behind the latency model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from types import MappingProxyType
from typing import Any, Self

from hybridcache.state_tensor import dtype_bytes

_FIELDS = (
    "name", "dtype", "peak_flops", "bytes_per_second", "compute_fraction", "memory_fraction",
    "step_overhead_seconds", "source",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HardwareProfile:
    """Peaks of one device, and the parts of them that serving reaches.

    Raises ValueError, naming the profile and the key, for a number that no device has. Peaks may be infinite.
    """

    name: str
    dtype: str
    """In which weights are held and multiplied; one of `peak_flops`."""
    peak_flops: Mapping[str, float] = field(hash=False)
    """FLOP/s of dense matrix products, by dtype."""
    bytes_per_second: float
    """Of the memory that weights, KV and states lie in."""
    compute_fraction: float
    """Of `peak_flops` that the products of a long prompt reach, in (0, 1]."""
    memory_fraction: float
    """Of `bytes_per_second` that reading weights reaches, in (0, 1]."""
    step_overhead_seconds: float
    """Of every step, whatever is in it: launches, sampling, bookkeeping."""
    source: str
    """Where the numbers come from."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "peak_flops", MappingProxyType(dict(self.peak_flops)))
        for dtype in (*self.peak_flops, self.dtype):
            dtype_bytes(dtype)
        if self.dtype not in self.peak_flops:
            raise ValueError(
                f"hardware {self.name}: dtype={self.dtype} has no peak_flops; those known are "
                f"{', '.join(self.peak_flops) or 'none'}"
            )
        for key, value in (*self.peak_flops.items(), ("bytes_per_second", self.bytes_per_second)):
            if not value > 0:
                raise ValueError(f"hardware {self.name}: {key}={value!r}; give a number above 0")
        for key in ("compute_fraction", "memory_fraction"):
            if not 0 < getattr(self, key) <= 1:
                raise ValueError(f"hardware {self.name}: {key}={getattr(self, key)!r} is outside (0, 1]")
        if not (self.step_overhead_seconds >= 0 and isfinite(self.step_overhead_seconds)):
            raise ValueError(
                f"hardware {self.name}: step_overhead_seconds={self.step_overhead_seconds!r}; give seconds, "
                "at least 0"
            )

    @property
    def flops_per_second(self) -> float:
        """FLOP/s that are reached in `dtype`."""
        return self.peak_flops[self.dtype] * self.compute_fraction

    @property
    def reached_bytes_per_second(self) -> float:
        """Bytes a second that are reached."""
        return self.bytes_per_second * self.memory_fraction

    @property
    def weight_bytes(self) -> int:
        """Bytes of one weight."""
        return dtype_bytes(self.dtype)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Read a file of conf/hardware/ as a plain mapping. Raises ValueError naming the key."""
        name = config.get("name", "without a name")
        missing = [key for key in _FIELDS if config.get(key) is None]
        unknown = sorted(set(config) - set(_FIELDS))
        if missing or unknown:
            raise ValueError(f"hardware {name}: missing keys {missing}, unknown keys {unknown}")
        peaks = config["peak_flops"]
        if not isinstance(peaks, Mapping):
            raise ValueError(f"hardware {name}: peak_flops={peaks!r}; give FLOP/s by dtype")
        return cls(
            str(name),
            str(config["dtype"]),
            {str(dtype): _number(name, f"peak_flops.{dtype}", peak) for dtype, peak in peaks.items()},
            *_numbers(name, config),
            str(config["source"]),
        )


def _numbers(name: object, config: Mapping[str, Any]) -> tuple[float, float, float, float]:
    """The numbers between peaks and source, in the order of the fields."""
    rate, compute, memory, overhead = (_number(name, key, config[key]) for key in _FIELDS[3:7])
    return rate, compute, memory, overhead


def _number(name: object, key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"hardware {name}: {key}={value!r} is not a number")
    return float(value)
