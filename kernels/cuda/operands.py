"""Tensors checked and turned into what the CUDA kernels take."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hybridcache.kernels.operands import (
    DTYPE_CODES,
    NO_ROWS,
    RowsView,
    check_entries,
    check_operand,
    inner_contiguous,
)


class DeviceOperands:
    """Checks the tensors of one call and keeps them until it is launched.

    `element` is the type that all rows of the call are read in: the widest of the given ones, so that no
    operand is rounded. Memory that is freed once the call is launched goes to later work of the same stream.
    """

    __slots__ = ("_kept", "_op", "device_type", "element")

    def __init__(self, op: str, device_type: str, rows: Sequence[Tensor | None]) -> None:
        self._op = op
        self._kept: list[Tensor] = []
        self.device_type = device_type
        dtypes = {x.dtype for x in rows if x is not None}
        for dtype in dtypes:
            if dtype not in DTYPE_CODES:
                raise ValueError(f"{op}: an operand is {dtype}; use float32, bfloat16 or float16")
        self.element = dtypes.pop() if len(dtypes) == 1 else torch.float32

    def rows(self, x: Tensor, name: str, shape: tuple[int, ...]) -> RowsView:
        """x of this shape as rows of `element`; copied only when the dtype or the inner strides need it."""
        return self._rows(x, name, shape, self.element)

    def wide_rows(self, x: Tensor, name: str, shape: tuple[int, ...]) -> RowsView:
        """x of this shape as float32 rows."""
        return self._rows(x, name, shape, torch.float32)

    def optional_rows(self, x: Tensor | None, name: str, shape: tuple[int, ...]) -> RowsView:
        """Like `rows`; null for None."""
        return NO_ROWS if x is None else self.rows(x, name, shape)

    def whole(self, x: Tensor | None, name: str, shape: tuple[int, ...]) -> int | None:
        """Address of x as a contiguous float32 tensor; None for None."""
        if x is None:
            return None
        self._check(x, name, shape)
        x = x.to(torch.float32).contiguous()
        self._kept.append(x)
        return x.data_ptr()

    def pool(self, x: Tensor, name: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """x [any, *shape], which is read and written in place: address, bytes from entry to entry, dtype."""
        self._check(x, name, (len(x), *shape) if x.dim() else shape)
        check_entries(self._op, x, name)
        return x.data_ptr(), x.stride(0) * x.element_size(), DTYPE_CODES[x.dtype]

    def _rows(self, x: Tensor, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> RowsView:
        self._check(x, name, shape)
        x = x.to(dtype)
        if not (x.is_contiguous() or inner_contiguous(x)):
            x = x.contiguous()
        self._kept.append(x)
        return x.data_ptr(), x.stride(0)

    def _check(self, x: Tensor, name: str, shape: tuple[int, ...]) -> None:
        check_operand(self._op, x, name, shape)
        if x.device.type != self.device_type:
            raise ValueError(f"{self._op}: {name} is on {x.device}; this backend takes {self.device_type}")
