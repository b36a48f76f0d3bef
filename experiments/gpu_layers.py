"""Layers of known models, as the GPU check runs them: operands, states, FLOPs and bytes."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from hybridcache.experiments.gpu_bench import BLOCK_SIZE, Bench
from hybridcache.kernels.ops import Ops
from hybridcache.kernels.packed import PackedBatch

ANY_LIMIT = (0.0, float("inf"))


class LayerCall(NamedTuple):
    """One operation on `tokens` rows."""

    name: str
    inputs: tuple[Tensor, ...]
    """[tokens, ...] each."""
    weights: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    """[slots, ...], or K and V [blocks, ...]."""
    run: Callable[[Ops, tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...], PackedBatch], Tensor]
    flops_per_token: float
    state_bytes: int
    """Of one sequence, read and written once a pass; KV is counted apart."""

    def apply(self, ops: Ops, batch: PackedBatch) -> Tensor:
        """On all rows."""
        return self.run(ops, self.inputs, self.weights, self.states, batch)

    @property
    def row_bytes(self) -> int:
        """Of a token's operands, and of a result as wide as the first."""
        return sum(x[0].numel() * x.element_size() for x in (*self.inputs, self.inputs[0]))


def calls(bench: Bench, tokens: int, slots: int) -> Iterator[LayerCall]:
    """The recurrent layers and the convolution."""
    s, wide = bench.sizes, torch.float32
    heads, dim, n = s.mamba2_heads, s.mamba2_dim, s.d_state
    rate, bias = -torch.rand(heads, device=bench.device) * 4, bench.randn(heads, dtype=wide)
    state = torch.zeros(slots, heads, dim, n, device=bench.device)
    yield LayerCall(
        "mamba2",
        (
            bench.randn(tokens, heads, dim),
            bench.randn(tokens, heads),
            *(bench.randn(tokens, s.groups, n) for _ in "BC"),
        ),
        (rate, bias),
        (state,),
        lambda ops, x, w, h, b: ops.mamba2_scan(x[0], x[1], w[0], x[2], x[3], w[1], w[1], ANY_LIMIT, h[0], b),
        6 * heads * dim * n,
        2 * 4 * heads * dim * n,
    )
    rates, vector = -torch.rand(s.channels, 16, device=bench.device) * 4, bench.randn(s.channels, dtype=wide)
    yield LayerCall(
        "mamba1",
        (*(bench.randn(tokens, s.channels) for _ in "xdz"), bench.randn(tokens, 16), bench.randn(tokens, 16)),
        (rates, vector),
        (torch.zeros(slots, s.channels, 16, device=bench.device),),
        lambda ops, x, w, h, b: ops.mamba1_scan(x[0], x[1], w[0], x[3], x[4], w[1], x[2], w[1], h[0], b),
        6 * s.channels * 16,
        2 * 4 * s.channels * 16,
    )
    key_heads, values, width = s.delta_heads // 2, s.delta_heads, s.delta_dim
    yield LayerCall(
        "gated_delta",
        (
            bench.randn(tokens, values, width),
            *(bench.randn(tokens, key_heads, width) for _ in "qk"),
            -torch.rand(tokens, values, device=bench.device),
            torch.rand(tokens, values, device=bench.device),
        ),
        (),
        (torch.zeros(slots, values, width, width, device=bench.device),),
        lambda ops, x, w, h, b: ops.gated_delta_scan(
            x[1], x[2], x[0], x[3], x[4], h[0], b, width**-0.5, True
        ),
        8 * values * width * width,
        2 * 4 * values * width * width,
    )
    conv = heads * dim + 2 * s.groups * n
    yield LayerCall(
        "conv",
        (bench.randn(tokens, conv),),
        (bench.randn(conv, 4), bench.randn(conv)),
        (torch.zeros(slots, conv, 3, device=bench.device, dtype=bench.dtype),),
        lambda ops, x, w, h, b: ops.causal_conv1d(x[0], w[0], w[1], h[0], b),
        8 * conv,
        2 * 3 * conv * bench.dtype.itemsize,
    )


def attention(bench: Bench, tokens: int, keys: int) -> LayerCall:
    """Attention of `tokens` new rows; room for `keys` tokens of K and V in all."""
    s = bench.sizes
    shape = (-(-keys // BLOCK_SIZE) + 1, BLOCK_SIZE, s.kv_heads, s.head_dim)
    return LayerCall(
        "attention",
        (
            bench.randn(tokens, s.heads, s.head_dim),
            *(bench.randn(tokens, s.kv_heads, s.head_dim) for _ in "kv"),
        ),
        (),
        (bench.randn(*shape), bench.randn(*shape)),
        _attend,
        0.0,
        0,
    )


def _attend(
    ops: Ops, x: tuple[Tensor, ...], w: tuple[Tensor, ...], kv: tuple[Tensor, ...], batch: PackedBatch
) -> Tensor:
    ops.store_kv(x[1], x[2], kv[0], kv[1], batch)
    return ops.paged_attention(x[0], kv[0], kv[1], batch, float(x[0].shape[-1]) ** -0.5)
