"""Backend `cpu`: the C++ kernels of csrc/ through ctypes."""

import ctypes
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from hybridcache.kernels.arguments import (
    AttentionArgs,
    ConvArgs,
    GatedDeltaArgs,
    Mamba1Args,
    Mamba2Args,
    StoreArgs,
)
from hybridcache.kernels.build import Library
from hybridcache.kernels.cpu_rows import CpuRowOps
from hybridcache.kernels.linear import LinearMethod, LinearPacker, rows_agree
from hybridcache.kernels.operands import BatchArgs, Operands, as_dtype, declare, out_rows, sizes, threads_for
from hybridcache.kernels.ops import Linear, Numerics
from hybridcache.kernels.packed import PackedBatch


class CpuOps(CpuRowOps):
    """All operations on the CPU, float32 inside, with the number of threads that torch has."""

    name = "cpu"
    numerics: Numerics = "exact"

    def __init__(
        self,
        library: Library,
        linear: LinearMethod = "auto",
        self_test: Callable[[Linear], bool] = rows_agree,
    ) -> None:
        self.library = library
        super().__init__(ctypes.CDLL(str(library.path)))
        for kernel in ("causal_conv1d", "mamba1_scan", "mamba2_scan", "gated_delta_scan", "paged_attention"):
            declare(self._c, kernel, batch=True)
        self._c.hc_store_kv.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        self._c.hc_store_kv.restype = None
        self.packer = LinearPacker(self._c, linear, self_test)
        self._batch: tuple[PackedBatch | None, BatchArgs] = (None, BatchArgs())

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        return self.packer.pack(weight, bias)

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
        operands, (channels, width) = Operands("causal_conv1d"), sizes("causal_conv1d: weight", weight, 2)
        batch.check_slots(conv_state, "causal_conv1d: conv_state")
        out = torch.empty(batch.num_tokens, channels)
        args = ConvArgs(
            operands.rows(x, "x", (batch.num_tokens, channels)),
            out_rows(out),
            operands.whole(weight, "weight", (channels, width)),
            operands.whole(bias, "bias", (channels,)),
            operands.pool(conv_state, "conv_state", (channels, width - 1)),
            channels,
            width,
            activation == "silu",
        )
        self._run("causal_conv1d", args, batch, batch.num_tokens * channels * (width + 8))
        return as_dtype(out, x)

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
        operands, (channels, d_state) = Operands("mamba1_scan"), sizes("mamba1_scan: A", A, 2)
        batch.check_slots(ssm_state, "mamba1_scan: ssm_state")
        rows = batch.num_tokens
        out = torch.empty(rows, channels)
        args = Mamba1Args(
            operands.rows(x, "x", (rows, channels)),
            operands.rows(dt, "dt", (rows, channels)),
            operands.optional_rows(z, "z", (rows, channels)),
            operands.rows(B, "B", (rows, d_state)),
            operands.rows(C, "C", (rows, d_state)),
            out_rows(out),
            operands.whole(A, "A", (channels, d_state)),
            operands.whole(D, "D", (channels,)),
            operands.whole(dt_bias, "dt_bias", (channels,)),
            operands.pool(ssm_state, "ssm_state", (channels, d_state)),
            channels,
            d_state,
        )
        self._run("mamba1_scan", args, batch, rows * channels * d_state * 8)
        return as_dtype(out, x)

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
        operands, rows = Operands("mamba2_scan"), batch.num_tokens
        _, heads, head_dim = sizes("mamba2_scan: x", x, 3)
        _, groups, d_state = sizes("mamba2_scan: B", B, 3)
        if groups == 0 or heads % groups:
            raise ValueError(f"mamba2_scan: {heads} heads are no multiple of {groups} groups")
        batch.check_slots(ssm_state, "mamba2_scan: ssm_state")
        out = torch.empty(rows, heads, head_dim)
        args = Mamba2Args(
            operands.rows(x, "x", (rows, heads, head_dim)),
            operands.rows(dt, "dt", (rows, heads)),
            operands.rows(B, "B", (rows, groups, d_state)),
            operands.rows(C, "C", (rows, groups, d_state)),
            out_rows(out),
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
        self._run("mamba2_scan", args, batch, rows * heads * head_dim * d_state * 2)
        return as_dtype(out, x)

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
        operands, rows = Operands("gated_delta_scan"), batch.num_tokens
        _, key_heads, key_dim = sizes("gated_delta_scan: k", k, 3)
        _, value_heads, value_dim = sizes("gated_delta_scan: v", v, 3)
        if key_heads == 0 or value_heads % key_heads:
            raise ValueError(f"gated_delta_scan: {value_heads} value heads are no multiple of {key_heads}")
        batch.check_slots(ssm_state, "gated_delta_scan: ssm_state")
        out = torch.empty(rows, value_heads, value_dim)
        args = GatedDeltaArgs(
            operands.rows(q, "q", (rows, key_heads, key_dim)),
            operands.rows(k, "k", (rows, key_heads, key_dim)),
            operands.rows(v, "v", (rows, value_heads, value_dim)),
            operands.rows(log_decay, "log_decay", (rows, value_heads)),
            operands.rows(beta, "beta", (rows, value_heads)),
            out_rows(out),
            operands.pool(ssm_state, "ssm_state", (value_heads, key_dim, value_dim)),
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            scale,
            l2norm,
        )
        self._run("gated_delta_scan", args, batch, rows * value_heads * key_dim * value_dim * 4)
        return as_dtype(out, v)

    def store_kv(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, batch: PackedBatch) -> None:
        operands = Operands("store_kv")
        _, block_size, kv_heads, head_dim = sizes("store_kv: k_cache", k_cache, 4)
        batch.check_blocks(k_cache, "store_kv: k_cache")
        batch.check_blocks(v_cache, "store_kv: v_cache")
        args = StoreArgs(
            operands.rows(k, "k", (batch.num_tokens, kv_heads, head_dim)),
            operands.rows(v, "v", (batch.num_tokens, kv_heads, head_dim)),
            operands.pool(k_cache, "k_cache", (block_size, kv_heads, head_dim)),
            operands.pool(v_cache, "v_cache", (block_size, kv_heads, head_dim)),
            kv_heads,
            head_dim,
        )
        self._c.hc_store_kv(ctypes.byref(args), ctypes.byref(self._batch_args(batch)))

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
        operands = Operands("paged_attention")
        _, heads, head_dim = sizes("paged_attention: q", q, 3)
        _, block_size, kv_heads, _ = sizes("paged_attention: k_cache", k_cache, 4)
        if kv_heads == 0 or heads % kv_heads:
            raise ValueError(f"paged_attention: {heads} query heads are no multiple of {kv_heads} KV heads")
        if window is not None and window < 1:
            raise ValueError(f"paged_attention: window is {window}; it must be 1 or more keys, or None")
        if soft_cap is not None and not soft_cap > 0:
            raise ValueError(f"paged_attention: soft_cap is {soft_cap}; it must be positive, or None")
        batch.check_blocks(k_cache, "paged_attention: k_cache")
        batch.check_blocks(v_cache, "paged_attention: v_cache")
        out = torch.empty(batch.num_tokens, heads, head_dim)
        args = AttentionArgs(
            operands.rows(q, "q", (batch.num_tokens, heads, head_dim)),
            out_rows(out),
            operands.pool(k_cache, "k_cache", (block_size, kv_heads, head_dim)),
            operands.pool(v_cache, "v_cache", (block_size, kv_heads, head_dim)),
            heads,
            kv_heads,
            head_dim,
            scale,
            soft_cap or 0.0,
            window or 0,
        )
        self._run("paged_attention", args, batch, batch.num_pairs * heads * head_dim * 2)
        return as_dtype(out, q)

    def _run(self, kernel: str, args: ctypes.Structure, batch: PackedBatch, work: int) -> None:
        run = getattr(self._c, f"hc_{kernel}")
        run(ctypes.byref(args), ctypes.byref(self._batch_args(batch)), threads_for(work))

    def _batch_args(self, batch: PackedBatch) -> BatchArgs:
        """The batch's structure; the last one is kept, since all layers of a pass share it."""
        last, args = self._batch
        if last is not batch:
            args = BatchArgs.of(batch)
            self._batch = (batch, args)
        return args
