"""Backend `cpu`: the C++ kernels of csrc/ through ctypes."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from hybridcache.kernels.arguments import (
    AttentionArgs,
    ConvArgs,
    ExpertsArgs,
    GatedDeltaArgs,
    Mamba1Args,
    Mamba2Args,
    StoreArgs,
)
from hybridcache.kernels.build import Library
from hybridcache.kernels.calls import KernelCalls
from hybridcache.kernels.cpu_rows import FUNCTIONS, CpuRowOps
from hybridcache.kernels.linear import FixedLinear, LinearMethod, LinearPacker, rows_agree
from hybridcache.kernels.operands import Operands, as_dtype, out_rows, sizes, threads_for
from hybridcache.kernels.ops import Activation, Linear, Numerics
from hybridcache.kernels.packed import PackedBatch
from hybridcache.kernels.recording import OtherWork, Recording, Scratch


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
        super().__init__(KernelCalls(library))
        self.packer = LinearPacker(self.calls, linear, self_test)

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        return self.packer.pack(weight, bias)

    def joined_linear(self, weights: Sequence[Tensor], bias: Tensor | None = None) -> Linear:
        return self.packer.pack_joined(weights, bias)

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
        self._slots(conv_state, "causal_conv1d: conv_state", batch)
        out = self.calls.empty(batch.num_tokens, channels)
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
        self.calls.run("causal_conv1d", args, threads_for(batch.num_tokens * channels * (width + 8)), batch)
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
        self._slots(ssm_state, "mamba1_scan: ssm_state", batch)
        rows = batch.num_tokens
        out = self.calls.empty(rows, channels)
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
        self.calls.run("mamba1_scan", args, threads_for(rows * channels * d_state * 8), batch)
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
        self._slots(ssm_state, "mamba2_scan: ssm_state", batch)
        out = self.calls.empty(rows, heads, head_dim)
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
        self.calls.run("mamba2_scan", args, threads_for(rows * heads * head_dim * d_state * 2), batch)
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
        self._slots(ssm_state, "gated_delta_scan: ssm_state", batch)
        out = self.calls.empty(rows, value_heads, value_dim)
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
        self.calls.run(
            "gated_delta_scan", args, threads_for(rows * value_heads * key_dim * value_dim * 4), batch
        )
        return as_dtype(out, v)

    def store_kv(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, batch: PackedBatch) -> None:
        operands = Operands("store_kv")
        _, block_size, kv_heads, head_dim = sizes("store_kv: k_cache", k_cache, 4)
        self._blocks(k_cache, "store_kv: k_cache", batch)
        self._blocks(v_cache, "store_kv: v_cache", batch)
        args = StoreArgs(
            operands.rows(k, "k", (batch.num_tokens, kv_heads, head_dim)),
            operands.rows(v, "v", (batch.num_tokens, kv_heads, head_dim)),
            operands.pool(k_cache, "k_cache", (block_size, kv_heads, head_dim)),
            operands.pool(v_cache, "v_cache", (block_size, kv_heads, head_dim)),
            kv_heads,
            head_dim,
        )
        self.calls.run("store_kv", args, 1, batch)

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
        self._blocks(k_cache, "paged_attention: k_cache", batch)
        self._blocks(v_cache, "paged_attention: v_cache", batch)
        out = self.calls.empty(batch.num_tokens, heads, head_dim)
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
        self.calls.run("paged_attention", args, threads_for(batch.num_pairs * heads * head_dim * 2), batch)
        return as_dtype(out, q)

    def experts(
        self,
        x: Tensor,
        shares: Tensor,
        chosen: Tensor,
        experts: Sequence[tuple[Linear, Linear]],
        act: Activation,
        *,
        gated: bool,
    ) -> Tensor:
        pointers = _pointers(experts)
        if pointers is None:
            return super().experts(x, shares, chosen, experts, act, gated=gated)
        operands, (tokens, top_k), width = (
            Operands("experts"),
            sizes("experts: chosen", chosen, 2),
            x.shape[1],
        )
        if chosen.dtype != torch.int64 or not chosen.is_contiguous():
            raise ValueError(f"experts: chosen is {chosen.dtype}; use contiguous int64")
        out = self.calls.empty(tokens, width)
        args = ExpertsArgs(
            operands.rows(x, "x", (tokens, width)),
            out_rows(out),
            operands.whole(shares, "shares", (tokens, top_k)),
            chosen.data_ptr(),
            ctypes.addressof(pointers),
            tokens,
            top_k,
            len(experts),
            width,
            FUNCTIONS[act],
            gated,
        )
        work = tokens * top_k * width * experts[0][1].in_features
        self.calls.run("experts", args, threads_for(work), keep=pointers)
        return as_dtype(out, x)

    def record(self, run: Callable[[], Tensor], scratch: Scratch) -> tuple[Tensor, Recording | None]:
        with OtherWork() as other, self.calls.recording(scratch) as recorder:
            out = run()
        return out, None if other.names else Recording(recorder, self.calls.library.hc_replay)

    def _slots(self, states: Tensor, name: str, batch: PackedBatch) -> None:
        batch.check_slots(states, name)
        if (recorder := self.calls.recorder) is not None:
            recorder.needs_slots = True
            recorder.slots = min(recorder.slots, len(states))

    def _blocks(self, cache: Tensor, name: str, batch: PackedBatch) -> None:
        batch.check_blocks(cache, name)
        if (recorder := self.calls.recorder) is not None:
            recorder.block_size = batch.block_size
            recorder.blocks = min(recorder.blocks, len(cache))


def _pointers(experts: Sequence[tuple[Linear, Linear]]) -> ctypes.Array[ctypes.c_void_p] | None:
    """The experts' packed weights, if all are our own and of float32."""
    addresses = []
    for linear in (matrix for pair in experts for matrix in pair):
        if not isinstance(linear, FixedLinear) or linear.dtype != torch.float32:
            return None
        addresses.append(linear.address)
    return (ctypes.c_void_p * len(addresses))(*addresses)
