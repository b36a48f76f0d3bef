"""Backend `triton`: what the layers call, on an NVIDIA GPU, or slowly on a CPU under Triton's interpreter."""

from typing import Literal, get_args

import torch
import triton
from torch import Tensor
from triton.runtime.jit import JITFunction

from hybridcache.kernels.operands import sizes
from hybridcache.kernels.ops import Linear, Numerics
from hybridcache.kernels.packed import PackedBatch
from hybridcache.kernels.reference import ReferenceLinear
from hybridcache.kernels.triton import attention, gated_delta, mamba2
from hybridcache.kernels.triton.batch import DeviceBatch
from hybridcache.kernels.triton.device.conv import conv_outputs, conv_windows
from hybridcache.kernels.triton.device.mamba1 import mamba1_token_by_token
from hybridcache.kernels.triton.device.rows import store_kv_rows
from hybridcache.kernels.triton.launch import launch
from hybridcache.kernels.triton.linear import InvariantLinear
from hybridcache.kernels.triton.operands import DeviceOperands
from hybridcache.kernels.triton.rows import TritonRowOps

GpuLinearMethod = Literal["auto", "torch", "invariant"]
"""`torch` (auto): cuBLAS, which chooses by the number of rows. `invariant`: our own product with one tile."""


OLDEST = 8
"""Compute capability from which on there are the products and copies that the kernels are made of."""


def interpreted() -> bool:
    """Whether Triton was told to interpret kernels (TRITON_INTERPRET=1) when they were imported."""
    return not isinstance(store_kv_rows, JITFunction)


