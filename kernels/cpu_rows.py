"""Backend `cpu`: the operations on rows, which know no batch."""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from hybridcache.kernels.arguments import (
    AddArgs,
    MapArgs,
    NormArgs,
    RopeArgs,
    RopeTableArgs,
    SoftmaxArgs,
    TopKArgs,
)
from hybridcache.kernels.calls import KernelCalls
from hybridcache.kernels.operands import NO_ROWS, Operands, as_dtype, out_rows, sizes, threads_for
from hybridcache.kernels.ops import Activation, Ops

SILU, SIGMOID, SOFTPLUS, GELU, GELU_TANH, RELU2 = range(6)  # the order of the enum in kernels.h
FUNCTIONS: Mapping[Activation, int] = MappingProxyType(
    {"silu": SILU, "gelu": GELU, "gelu_tanh": GELU_TANH, "relu2": RELU2}
)
"""Numbers of a feed-forward layer's activations."""


class CpuRowOps(Ops):
    """Norms, activations, softmax, largest elements and rotary positions; `CpuOps` adds the rest."""

    device = torch.device("cpu")

    def __init__(self, calls: KernelCalls) -> None:
        self.calls = calls

    def rms_norm(
        self,
        x: Tensor,
        weight: Tensor | None,
        eps: float,
        *,
        gate: Tensor | None = None,
        norm_before_gate: bool = False,
        groups: int = 1,
        add_unit_offset: bool = False,
    ) -> Tensor:
        operands, width = Operands("rms_norm"), x.shape[-1]
        if groups < 1 or width % groups:
            raise ValueError(f"rms_norm: width {width} is no multiple of groups {groups}")
        if gate is not None and gate.shape != x.shape:
            raise ValueError(f"rms_norm: gate has shape {tuple(gate.shape)}; expected {tuple(x.shape)}")
        rows = x.numel() // max(width, 1)
        out = self.calls.empty(*x.shape)
        args = NormArgs(
            operands.rows(_flat(x), "x", (rows, width)),
            NO_ROWS if gate is None else operands.rows(_flat(gate), "gate", (rows, width)),
            (out.data_ptr(), width),
            operands.whole(weight, "weight", (width,)),
            rows,
            width,
            groups,
            not norm_before_gate,
            eps,
            1.0 if add_unit_offset else 0.0,
        )
        self.calls.run("rms_norm", args, threads_for(x.numel() * 4))
        return as_dtype(out, x)

    def silu(self, x: Tensor) -> Tensor:
        return self._map(SILU, x)

    def sigmoid(self, x: Tensor) -> Tensor:
        return self._map(SIGMOID, x)

    def softplus(self, x: Tensor) -> Tensor:
        return self._map(SOFTPLUS, x)

    def gelu(self, x: Tensor) -> Tensor:
        return self._map(GELU, x)

    def gelu_tanh(self, x: Tensor) -> Tensor:
        return self._map(GELU_TANH, x)

    def relu2(self, x: Tensor) -> Tensor:
        return self._map(RELU2, x)

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        return self._map(SILU, gate, up)

    def gelu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        return self._map(GELU, gate, up)

    def gelu_tanh_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        return self._map(GELU_TANH, gate, up)

    def add(self, x: Tensor, y: Tensor, factor: float = 1.0) -> Tensor:
        if y.shape != x.shape:
            raise ValueError(f"add: y has shape {tuple(y.shape)}; expected {tuple(x.shape)}")
        operands, width = Operands("add"), x.shape[-1]
        rows = x.numel() // max(width, 1)
        out = self.calls.empty(*x.shape)
        args = AddArgs(
            operands.rows(_flat(x), "x", (rows, width)),
            operands.rows(_flat(y), "y", (rows, width)),
            (out.data_ptr(), width),
            rows,
            width,
            factor,
        )
        self.calls.run("add", args, threads_for(x.numel()))
        return as_dtype(out, x)

    def softmax(self, x: Tensor) -> Tensor:
        operands, width = Operands("softmax"), x.shape[-1]
        rows = x.numel() // max(width, 1)
        out = self.calls.empty(*x.shape)
        args = SoftmaxArgs(
            operands.rows(_flat(x), "x", (rows, width)),
            (out.data_ptr(), width),
            rows,
            width,
        )
        self.calls.run("softmax", args, threads_for(x.numel() * 16))
        return out

    def top_k(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        operands, (rows, width) = Operands("top_k"), sizes("top_k: x", x, 2)
        if not 1 <= k <= width:
            raise ValueError(f"top_k: k is {k}; it must be 1 to {width}")
        values, indices = self.calls.empty(rows, k), self.calls.empty(rows, k, dtype=torch.int64)
        args = TopKArgs(
            operands.rows(x, "x", (rows, width)), out_rows(values), indices.data_ptr(), rows, width, k
        )
        self.calls.run("top_k", args, threads_for(x.numel() * 4))
        return as_dtype(values, x), indices

    def rope_table(self, positions: Tensor, inv_freq: Tensor, scaling: float = 1.0) -> tuple[Tensor, Tensor]:
        operands, (width,) = Operands("rope_table"), sizes("rope_table: inv_freq", inv_freq, 1)
        (rows,) = sizes("rope_table: positions", positions, 1)
        if positions.dtype != torch.int64:
            raise ValueError(f"rope_table: positions are {positions.dtype}; use int64")
        positions = positions.contiguous()
        cos, sin = self.calls.empty(rows, width), self.calls.empty(rows, width)
        args = RopeTableArgs(
            positions.data_ptr(),
            operands.whole(inv_freq, "inv_freq", (width,)),
            cos.data_ptr(),
            sin.data_ptr(),
            rows,
            width,
            scaling,
        )
        self.calls.run("rope_table", args, threads_for(rows * width * 100))
        return cos, sin

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        operands, (rows, heads, head_dim) = Operands("rope"), sizes("rope: x", x, 3)
        _, pairs = sizes("rope: cos", cos, 2)
        if 2 * pairs > head_dim:
            raise ValueError(f"rope: cos has {pairs} pairs; x has head_dim {head_dim}, room for half as many")
        out = self.calls.empty(*x.shape)
        args = RopeArgs(
            operands.rows(x, "x", (rows, heads, head_dim)),
            out_rows(out),
            operands.whole(cos, "cos", (rows, pairs)),
            operands.whole(sin, "sin", (rows, pairs)),
            rows,
            heads,
            head_dim,
            pairs,
        )
        self.calls.run("rope", args, threads_for(x.numel() * 2))
        return as_dtype(out, x)

    def _map(self, function: int, x: Tensor, factor: Tensor | None = None) -> Tensor:
        operands, width = Operands("elementwise operation"), x.shape[-1]
        if factor is not None and factor.shape != x.shape:
            raise ValueError(f"gate has shape {tuple(x.shape)} and up {tuple(factor.shape)}; they must agree")
        rows = x.numel() // max(width, 1)
        out = self.calls.empty(*x.shape)
        args = MapArgs(
            operands.rows(_flat(x), "x", (rows, width)),
            NO_ROWS if factor is None else operands.rows(_flat(factor), "up", (rows, width)),
            (out.data_ptr(), width),
            rows,
            width,
            function,
        )
        self.calls.run("map", args, threads_for(x.numel() * 16))
        return as_dtype(out, x)


def _flat(x: Tensor) -> Tensor:
    """x as rows of its last dimension."""
    return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
