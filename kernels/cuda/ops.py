"""Recurrent layers on a GPU: the CUDA kernels of csrc/cuda/ behind the signatures of ops.py."""

import torch
from torch import Tensor

from hybridcache.kernels.cuda.arguments import SelectiveArgs
from hybridcache.kernels.cuda.batch import DeviceBatch
from hybridcache.kernels.cuda.build import ELEMENTS, Kernels, Variant
from hybridcache.kernels.cuda.operands import DeviceOperands
from hybridcache.kernels.operands import sizes
from hybridcache.kernels.packed import PackedBatch
from hybridcache.kernels.reference import ReferenceOps

MAX_SEQUENCES = 65_535
"""Of one launch: a dimension of the grid."""


class CudaOps(ReferenceOps):
    """Convolution and recurrences in CUDA, where a row's bits depend on no cut, batch or stored state.

    The other operations are plain torch's. Every method raises ValueError naming the operand for a shape,
    dtype, device or slot that does not fit, BuildError when its kernel cannot be compiled, RuntimeError when
    it cannot be launched.
    """

    name = "cuda"

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self._batch: DeviceBatch | None = None

    def mamba1_scan(
        self,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None,
        z: Tensor | None,
        dt_bias: Tensor | None,
        ssm_state: Tensor,
        batch: PackedBatch,
    ) -> Tensor:
        """As Ops.mamba1_scan; d_state up to 256."""
        operands = DeviceOperands("mamba1_scan", self.kernels.device_type, (x, dt, B, C, z))
        channels, d_state = sizes("mamba1_scan: A", A, 2)
        size = padded("mamba1_scan: d_state", d_state, 8, 256)
        batch.check_slots(ssm_state, "mamba1_scan: ssm_state")
        rows = batch.num_tokens
        out = torch.empty(rows, channels, dtype=operands.element, device=x.device)
        args = SelectiveArgs(
            operands.rows(x, "x", (rows, channels)),
            operands.rows(dt, "dt", (rows, channels)),
            operands.optional_rows(z, "z", (rows, channels)),
            operands.rows(B, "B", (rows, d_state)),
            operands.rows(C, "C", (rows, d_state)),
            (out.data_ptr(), out.stride(0)),
            operands.whole(A, "A", (channels, d_state)),
            operands.whole(D, "D", (channels,)),
            operands.whole(dt_bias, "dt_bias", (channels,)),
            operands.pool(ssm_state, "ssm_state", (channels, d_state)),
            channels,
            d_state,
        )
        on_device = self.on_device(batch, x.device)
        source = "selective_scan" if on_device.longest > 1 else "selective_update"
        self._run(Variant(source, ELEMENTS[operands.element], size), args, on_device)
        return out.to(x.dtype)

    def on_device(self, batch: PackedBatch, device: torch.device) -> DeviceBatch:
        """The batch's arrays; the last one is kept, since all layers of a pass share it."""
        kept = self._batch
        if kept is None or kept.batch is not batch or kept.numbers.device != device:
            if batch.num_sequences > MAX_SEQUENCES:
                raise ValueError(f"{batch.num_sequences} sequences in a batch; at most {MAX_SEQUENCES}")
            self._batch = kept = DeviceBatch.of(batch, device)
        return kept

    def _run(self, variant: Variant, args: SelectiveArgs, batch: DeviceBatch) -> None:
        if batch.batch.num_sequences:
            self.kernels.run(variant, args, batch.args)


def padded(name: str, size: int, least: int, most: int) -> int:
    """`size` rounded up to a power of two, at least `least`. ValueError above `most`."""
    if not 1 <= size <= most:
        raise ValueError(f"{name} is {size}; the kernels take 1 to {most}")
    return max(least, 1 << (size - 1).bit_length())
