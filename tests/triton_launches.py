"""Launches of every Triton kernel with the dimensions of known models, for `triton_aot.py`."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from hybridcache.kernels.packed import PackedBatch
from hybridcache.kernels.triton.ops import TritonOps

CPU = torch.device("cpu")
BLOCKS = 57


def batch(*spans: tuple[int, int]) -> PackedBatch:
    """Sequences of (tokens before, new tokens), all in the same blocks: nothing is run."""
    before, lengths = zip(*spans, strict=True)
    tables = [list(range(-(-(known + new) // 16))) for known, new in spans]
    slots = list(range(len(spans)))
    return PackedBatch.build(lengths, slots=slots, num_computed=before, block_tables=tables)


def zeros(packed: PackedBatch, dtype: torch.dtype, *shape: int) -> Tensor:
    """[tokens, *shape]."""
    return torch.zeros(packed.num_tokens, *shape, dtype=dtype)


def attention(
    ops: TritonOps, packed: PackedBatch, dtype: torch.dtype, heads: int, kv_heads: int, dim: int
) -> None:
    q, k = zeros(packed, dtype, heads, dim), zeros(packed, dtype, kv_heads, dim)
    cache = torch.zeros(BLOCKS, 16, kv_heads, dim, dtype=dtype)
    ops.store_kv(k, k, cache, cache, packed)
    ops.paged_attention(q, cache, cache, packed, dim**-0.5)


def windowed(ops: TritonOps, packed: PackedBatch, dtype: torch.dtype) -> None:
    q, cache = zeros(packed, dtype, 32, 128), torch.zeros(BLOCKS, 16, 8, 128, dtype=dtype)
    ops.paged_attention(q, cache, cache, packed, 128**-0.5, 4_096, 30.0)


def mamba2(
    ops: TritonOps, packed: PackedBatch, dtype: torch.dtype, heads: int, dim: int, d_state: int, groups: int
) -> None:
    x, dt = zeros(packed, dtype, heads, dim), zeros(packed, dtype, heads)
    keys, vector = zeros(packed, dtype, groups, d_state), torch.zeros(heads)
    state = torch.zeros(len(packed.sequences), heads, dim, d_state)
    ops.mamba2_scan(x, dt, vector, keys, keys, vector, vector, (0.0, 1.0), state, packed)


def gated_delta(
    ops: TritonOps, packed: PackedBatch, dtype: torch.dtype, key_heads: int, heads: int, dim: int
) -> None:
    q, v = zeros(packed, dtype, key_heads, dim), zeros(packed, dtype, heads, dim)
    gate, state = zeros(packed, torch.float32, heads), torch.zeros(len(packed.sequences), heads, dim, dim)
    ops.gated_delta_scan(q, q, v, gate, gate.to(dtype), state, packed, dim**-0.5, True)


def conv(ops: TritonOps, packed: PackedBatch, dtype: torch.dtype, channels: int) -> None:
    x, weight = zeros(packed, dtype, channels), torch.zeros(channels, 4, dtype=dtype)
    state = torch.zeros(len(packed.sequences), channels, 3, dtype=dtype)
    ops.causal_conv1d(x, weight, weight[:, 0], state, packed)


def mamba1(ops: TritonOps, packed: PackedBatch, dtype: torch.dtype, channels: int, d_state: int) -> None:
    x, keys = zeros(packed, dtype, channels), zeros(packed, dtype, d_state)
    A, vector = torch.zeros(channels, d_state), torch.zeros(channels)
    state = torch.zeros(len(packed.sequences), channels, d_state)
    ops.mamba1_scan(x, x, A, keys, keys, vector, x, vector, state, packed)


def rows(ops: TritonOps, packed: PackedBatch, dtype: torch.dtype) -> None:
    x, angle = zeros(packed, dtype, 4_096), zeros(packed, torch.float32, 64)
    ops.rms_norm(x, x[0], 1e-5)
    ops.rms_norm(x, x[0], 1e-5, gate=x, groups=8)
    ops.silu_mul(x, x)
    ops.relu2(x)
    ops.rope(x.view(-1, 32, 128), angle, angle)


def linear(ops: TritonOps, packed: PackedBatch, dtype: torch.dtype) -> None:
    weight: Tensor = torch.zeros(512, 256, dtype=dtype)
    TritonOps(CPU, "invariant").linear(weight)(zeros(packed, dtype, 256))


Launches = Mapping[str, Callable[[TritonOps, PackedBatch, torch.dtype], None]]
KNOWN: Launches = MappingProxyType(
    {
        "attention, Nemotron-H 8B and Jamba 1.5 mini": partial(attention, heads=32, kv_heads=8, dim=128),
        "Mamba-2, Nemotron-H 8B": partial(mamba2, heads=128, dim=64, d_state=128, groups=8),
        "gated delta, Qwen3-Next 80B": partial(gated_delta, key_heads=16, heads=32, dim=128),
        "convolution, Nemotron-H 8B": partial(conv, channels=10_240),
        "Mamba-1, Jamba 1.5 mini": partial(mamba1, channels=8_192, d_state=16),
        "rows": rows,
        "linear": linear,
    }
)
OTHERS: Launches = MappingProxyType(
    {
        "attention with a window and a cap": windowed,
        "attention, heads of 64": partial(attention, heads=12, kv_heads=4, dim=64),
        "attention, heads of 80": partial(attention, heads=32, kv_heads=32, dim=80),
        "attention, Qwen3-Next 80B": partial(attention, heads=16, kv_heads=2, dim=256),
        "Mamba-2, Falcon-H1 34B": partial(mamba2, heads=32, dim=128, d_state=256, groups=2),
        "Mamba-2, Zamba2 7B": partial(mamba2, heads=112, dim=64, d_state=64, groups=2),
    }
)
LENGTHS = batch((0, 200), (700, 1))
"""A prefill and a decoding sequence."""


def launch_known(capability: int) -> None:
    """The launches of the quick test, in bfloat16."""
    _launch(KNOWN, LENGTHS, torch.bfloat16, capability)


def launch_all(capability: int) -> None:
    """All of them, in both 16-bit dtypes."""
    for dtype in (torch.bfloat16, torch.float16):
        for launches in (KNOWN, OTHERS):
            _launch(launches, LENGTHS, dtype, capability)


def launch_float32(capability: int) -> None:
    """All of them in float32."""
    for launches in (KNOWN, OTHERS):
        _launch(launches, LENGTHS, torch.float32, capability)


def launch_lengths(packed: PackedBatch) -> None:
    """All of them in bfloat16, with the lengths of a batch."""
    for launches in (KNOWN, OTHERS):
        _launch(launches, packed, torch.bfloat16, 90)


def _launch(launches: Launches, packed: PackedBatch, dtype: torch.dtype, capability: int) -> None:
    ops = TritonOps(CPU)
    ops.capability = capability
    for launch in launches.values():
        launch(ops, packed, dtype)
