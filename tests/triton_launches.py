"""Launches of every Triton kernel with the dimensions of known models, for `triton_aot.py`."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from hybridcache.kernels.packed import PackedBatch
from hybridcache.kernels.triton.ops import TritonOps

CPU = torch.device("cpu")
LENGTHS, BEFORE = (200, 1), (0, 700)
TOKENS = sum(LENGTHS)


def batch() -> PackedBatch:
    """A prefill and a decoding sequence."""
    tables = [list(range(13)), list(range(13, 57))]
    return PackedBatch.build(LENGTHS, slots=[0, 1], num_computed=BEFORE, block_tables=tables)


def attention(ops: TritonOps, dtype: torch.dtype, heads: int, kv_heads: int, dim: int) -> None:
    q, k = torch.zeros(TOKENS, heads, dim, dtype=dtype), torch.zeros(TOKENS, kv_heads, dim, dtype=dtype)
    packed, cache = batch(), torch.zeros(57, 16, kv_heads, dim, dtype=dtype)
    ops.store_kv(k, k, cache, cache, packed)
    ops.paged_attention(q, cache, cache, packed, dim**-0.5)


def windowed(ops: TritonOps, dtype: torch.dtype) -> None:
    q, cache = torch.zeros(TOKENS, 32, 128, dtype=dtype), torch.zeros(57, 16, 8, 128, dtype=dtype)
    ops.paged_attention(q, cache, cache, batch(), 128**-0.5, 4_096, 30.0)


def mamba2(ops: TritonOps, dtype: torch.dtype, heads: int, dim: int, d_state: int, groups: int) -> None:
    x, keys = torch.zeros(TOKENS, heads, dim, dtype=dtype), torch.zeros(TOKENS, groups, d_state, dtype=dtype)
    vector, state = torch.zeros(heads), torch.zeros(2, heads, dim, d_state)
    ops.mamba2_scan(
        x, x[:, :, 0].contiguous(), vector, keys, keys, vector, vector, (0.0, 1.0), state, batch()
    )


def gated_delta(ops: TritonOps, dtype: torch.dtype, key_heads: int, heads: int, dim: int) -> None:
    q, v = torch.zeros(TOKENS, key_heads, dim, dtype=dtype), torch.zeros(TOKENS, heads, dim, dtype=dtype)
    gate, state = torch.zeros(TOKENS, heads), torch.zeros(2, heads, dim, dim)
    ops.gated_delta_scan(q, q, v, gate, gate.to(dtype), state, batch(), dim**-0.5, True)


def conv(ops: TritonOps, dtype: torch.dtype, channels: int) -> None:
    x, weight = torch.zeros(TOKENS, channels, dtype=dtype), torch.zeros(channels, 4, dtype=dtype)
    ops.causal_conv1d(x, weight, weight[:, 0], torch.zeros(2, channels, 3, dtype=dtype), batch())


def mamba1(ops: TritonOps, dtype: torch.dtype, channels: int, d_state: int) -> None:
    x, keys = torch.zeros(TOKENS, channels, dtype=dtype), torch.zeros(TOKENS, d_state, dtype=dtype)
    A, vector = torch.zeros(channels, d_state), torch.zeros(channels)
    ops.mamba1_scan(x, x, A, keys, keys, vector, x, vector, torch.zeros(2, channels, d_state), batch())


def rows(ops: TritonOps, dtype: torch.dtype) -> None:
    x = torch.zeros(TOKENS, 4_096, dtype=dtype)
    ops.rms_norm(x, x[0], 1e-5)
    ops.rms_norm(x, x[0], 1e-5, gate=x, groups=8)
    ops.silu_mul(x, x)
    ops.relu2(x)
    angle = torch.zeros(TOKENS, 64)
    ops.rope(x.view(TOKENS, 32, 128), angle, angle)


def linear(ops: TritonOps, dtype: torch.dtype) -> None:
    weight: Tensor = torch.zeros(512, 256, dtype=dtype)
    TritonOps(CPU, "invariant").linear(weight)(torch.zeros(TOKENS, 256, dtype=dtype))


Launches = Mapping[str, Callable[[TritonOps, torch.dtype], None]]
KNOWN: Launches = MappingProxyType(
    {
        "attention, Nemotron-H 8B and Jamba 1.5 mini": lambda ops, dtype: attention(ops, dtype, 32, 8, 128),
        "Mamba-2, Nemotron-H 8B": lambda ops, dtype: mamba2(ops, dtype, 128, 64, 128, 8),
        "gated delta, Qwen3-Next 80B": lambda ops, dtype: gated_delta(ops, dtype, 16, 32, 128),
        "convolution, Nemotron-H 8B": lambda ops, dtype: conv(ops, dtype, 10_240),
        "Mamba-1, Jamba 1.5 mini": lambda ops, dtype: mamba1(ops, dtype, 8_192, 16),
        "rows": rows,
        "linear": linear,
    }
)
OTHERS: Launches = MappingProxyType(
    {
        "attention with a window and a cap": windowed,
        "attention, heads of 64": lambda ops, dtype: attention(ops, dtype, 12, 4, 64),
        "attention, heads of 80": lambda ops, dtype: attention(ops, dtype, 32, 32, 80),
        "attention, Qwen3-Next 80B": lambda ops, dtype: attention(ops, dtype, 16, 2, 256),
        "Mamba-2, Falcon-H1 34B": lambda ops, dtype: mamba2(ops, dtype, 32, 128, 256, 2),
        "Mamba-2, Zamba2 7B": lambda ops, dtype: mamba2(ops, dtype, 112, 64, 64, 2),
    }
)


def launch_known(capability: int) -> None:
    """The launches of the quick test, in bfloat16."""
    _launch(KNOWN, torch.bfloat16, capability)


def launch_all(capability: int) -> None:
    """All of them, in both 16-bit dtypes."""
    for dtype in (torch.bfloat16, torch.float16):
        for launches in (KNOWN, OTHERS):
            _launch(launches, dtype, capability)


def _launch(launches: Launches, dtype: torch.dtype, capability: int) -> None:
    ops = TritonOps(CPU)
    ops.capability = capability
    for launch in launches.values():
        launch(ops, dtype)
