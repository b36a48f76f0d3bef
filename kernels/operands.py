"""Tensors as the C++ kernels take them: checked first, then a pointer and strides."""

import ctypes
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from hybridcache.kernels.packed import PackedBatch

DTYPE_CODES: Mapping[torch.dtype, int] = MappingProxyType(
    {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
)

GRAIN = 16_384
"""Multiply-adds per thread below which another thread costs more than it brings; no result depends on it."""


class Rows(ctypes.Structure):
    """float32 rows, contiguous within a row."""

    _fields_ = (("data", ctypes.c_void_p), ("stride", ctypes.c_int64))


class Pool(ctypes.Structure):
    """Entries of a state tensor or a KV cache; `stride` in bytes."""

    _fields_ = (("data", ctypes.c_void_p), ("stride", ctypes.c_int64), ("dtype", ctypes.c_int64))


class BatchArgs(ctypes.Structure):
    """A PackedBatch; pointers to its tensors, which must outlive it."""

    _fields_ = (
        ("num_sequences", ctypes.c_int64),
        ("num_tokens", ctypes.c_int64),
        ("cu_seqlens", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("has_state", ctypes.c_void_p),
        ("emit_offsets", ctypes.c_void_p),
        ("emit_counts", ctypes.c_void_p),
        ("emit_slots", ctypes.c_void_p),
        ("num_computed", ctypes.c_void_p),
        ("block_tables", ctypes.c_void_p),
        ("max_blocks", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("slot_mapping", ctypes.c_void_p),
    )

    @classmethod
    def of(cls, batch: PackedBatch) -> "BatchArgs":
        """The batch's pointers; its tensors are int64, contiguous and on the CPU by construction."""
        return cls(
            batch.num_sequences,
            batch.num_tokens,
            batch.cu_seqlens.data_ptr(),
            batch.slots.data_ptr(),
            batch.has_state.data_ptr(),
            batch.emit_offsets.data_ptr(),
            batch.emit_counts.data_ptr(),
            batch.emit_slots.data_ptr(),
            batch.num_computed.data_ptr(),
            batch.block_tables.data_ptr(),
            batch.block_tables.shape[1],
            batch.block_size,
            batch.slot_mapping.data_ptr(),
        )


RowsView = tuple[int | None, int]
"""Values of a Rows field; ctypes builds the structure from them."""
NO_ROWS: RowsView = (None, 0)


class Operands:
    """Checks the tensors of one call and keeps them alive until it is over.

    All of them: what is not converted here may be a caller's reshaped copy that nobody else holds.
    """

    __slots__ = ("_kept", "_op")

    def __init__(self, op: str) -> None:
        self._op = op
        self._kept: list[Tensor] = []

    def rows(self, x: Tensor, name: str, shape: tuple[int, ...]) -> RowsView:
        """x of this shape as float32 rows; copied only when the dtype or the inner strides need it."""
        if x.dtype is not torch.float32 or x.shape != shape or not x.is_cpu:
            self._check(x, name, shape)
            x = x.float()
        if not (x.is_contiguous() or inner_contiguous(x)):
            x = x.contiguous()
        self._kept.append(x)
        return x.data_ptr(), x.stride(0)

    def optional_rows(self, x: Tensor | None, name: str, shape: tuple[int, ...]) -> RowsView:
        """Like `rows`; null for None."""
        return NO_ROWS if x is None else self.rows(x, name, shape)

    def whole(self, x: Tensor | None, name: str, shape: tuple[int, ...]) -> int | None:
        """Address of x as a contiguous float32 tensor; None for None."""
        if x is None:
            return None
        self._check(x, name, shape)
        if x.dtype != torch.float32 or not x.is_contiguous():
            x = x.to(torch.float32).contiguous()
        self._kept.append(x)
        return x.data_ptr()

    def pool(self, x: Tensor, name: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """x [any, *shape], which is read and written in place."""
        self._check(x, name, (len(x), *shape) if x.dim() else shape)
        check_entries(self._op, x, name)
        return x.data_ptr(), x.stride(0) * x.element_size(), DTYPE_CODES[x.dtype]

    def _check(self, x: Tensor, name: str, shape: tuple[int, ...]) -> None:
        check_operand(self._op, x, name, shape)
        if not x.is_cpu:
            raise ValueError(f"{self._op}: {name} is on {x.device}; this backend needs it on the CPU")


def check_operand(op: str, x: Tensor, name: str, shape: tuple[int, ...]) -> None:
    """Raises ValueError naming the operand unless x has this shape and a dtype of DTYPE_CODES."""
    if x.shape != shape:
        raise ValueError(f"{op}: {name} has shape {tuple(x.shape)}; expected {shape}")
    if x.dtype not in DTYPE_CODES:
        raise ValueError(f"{op}: {name} is {x.dtype}; use float32, bfloat16 or float16")


def check_entries(op: str, x: Tensor, name: str) -> None:
    """Raises ValueError naming the operand unless the entries x[i] are contiguous."""
    if not (x.is_contiguous() or inner_contiguous(x)):
        raise ValueError(
            f"{op}: {name} has strides {x.stride()}; its entries must be contiguous, "
            "only the first dimension may be strided"
        )


def inner_contiguous(x: Tensor) -> bool:
    """Whether the entries x[i] are contiguous, whatever their distance."""
    if x.numel() == 0:
        return True
    expected = 1
    for size, stride in zip(reversed(x.shape[1:]), reversed(x.stride()[1:]), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def threads_for(work: int) -> int:
    """Threads for so many multiply-adds."""
    return 1 if work < 2 * GRAIN else min(torch.get_num_threads(), work // GRAIN)


def out_rows(out: Tensor) -> RowsView:
    """A new float32 result as rows."""
    return out.data_ptr(), out.stride(0)


def as_dtype(out: Tensor, like: Tensor) -> Tensor:
    """`out`, which is float32, in the dtype of `like`."""
    return out if like.dtype is torch.float32 else out.to(like.dtype)


def sizes(name: str, x: Tensor, dimensions: int) -> tuple[int, ...]:
    """x's shape; ValueError for another number of dimensions."""
    if x.dim() != dimensions:
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected {dimensions} dimensions")
    return tuple(x.shape)
