"""Recurrent layers on a GPU: the CUDA kernels of csrc/cuda/ behind the signatures of ops.py."""

import ctypes
from typing import Literal

import torch
from torch import Tensor

from hybridcache.kernels.arguments import GatedDeltaArgs, Mamba2Args
from hybridcache.kernels.cuda.arguments import ConvArgs, SelectiveArgs, SelectivePassArgs
from hybridcache.kernels.cuda.batch import DeviceBatch
from hybridcache.kernels.cuda.build import ELEMENTS, SIZES, Kernels, Variant
from hybridcache.kernels.cuda.chunks import ChunkedBatch
from hybridcache.kernels.cuda.operands import DeviceOperands
from hybridcache.kernels.operands import DTYPE_CODES, Pool, sizes
from hybridcache.kernels.packed import PackedBatch

MAX_SEQUENCES = 65_535
"""Of one launch: a dimension of the grid."""


class CudaScans:
    """Convolution and recurrences in CUDA, where a row's bits depend on no cut, batch or stored state.

    With `chunk_below` a scan by chunks keeps that for cuts at multiples of 128 tokens of the sequence only.

    Every method raises ValueError naming the operand for a shape, dtype, device or slot that does not fit,
    BuildError when its kernel cannot be compiled, RuntimeError when it cannot be launched.
    """

    kernels: Kernels
    chunk_below: int = 0
    """Mamba-1 layers with fewer state elements a sequence than this are scanned by chunks, side by side."""
    _arrays: DeviceBatch | None = None
    _chunks: ChunkedBatch | None = None

    def causal_conv1d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        conv_state: Tensor,
        batch: PackedBatch,
        activation: Literal["silu"] | None = "silu",
    ) -> Tensor:
        """As Ops.causal_conv1d; 2 to 5 taps."""
        if activation not in ("silu", None):
            raise ValueError(f"causal_conv1d: activation is {activation!r}; use 'silu' or None")
        operands = DeviceOperands("causal_conv1d", self.kernels.device_type, (x,))
        channels, width = sizes("causal_conv1d: weight", weight, 2)
        if width not in SIZES["causal_conv1d"]:
            raise ValueError(f"causal_conv1d: {width} taps; the kernel takes {SIZES['causal_conv1d']}")
        batch.check_slots(conv_state, "causal_conv1d: conv_state")
        out = torch.empty(batch.num_tokens, channels, dtype=operands.element, device=x.device)
        on_device = self._arrays_of(batch, x.device)
        args = ConvArgs(
            operands.rows(x, "x", (batch.num_tokens, channels)),
            (out.data_ptr(), out.stride(0)),
            operands.whole(weight, "weight", (channels, width)),
            operands.whole(bias, "bias", (channels,)),
            operands.pool(conv_state, "conv_state", (channels, width - 1)),
            on_device.tiles,
            on_device.num_tiles,
            channels,
            activation == "silu",
            on_device.segments,
        )
        self._run(Variant("causal_conv1d", ELEMENTS[operands.element], width), args, on_device)
        return out

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
        rows, state = batch.num_tokens, operands.pool(ssm_state, "ssm_state", (channels, d_state))
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
            state,
            state,
            None,
            channels,
            d_state,
        )
        on_device = self._arrays_of(batch, x.device)
        source = "selective_scan" if on_device.longest > 1 else "selective_update"
        variant = Variant(source, ELEMENTS[operands.element], size)
        if source == "selective_scan" and channels * size < self.chunk_below:
            self._scan_by_chunks(variant, args, self._chunks_of(batch, x.device))
        else:
            self._run(variant, args, on_device)
        return out.to(x.dtype)

    def _scan_by_chunks(self, variant: Variant, args: SelectiveArgs, chunks: ChunkedBatch) -> None:
        """Chunks side by side from zero, then the states in front of them in order, then outputs."""
        if not chunks.batch.num_sequences:
            return
        device, elements = chunks.numbers.device, args.channels * args.d_state
        states = torch.empty(chunks.num_chunks, elements, dtype=torch.float32, device=device)
        totals = torch.empty(chunks.num_chunks, args.channels, dtype=torch.float32, device=device)
        given, kept = args.initial, (states.data_ptr(), 4 * elements, DTYPE_CODES[torch.float32])
        final = SelectiveArgs.from_buffer_copy(args)
        final.initial = args.state = Pool(*kept)
        args.totals = totals.data_ptr()
        middle = SelectivePassArgs(
            args.a, totals.data_ptr(), states.data_ptr(), given, final.state, args.channels, args.d_state
        )
        if chunks.num_chunks:
            self.kernels.run(variant, device, args, chunks.summary)
        self.kernels.run(Variant("selective_pass", "raw", 1), device, middle, chunks.middle)
        if chunks.num_chunks:
            self.kernels.run(variant, device, final, chunks.scan)

    def mamba2_scan(
        self,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None,
        dt_bias: Tensor | None,
        dt_limit: tuple[float, float],
        ssm_state: Tensor,
        batch: PackedBatch,
    ) -> Tensor:
        """As Ops.mamba2_scan, token by token; d_state up to 256."""
        operands = DeviceOperands("mamba2_scan", self.kernels.device_type, (x, dt, B, C))
        _, heads, head_dim = sizes("mamba2_scan: x", x, 3)
        _, groups, d_state = sizes("mamba2_scan: B", B, 3)
        if groups == 0 or heads % groups:
            raise ValueError(f"mamba2_scan: {heads} heads are no multiple of {groups} groups")
        size, rows = padded("mamba2_scan: d_state", d_state, 16, 256), batch.num_tokens
        batch.check_slots(ssm_state, "mamba2_scan: ssm_state")
        out = torch.empty(rows, heads, head_dim, dtype=operands.element, device=x.device)
        args = Mamba2Args(
            operands.rows(x, "x", (rows, heads, head_dim)),
            operands.rows(dt, "dt", (rows, heads)),
            operands.rows(B, "B", (rows, groups, d_state)),
            operands.rows(C, "C", (rows, groups, d_state)),
            (out.data_ptr(), out.stride(0)),
            operands.whole(A, "A", (heads,)),
            operands.whole(D, "D", (heads,)),
            operands.whole(dt_bias, "dt_bias", (heads,)),
            *dt_limit,
            operands.pool(ssm_state, "ssm_state", (heads, head_dim, d_state)),
            heads,
            head_dim,
            groups,
            d_state,
        )
        variant = Variant("mamba2_recurrence", ELEMENTS[operands.element], size)
        self._run(variant, args, self._arrays_of(batch, x.device))
        return out.to(x.dtype)

    def gated_delta_scan(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor,
        beta: Tensor,
        ssm_state: Tensor,
        batch: PackedBatch,
        scale: float,
        l2norm: bool,
    ) -> Tensor:
        """As Ops.gated_delta_scan, token by token; key_dim up to 256."""
        gates = (log_decay.float(), beta.float())
        operands = DeviceOperands("gated_delta_scan", self.kernels.device_type, (q, k, v))
        _, key_heads, key_dim = sizes("gated_delta_scan: k", k, 3)
        _, value_heads, value_dim = sizes("gated_delta_scan: v", v, 3)
        if key_heads == 0 or value_heads % key_heads:
            raise ValueError(f"gated_delta_scan: {value_heads} value heads are no multiple of {key_heads}")
        size, rows = padded("gated_delta_scan: key_dim", key_dim, 64, 256), batch.num_tokens
        batch.check_slots(ssm_state, "gated_delta_scan: ssm_state")
        out = torch.empty(rows, value_heads, value_dim, dtype=operands.element, device=v.device)
        args = GatedDeltaArgs(
            operands.rows(q, "q", (rows, key_heads, key_dim)),
            operands.rows(k, "k", (rows, key_heads, key_dim)),
            operands.rows(v, "v", (rows, value_heads, value_dim)),
            operands.wide_rows(gates[0], "log_decay", (rows, value_heads)),
            operands.wide_rows(gates[1], "beta", (rows, value_heads)),
            (out.data_ptr(), out.stride(0)),
            operands.pool(ssm_state, "ssm_state", (value_heads, key_dim, value_dim)),
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            scale,
            l2norm,
        )
        variant = Variant("gated_delta_recurrence", ELEMENTS[operands.element], size)
        self._run(variant, args, self._arrays_of(batch, v.device))
        return out.to(v.dtype)

    def _arrays_of(self, batch: PackedBatch, device: torch.device) -> DeviceBatch:
        """The batch's arrays; the last one is kept, since all layers of a pass share it."""
        kept = self._arrays
        if kept is None or kept.batch is not batch or kept.numbers.device != device:
            if batch.num_sequences > MAX_SEQUENCES:
                raise ValueError(f"{batch.num_sequences} sequences in a batch; at most {MAX_SEQUENCES}")
            self._arrays = kept = DeviceBatch.of(batch, device)
        return kept

    def _chunks_of(self, batch: PackedBatch, device: torch.device) -> ChunkedBatch:
        """The batch's chunks; the last ones are kept."""
        kept = self._chunks
        if kept is None or kept.batch is not batch or kept.numbers.device != device:
            kept = ChunkedBatch.of(batch, device)
            if kept.num_chunks > MAX_SEQUENCES:
                raise ValueError(f"{kept.num_chunks} chunks of tokens in a batch; at most {MAX_SEQUENCES}")
            self._chunks = kept
        return kept

    def _run(self, variant: Variant, args: ctypes.Structure, batch: DeviceBatch) -> None:
        if batch.batch.num_sequences:
            self.kernels.run(variant, batch.numbers.device, args, batch.args)


def padded(name: str, size: int, least: int, most: int) -> int:
    """`size` rounded up to a power of two, at least `least`. ValueError above `most`."""
    if not 1 <= size <= most:
        raise ValueError(f"{name} is {size}; the kernels take 1 to {most}")
    return max(least, 1 << (size - 1).bit_length())
