"""Backend `triton`: the operations on rows, which know no batch."""

import torch
import triton
from torch import Tensor

from hybridcache.kernels.operands import sizes
from hybridcache.kernels.reference import ReferenceOps
from hybridcache.kernels.triton.device.rows import activate_rows, norm_rows, rotate_heads
from hybridcache.kernels.triton.launch import launch
from hybridcache.kernels.triton.operands import DeviceOperands


class TritonRowOps(ReferenceOps):
    """Norms, activations and rotary positions in one launch each; plain torch on the device for the rest."""

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
        operands, width = DeviceOperands("rms_norm", self.device), x.shape[-1]
        if groups < 1 or width % groups:
            raise ValueError(f"rms_norm: width {width} is no multiple of groups {groups}")
        if gate is not None and gate.shape != x.shape:
            raise ValueError(f"rms_norm: gate has shape {tuple(gate.shape)}; expected {tuple(x.shape)}")
        flat, gates = _flat(x), None if gate is None else _flat(gate)
        operands.rows(flat, "x", (len(flat), width))
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if not out.numel():
            return out
        part = triton.next_power_of_2(width // groups)
        launch(
            norm_rows,
            (len(flat), groups),
            flat,
            gates,
            operands.whole(weight, "weight", (width,)),
            out,
            flat.stride(0),
            0 if gates is None else gates.stride(0),
            eps,
            1.0 if add_unit_offset else 0.0,
            WIDTH=width,
            PART=width // groups,
            PP=part,
            HAS_WEIGHT=weight is not None,
            GATE_BEFORE=gate is not None and not norm_before_gate,
            GATE_AFTER=gate is not None and norm_before_gate,
            num_warps=max(1, min(8, part // 512)),
            enable_fp_fusion=True,
        )
        return out

    def silu(self, x: Tensor) -> Tensor:
        return self._activate("silu", x)

    def sigmoid(self, x: Tensor) -> Tensor:
        return self._activate("sigmoid", x)

    def softplus(self, x: Tensor) -> Tensor:
        return self._activate("softplus", x)

    def relu2(self, x: Tensor) -> Tensor:
        return self._activate("relu2", x)

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        return self._activate("silu", gate, up)

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        operands, (tokens, heads, head_dim) = DeviceOperands("rope", self.device), sizes("rope: x", x, 3)
        _, pairs = sizes("rope: cos", cos, 2)
        if 2 * pairs > head_dim:
            raise ValueError(f"rope: {pairs} pairs in a head of {head_dim}")
        x = operands.rows(x, "x", (tokens, heads, head_dim))
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if tokens:
            launch(
                rotate_heads,
                (tokens, heads),
                x,
                operands.whole(cos, "cos", (tokens, pairs)),
                operands.whole(sin, "sin", (tokens, pairs)),
                out,
                x.stride(0),
                HEADS=heads,
                D=head_dim,
                DP=triton.next_power_of_2(head_dim),
                R=pairs,
                num_warps=1,
                enable_fp_fusion=True,
            )
        return out

    def _activate(self, kind: str, x: Tensor, factor: Tensor | None = None) -> Tensor:
        operands, width = DeviceOperands(kind, self.device), x.shape[-1] if x.dim() else 1
        flat, factors = _flat(x), None if factor is None else _flat(factor)
        if factors is not None and factors.shape != flat.shape:
            raise ValueError(f"{kind}: the factor has shape {tuple(factors.shape)}, not {tuple(flat.shape)}")
        operands.rows(flat, "x", (len(flat), width))
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if out.numel():
            columns = min(1_024, triton.next_power_of_2(width))
            launch(
                activate_rows,
                (len(flat), triton.cdiv(width, columns)),
                flat,
                factors,
                out,
                flat.stride(0),
                0 if factors is None else factors.stride(0),
                WIDTH=width,
                BW=columns,
                KIND=kind,
                HAS_FACTOR=factors is not None,
                num_warps=max(1, min(4, columns // 256)),
                enable_fp_fusion=True,
            )
        return out


def _flat(x: Tensor) -> Tensor:
    """x as rows [any, last dimension], each contiguous; a copy where they have no common stride."""
    # A reshape would give a single row another stride, and Triton another kernel to compile.
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1] if x.dim() else 1)
    return rows if rows.stride(1) == 1 or rows.shape[1] == 1 else rows.contiguous()
