"""A safetensors file read by memory map, one tensor at a time."""

import json
import math
import mmap
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

DTYPES = MappingProxyType(
    {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
)
"""Weight dtypes that are read, by the format's names."""

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000
_PIECE_BYTES = 1 << 24
"""Of a copy made in pieces: enough for the time to be the disk's, little beside any model."""


class TensorEntry(NamedTuple):
    """Where a tensor lies in a file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    """Byte of the file where its data begin."""
    num_bytes: int

    def rows(self, start: int, stop: int) -> "TensorEntry":
        """The part [start, stop) of the first dimension."""
        assert 0 <= start <= stop <= self.shape[0]
        row = self.num_bytes // self.shape[0] if self.num_bytes else 0
        return self._replace(
            shape=(stop - start, *self.shape[1:]),
            start=self.start + start * row,
            num_bytes=(stop - start) * row,
        )

    def copy(self, dtype: torch.dtype) -> Tensor:
        """A copy in `dtype`, made in pieces so that little of the file is mapped at a time."""
        if self.num_bytes <= _PIECE_BYTES or not self.shape:
            return self.read().to(dtype, copy=True)
        target = torch.empty(self.shape, dtype=dtype)
        step = max(1, _PIECE_BYTES * self.shape[0] // self.num_bytes)
        for start in range(0, self.shape[0], step):
            stop = min(start + step, self.shape[0])
            target[start:stop] = self.rows(start, stop).read()
        return target

    def read(self) -> Tensor:
        """The tensor, backed by a private map of its own bytes that ends with the last view of it."""
        dtype = DTYPES[self.dtype]
        if not self.num_bytes:
            return torch.empty(self.shape, dtype=dtype)
        page = self.start - self.start % mmap.ALLOCATIONGRANULARITY
        with self.file.open("rb") as file:
            view = mmap.mmap(
                file.fileno(), self.start + self.num_bytes - page, access=mmap.ACCESS_COPY, offset=page
            )
        view.madvise(mmap.MADV_WILLNEED)
        if self.start % dtype.itemsize:
            # Readers may count on aligned elements; only odd files get here.
            return torch.frombuffer(bytearray(view[self.start - page :]), dtype=dtype).reshape(self.shape)
        count = self.num_bytes // dtype.itemsize
        flat = torch.frombuffer(view, dtype=dtype, count=count, offset=self.start - page)
        return flat.reshape(self.shape)


def safetensors_entries(path: Path) -> dict[str, TensorEntry]:
    """The tensors of a file by name, from its header alone.

    Raises ValueError naming the file for one that cannot be read, is cut off or has no valid header, for
    tensors that overlap, and for one whose dtype is no float that is supported here.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if size < _LENGTH_BYTES or length > min(size - _LENGTH_BYTES, _MAX_HEADER_BYTES):
                raise ValueError(
                    f"{path}: {size} bytes with a header of {length}; cut off or no safetensors file"
                )
            header = json.loads(file.read(length))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: no safetensors header ({error})") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path}: the header is a JSON {type(header).__name__}, no object")
    data = _LENGTH_BYTES + length
    entries = {
        name: _entry(path, name, facts, data, size)
        for name, facts in header.items()
        if name != "__metadata__"
    }
    placed = sorted((entry.start, entry.start + entry.num_bytes, name) for name, entry in entries.items())
    for (_, stop, before), (start, _, name) in pairwise(placed):
        if start < stop:
            raise ValueError(f"{path}: tensors {before!r} and {name!r} overlap; the file is damaged")
    return entries


def _entry(path: Path, name: str, facts: object, data: int, size: int) -> TensorEntry:
    match facts:
        case {"dtype": str(dtype), "shape": [*dims], "data_offsets": [int(start), int(stop)]} if all(
            isinstance(dim, int) and dim >= 0 for dim in dims
        ):
            pass
        case _:
            raise ValueError(
                f"{path}: tensor {name!r} has the header {facts!r}; dtype, shape, data_offsets needed"
            )
    if dtype not in DTYPES:
        raise ValueError(f"{path}: tensor {name!r} is {dtype}; supported are {', '.join(DTYPES)}")
    shape = tuple(int(dim) for dim in dims)
    if not 0 <= start <= stop <= size - data or stop - start != math.prod(shape) * DTYPES[dtype].itemsize:
        raise ValueError(
            f"{path}: tensor {name!r} of shape {list(shape)} spans the bytes [{start}, {stop}) of "
            f"{size - data}; the file is cut off or damaged"
        )
    return TensorEntry(path, dtype, shape, data + start, stop - start)


def merge(into: dict[str, TensorEntry], more: Mapping[str, TensorEntry]) -> None:
    """Adds `more` to `into`. Raises ValueError naming a tensor that both have."""
    for name, entry in more.items():
        if name in into:
            raise ValueError(f"tensor {name!r} is in {into[name].file} and in {entry.file}; keep one of them")
        into[name] = entry