class TritonOps(TritonRowOps):
    """All operations on one device; float32 inside, products of 16-bit operands on tensor cores.

    With `linear="invariant"` every operation has one order of summation: products of one tile shape, scans
    token by token, attention in the tiles of prefill for single tokens too. A row then has the same bits
    wherever its sequence was cut and whatever else the batch holds (`numerics` is "exact"), and all of it is
    slower. Otherwise see docs/numerics.md. Raises ValueError for another method of linears, and for a GPU
    that is too old.
    """

    name = "triton"

    def __init__(self, device: torch.device, linear: str = "auto") -> None:
        if linear not in get_args(GpuLinearMethod):
            methods = ", ".join(get_args(GpuLinearMethod))
            raise ValueError(f"linear method is {linear!r}; on a GPU use {methods}")
        super().__init__(device)
        self.stepwise = linear == "invariant"
        self.numerics: Numerics = "exact" if self.stepwise else "tolerant"
        self.capability = 90
        """Compute capability, 90 for 9.0; what the interpreter is told."""
        if device.type == "cuda":
            major, minor = torch.cuda.get_device_capability(device)
            self.capability = 10 * major + minor
            if major < OLDEST:
                raise ValueError(
                    f"{device} has compute capability {major}.{minor}; the kernels need {OLDEST}.0: use "
                    "another device, or backend=reference, which is slow"
                )
        self._last: DeviceBatch | None = None

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        weight = weight.to(self.device)
        bias = None if bias is None else bias.to(self.device)
        return InvariantLinear(weight, bias) if self.stepwise else ReferenceLinear(weight, bias)

    def causal_conv1d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        conv_state: Tensor,
        batch: PackedBatch,
        activation: Literal["silu"] | None = "silu",
    ) -> Tensor:
        if activation not in ("silu", None):
            raise ValueError(f"causal_conv1d: activation is {activation!r}; use 'silu' or None")
        operands, (channels, width) = (
            self._operands("causal_conv1d"),
            sizes("causal_conv1d: weight", weight, 2),
        )
        batch.check_slots(conv_state, "causal_conv1d: conv_state")
        x = operands.rows(x, "x", (batch.num_tokens, channels))
        operands.pool(conv_state, "conv_state", (channels, width - 1))
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        view, tile = self._on_device(batch), 16
        rows = view.row_tiles(tile)
        if len(rows.starts):
            columns = min(128, triton.next_power_of_2(channels))
            launch(
                conv_outputs,
                (len(rows.starts), triton.cdiv(channels, columns)),
                x,
                operands.whole(weight, "weight", (channels, width)),
                operands.whole(bias, "bias", (channels,)),
                conv_state,
                out,
                rows.sequences,
                rows.starts,
                view.cu_seqlens,
                view.slots,
                view.has_state,
                x.stride(0),
                conv_state.stride(0),
                C=channels,
                BC=columns,
                W=width,
                BM=tile,
                HAS_BIAS=bias is not None,
                SILU=activation == "silu",
                num_warps=4,
                enable_fp_fusion=True,
            )
        if batch.num_sequences and width > 1:
            columns = min(256, triton.next_power_of_2(channels))
            launch(
                conv_windows,
                (batch.num_sequences, triton.cdiv(channels, columns)),
                x,
                conv_state,
                view.cu_seqlens,
                view.slots,
                view.has_state,
                view.emit_offsets,
                view.emit_counts,
                view.emit_slots,
                x.stride(0),
                conv_state.stride(0),
                C=channels,
                BC=columns,
                W=width,
                WP=triton.next_power_of_2(width - 1),
                num_warps=4,
                enable_fp_fusion=True,
            )
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
        operands, (channels, d_state) = self._operands("mamba1_scan"), sizes("mamba1_scan: A", A, 2)
        batch.check_slots(ssm_state, "mamba1_scan: ssm_state")
        tokens = batch.num_tokens
        x = operands.rows(x, "x", (tokens, channels))
        dt = operands.rows(dt, "dt", (tokens, channels))
        z = None if z is None else operands.rows(z, "z", (tokens, channels))
        B, C = (operands.rows(t, name, (tokens, d_state)) for t, name in ((B, "B"), (C, "C")))
        operands.pool(ssm_state, "ssm_state", (channels, d_state))
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if not batch.num_sequences:
            return out
        view, tile = self._on_device(batch), min(32, triton.next_power_of_2(channels))
        launch(
            mamba1_token_by_token,
            (batch.num_sequences, triton.cdiv(channels, tile)),
            x,
            dt,
            operands.whole(A, "A", (channels, d_state)),
            B,
            C,
            operands.whole(D, "D", (channels,)),
            z,
            operands.whole(dt_bias, "dt_bias", (channels,)),
            out,
            ssm_state,
            view.cu_seqlens,
            view.slots,
            view.has_state,
            view.emit_offsets,
            view.emit_counts,
            view.emit_slots,
            x.stride(0),
            dt.stride(0),
            B.stride(0),
            C.stride(0),
            0 if z is None else z.stride(0),
            ssm_state.stride(0),
            CHANNELS=channels,
            BC=tile,
            N=d_state,
            NP=triton.next_power_of_2(d_state),
            HAS_D=D is not None,
            HAS_Z=z is not None,
            HAS_BIAS=dt_bias is not None,
            num_warps=1 if d_state <= 64 else 4,
            enable_fp_fusion=True,
        )
        return out

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
        operands, tokens = self._operands("mamba2_scan"), batch.num_tokens
        _, heads, head_dim = sizes("mamba2_scan: x", x, 3)
        _, groups, d_state = sizes("mamba2_scan: B", B, 3)
        operands.multiple(heads, groups, "groups")
        batch.check_slots(ssm_state, "mamba2_scan: ssm_state")
        rate = operands.whole(A, "A", (heads,))
        assert rate is not None
        return mamba2.scan(
            operands.rows(x, "x", (tokens, heads, head_dim)),
            operands.rows(dt, "dt", (tokens, heads)),
            rate,
            operands.rows(B, "B", (tokens, groups, d_state)),
            operands.rows(C, "C", (tokens, groups, d_state)),
            operands.whole(D, "D", (heads,)),
            operands.whole(dt_bias, "dt_bias", (heads,)),
            dt_limit,
            operands.pool(ssm_state, "ssm_state", (heads, head_dim, d_state)),
            self._on_device(batch),
        )

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
        operands, tokens = self._operands("gated_delta_scan"), batch.num_tokens
        _, key_heads, key_dim = sizes("gated_delta_scan: k", k, 3)
        _, heads, value_dim = sizes("gated_delta_scan: v", v, 3)
        operands.multiple(heads, key_heads, "key heads")
        batch.check_slots(ssm_state, "gated_delta_scan: ssm_state")
        return gated_delta.scan(
            operands.rows(q, "q", (tokens, key_heads, key_dim)),
            operands.rows(k, "k", (tokens, key_heads, key_dim)),
            operands.rows(v, "v", (tokens, heads, value_dim)),
            operands.rows(log_decay, "log_decay", (tokens, heads)),
            operands.rows(beta, "beta", (tokens, heads)),
            operands.pool(ssm_state, "ssm_state", (heads, key_dim, value_dim)),
            self._on_device(batch),
            scale,
            l2norm,
        )

    def store_kv(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, batch: PackedBatch) -> None:
        operands, tokens = self._operands("store_kv"), batch.num_tokens
        _, block_size, kv_heads, head_dim = sizes("store_kv: k_cache", k_cache, 4)
        batch.check_blocks(k_cache, "store_kv: k_cache")
        batch.check_blocks(v_cache, "store_kv: v_cache")
        k = operands.rows(k, "k", (tokens, kv_heads, head_dim))
        v = operands.rows(v, "v", (tokens, kv_heads, head_dim))
        for cache, name in ((k_cache, "k_cache"), (v_cache, "v_cache")):
            operands.pool(cache, name, (block_size, kv_heads, head_dim))
        if tokens:
            launch(
                store_kv_rows,
                (tokens,),
                k,
                v,
                k_cache,
                v_cache,
                self._on_device(batch).slot_mapping,
                k.stride(0),
                v.stride(0),
                k_cache.stride(0),
                v_cache.stride(0),
                WIDTH=kv_heads * head_dim,
                WP=triton.next_power_of_2(kv_heads * head_dim),
                BLOCK=block_size,
                num_warps=4,
                enable_fp_fusion=True,
            )

    def paged_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        batch: PackedBatch,
        scale: float,
        window: int | None = None,
        soft_cap: float | None = None,
    ) -> Tensor:
        operands = self._operands("paged_attention")
        _, heads, head_dim = sizes("paged_attention: q", q, 3)
        _, block_size, kv_heads, _ = sizes("paged_attention: k_cache", k_cache, 4)
        operands.multiple(heads, kv_heads, "KV heads")
        if window is not None and window < 1:
            raise ValueError(f"paged_attention: window is {window}; it must be 1 or more keys, or None")
        if soft_cap is not None and not soft_cap > 0:
            raise ValueError(f"paged_attention: soft_cap is {soft_cap}; it must be positive, or None")
        batch.check_blocks(k_cache, "paged_attention: k_cache")
        batch.check_blocks(v_cache, "paged_attention: v_cache")
        block = (block_size, kv_heads, head_dim)
        return attention.attend(
            operands.rows(q, "q", (batch.num_tokens, heads, head_dim)),
            operands.pool(k_cache, "k_cache", block),
            operands.pool(v_cache, "v_cache", block),
            self._on_device(batch),
            scale,
            window,
            soft_cap,
        )

    def _operands(self, op: str) -> DeviceOperands:
        return DeviceOperands(op, self.device)

    def _on_device(self, batch: PackedBatch) -> DeviceBatch:
        """The batch's tensors there; the last ones are kept, since all layers of a pass share them."""
        if self._last is None or self._last.batch is not batch:
            self._last = DeviceBatch(batch, self.device, capability=self.capability, stepwise=self.stepwise)
        return self._last
