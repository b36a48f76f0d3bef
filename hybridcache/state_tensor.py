"""One tensor of cached state, as a layer declares it: name, shape, dtype."""

import math
from types import MappingProxyType
from typing import NamedTuple

DTYPE_BYTES = MappingProxyType(
    {
        "float64": 8,
        "float32": 4,
        "float16": 2,
        "bfloat16": 2,
        "float8_e4m3fn": 1,
        "float8_e5m2": 1,
        "int8": 1,
    }
)
"""Bytes per element of every dtype a cache may store; the names are torch's."""


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element of `dtype`. Raises ValueError for a name that is not in DTYPE_BYTES."""
    try:
        return DTYPE_BYTES[dtype]
    except KeyError:
        raise ValueError(f"dtype {dtype!r} is unknown; use one of {', '.join(DTYPE_BYTES)}") from None


class StateTensor(NamedTuple):
    """A tensor a layer keeps: one per checkpoint (recurrent state) or one per token (K, V).

    `shape` has no batch and no slot dimension: storage adds them.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor: product of the shape times the bytes of one element."""
        return math.prod(self.shape) * dtype_bytes(self.dtype)
