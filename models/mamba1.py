"""The Mamba-1 mixer (Gu and Dao, 2023, section 3), with the norms on step, B and C that later models add."""

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from hybridcache.hf_config import HfConfig
from hybridcache.kernels.ops import Linear, Ops
from hybridcache.layers import LayerKind, Mamba1
from hybridcache.models.forward_pass import ForwardPass
from hybridcache.models.layer import Layer, LayerState, Shapes
from hybridcache.models.options import choice, number
from hybridcache.models.weights import Weights

_NORMS = ("dt_layernorm", "b_layernorm", "c_layernorm")


class InnerNorm(Enum):
    """What happens to the step's low-rank form, B and C before the scan."""

    NONE = "none"
    PLAIN = "plain"
    """Root mean square norms without weights (Falcon-Mamba)."""
    WEIGHTED = "weighted"
    """Root mean square norms (Jamba)."""


@dataclass(frozen=True, slots=True)
class Mamba1Plan:
    """Weights: `in_proj` (x, z), `conv1d`, `x_proj` (dt, B, C), `dt_proj`, `A_log`, `D`, `out_proj`.

    With weighted inner norms also `dt_layernorm`, `b_layernorm` and `c_layernorm`.
    """

    kind: Mamba1
    inner_norm: InnerNorm = InnerNorm.NONE
    eps: float = 1e-6
    """Of the inner norms."""
    conv_bias: bool = True
    proj_bias: bool = False

    @property
    def shapes(self) -> Shapes:
        """All of them."""
        kind = self.kind
        shapes: dict[str, tuple[int, ...]] = {
            "in_proj.weight": (2 * kind.d_inner, kind.d_model),
            "conv1d.weight": (kind.d_inner, 1, kind.d_conv),
            "x_proj.weight": (sum(self.selection), kind.d_inner),
            "dt_proj.weight": (kind.d_inner, kind.dt_rank),
            "dt_proj.bias": (kind.d_inner,),
            "A_log": (kind.d_inner, kind.d_state),
            "D": (kind.d_inner,),
            "out_proj.weight": (kind.d_model, kind.d_inner),
        }
        if self.conv_bias:
            shapes["conv1d.bias"] = (kind.d_inner,)
        if self.proj_bias:
            shapes |= {"in_proj.bias": (2 * kind.d_inner,), "out_proj.bias": (kind.d_model,)}
        if self.inner_norm is InnerNorm.WEIGHTED:
            widths = zip(_NORMS, self.selection, strict=True)
            shapes |= {f"{name}.weight": (width,) for name, width in widths}
        return shapes

    @property
    def selection(self) -> tuple[int, int, int]:
        """Columns of the step's low-rank form, of B and of C."""
        return (self.kind.dt_rank, self.kind.d_state, self.kind.d_state)

    def build(self, weights: Weights) -> Layer:
        """The scan's vectors and the convolution are kept in float32, which kernels take them in."""
        weighted = self.inner_norm is InnerNorm.WEIGHTED
        return Mamba1Mixer(
            self,
            in_proj=weights.linear("in_proj", bias=self.proj_bias),
            conv_weight=weights.tensor("conv1d.weight").squeeze(1).float(),
            conv_bias=weights.tensor("conv1d.bias").float() if self.conv_bias else None,
            x_proj=weights.linear("x_proj"),
            dt_proj=weights.linear("dt_proj"),
            dt_bias=weights.tensor("dt_proj.bias", torch.float32),
            A=-torch.exp(weights.tensor("A_log", torch.float32)),
            D=weights.tensor("D", torch.float32),
            norms=tuple(weights.tensor(f"{name}.weight") if weighted else None for name in _NORMS),
            out_proj=weights.linear("out_proj", bias=self.proj_bias),
            ops=weights.ops,
        )


@dataclass(frozen=True, slots=True)
class Mamba1Mixer:
    """The mixer of a plan."""

    plan: Mamba1Plan
    in_proj: Linear
    conv_weight: Tensor
    """[d_inner, d_conv]."""
    conv_bias: Tensor | None
    x_proj: Linear
    dt_proj: Linear
    dt_bias: Tensor
    A: Tensor
    """[d_inner, d_state]."""
    D: Tensor
    norms: tuple[Tensor | None, ...]
    """Weights of the inner norms of step, B and C."""
    out_proj: Linear
    ops: Ops

    def __call__(self, x: Tensor, state: LayerState, step: ForwardPass) -> Tensor:
        """x [T, d_model] -> [T, d_model]."""
        ops, batch = self.ops, step.batch
        inner, z = self.in_proj(x).chunk(2, dim=-1)
        inner = ops.causal_conv1d(inner, self.conv_weight, self.conv_bias, state["conv_state"], batch)
        low, B, C = torch.split(self.x_proj(inner), list(self.plan.selection), dim=-1)
        if self.plan.inner_norm is not InnerNorm.NONE:
            low, B, C = (
                ops.rms_norm(part, weight, self.plan.eps)
                for part, weight in zip((low, B, C), self.norms, strict=True)
            )
        y = ops.mamba1_scan(
            inner, self.dt_proj(low), self.A, B, C, self.D, z, self.dt_bias, state["ssm_state"], batch
        )
        return self.out_proj(y)


def jamba_mamba1(config: HfConfig, kind: LayerKind) -> Mamba1Plan:
    """Jamba's: weighted inner norms."""
    assert isinstance(kind, Mamba1)
    choice(config, "hidden_act", "silu", ("silu",))
    return Mamba1Plan(
        kind,
        InnerNorm.WEIGHTED,
        eps=number(config, "rms_norm_eps", 1e-6),
        conv_bias=config.flag("mamba_conv_bias", True),
        proj_bias=config.flag("mamba_proj_bias", False),
    )


def mamba1_mixer(config: HfConfig, kind: LayerKind, *, inner_norm: InnerNorm) -> Mamba1Plan:
    """Mamba's and Falcon-Mamba's."""
    assert isinstance(kind, Mamba1)
    choice(config, "hidden_act", "silu", ("silu",))
    return Mamba1Plan(
        kind,
        inner_norm,
        eps=number(config, "mixer_rms_eps", 1e-6),
        conv_bias=config.flag("use_conv_bias", True),
        proj_bias=config.flag("use_bias", False),
    )
