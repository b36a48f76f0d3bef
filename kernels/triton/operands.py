"""Tensors as the GPU kernels take them: checked, on the device, contiguous within a row."""

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class DeviceOperands:
    """Checks the tensors of one call of `op` against shapes and a device.

    Raises ValueError naming the operand for another shape, dtype or device.
    """

    __slots__ = ("_op", "_device")

    def __init__(self, op: str, device: torch.device) -> None:
        self._op = op
        self._device = device

    def rows(self, x: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
        """x of this shape, each row contiguous; a copy where it is not."""
        self._check(x, name, shape)
        return x if _inner_contiguous(x) else x.contiguous()

    def whole(self, x: Tensor | None, name: str, shape: tuple[int, ...]) -> Tensor | None:
        """x of this shape, contiguous; None for None."""
        if x is None:
            return None
        self._check(x, name, shape)
        return x.contiguous()

    def pool(self, x: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
        """x [any, *shape], read and written in place, so that only the first dimension may be strided."""
        self._check(x, name, (len(x), *shape) if x.dim() else shape)
        if not _inner_contiguous(x):
            raise ValueError(
                f"{self._op}: {name} has strides {x.stride()}; its entries must be contiguous, "
                "only the first dimension may be strided"
            )
        return x

    def multiple(self, heads: int, groups: int, name: str) -> None:
        """Raises ValueError unless `heads` are a multiple of `groups`, which are called `name`."""
        if groups < 1 or heads % groups:
            raise ValueError(f"{self._op}: {heads} heads are no multiple of {groups} {name}")

    def _check(self, x: Tensor, name: str, shape: tuple[int, ...]) -> None:
        if x.shape != shape:
            raise ValueError(f"{self._op}: {name} has shape {tuple(x.shape)}; expected {shape}")
        if x.dtype not in DTYPES:
            raise ValueError(f"{self._op}: {name} is {x.dtype}; use float32, bfloat16 or float16")
        if x.device != self._device:
            raise ValueError(f"{self._op}: {name} is on {x.device}; this backend needs it on {self._device}")


def _inner_contiguous(x: Tensor) -> bool:
    expected = 1
    for size, stride in zip(reversed(x.shape[1:]), reversed(x.stride()[1:]), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
