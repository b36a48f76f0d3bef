"""Tensors as the GPU kernels take them: checked, on the device, contiguous within a row."""

import torch
from torch import Tensor

from hybridcache.kernels.operands import check_entries, check_operand, inner_contiguous


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
        return x if inner_contiguous(x) else x.contiguous()

    def whole(self, x: Tensor | None, name: str, shape: tuple[int, ...]) -> Tensor | None:
        """x of this shape, contiguous; None for None."""
        if x is None:
            return None
        self._check(x, name, shape)
        return x.contiguous()

    def pool(self, x: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
        """x [any, *shape], read and written in place, so that only the first dimension may be strided."""
        self._check(x, name, (len(x), *shape) if x.dim() else shape)
        check_entries(self._op, x, name)
        return x

    def multiple(self, heads: int, groups: int, name: str) -> None:
        """Raises ValueError unless `heads` are a multiple of `groups`, which are called `name`."""
        if groups < 1 or heads % groups:
            raise ValueError(f"{self._op}: {heads} heads are no multiple of {groups} {name}")

    def _check(self, x: Tensor, name: str, shape: tuple[int, ...]) -> None:
        check_operand(self._op, x, name, shape)
        if x.device != self._device:
            raise ValueError(f"{self._op}: {name} is on {x.device}; this backend needs it on {self._device}")
