"""The Mamba-2 mixer (Dao and Gu, 2024, section 7)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hybridcache.hf_config import HfConfig
from hybridcache.kernels.ops import Linear, Ops
from hybridcache.layers import LayerKind, Mamba2
from hybridcache.models.forward_pass import ForwardPass
from hybridcache.models.layer import Layer, LayerState, Shapes
from hybridcache.models.options import choice, limits, number, numbers
from hybridcache.models.weights import Weights


@dataclass(frozen=True, slots=True)
class Mamba2Plan:
    """An input matrix (z, x, B, C, dt), a convolution over x, B and C, scan, gated norm, output matrix.

    Weights: `in_proj`, `conv1d`, `dt_bias`, `A_log`, `D`, `norm` (where `eps` is set) and `out_proj`.
    """

    kind: Mamba2
    dt_limit: tuple[float, float]
    """Bounds of the step."""
    eps: float | None
    """Of the gated norm over each group; None: no norm, the gate alone."""
    conv_bias: bool = True
    in_bias: bool = False
    out_bias: bool = False
    norm_before_gate: bool = False
    factors: tuple[float, ...] = ()
    """Of z, x, B, C and dt as they leave the input matrix; none: 1 each."""

    @property
    def shapes(self) -> Shapes:
        """All of them; vectors are a number for each head but the norm's."""
        kind = self.kind
        columns = sum(self.columns)
        shapes: dict[str, tuple[int, ...]] = {
            "in_proj.weight": (columns, kind.d_model),
            "conv1d.weight": (kind.conv_channels, 1, kind.d_conv),
            "dt_bias": (kind.nheads,),
            "A_log": (kind.nheads,),
            "D": (kind.nheads,),
            "out_proj.weight": (kind.d_model, kind.d_inner),
        }
        if self.conv_bias:
            shapes["conv1d.bias"] = (kind.conv_channels,)
        if self.in_bias:
            shapes["in_proj.bias"] = (columns,)
        if self.out_bias:
            shapes["out_proj.bias"] = (kind.d_model,)
        if self.eps is not None:
            shapes["norm.weight"] = (kind.d_inner,)
        return shapes

    @property
    def columns(self) -> tuple[int, ...]:
        """Columns of the input matrix: z, x, B, C, dt."""
        kind = self.kind
        group_width = kind.ngroups * kind.d_state
        return (kind.d_inner, kind.d_inner, group_width, group_width, kind.nheads)

    def build(self, weights: Weights) -> Layer:
        """The scan's vectors and the convolution are kept in float32, which kernels take them in."""
        return Mamba2Mixer(
            self,
            in_proj=weights.linear("in_proj", bias=self.in_bias),
            factors=_spread(self.factors, self.columns, weights),
            conv_weight=weights.tensor("conv1d.weight").squeeze(1).float(),
            conv_bias=weights.tensor("conv1d.bias").float() if self.conv_bias else None,
            dt_bias=weights.tensor("dt_bias", torch.float32),
            A=-torch.exp(weights.tensor("A_log", torch.float32)),
            D=weights.tensor("D", torch.float32),
            norm=None if self.eps is None else weights.tensor("norm.weight"),
            out_proj=weights.linear("out_proj", bias=self.out_bias),
            ops=weights.ops,
        )


@dataclass(frozen=True, slots=True)
class Mamba2Mixer:
    """The mixer of a plan."""

    plan: Mamba2Plan
    in_proj: Linear
    factors: Tensor | None
    """[columns of in_proj]."""
    conv_weight: Tensor
    """[conv_channels, d_conv]."""
    conv_bias: Tensor | None
    dt_bias: Tensor
    A: Tensor
    D: Tensor
    norm: Tensor | None
    """[d_inner]."""
    out_proj: Linear
    ops: Ops

    def __call__(self, x: Tensor, state: LayerState, step: ForwardPass) -> Tensor:
        """x [T, d_model] -> [T, d_model]."""
        kind, ops, batch = self.plan.kind, self.ops, step.batch
        projected = self.in_proj(x) if self.factors is None else self.in_proj(x) * self.factors
        z, xbc, dt = torch.split(projected, [kind.d_inner, kind.conv_channels, kind.nheads], dim=-1)
        xbc = ops.causal_conv1d(xbc, self.conv_weight, self.conv_bias, state["conv_state"], batch)
        group_width = kind.ngroups * kind.d_state
        inner, B, C = torch.split(xbc, [kind.d_inner, group_width, group_width], dim=-1)
        y = ops.mamba2_scan(
            inner.view(len(x), kind.nheads, kind.headdim),
            dt,
            self.A,
            B.view(len(x), kind.ngroups, kind.d_state),
            C.view(len(x), kind.ngroups, kind.d_state),
            self.D,
            self.dt_bias,
            self.plan.dt_limit,
            state["ssm_state"],
            batch,
        ).flatten(1)
        if self.plan.eps is None:
            y = ops.silu_mul(z, y)
        else:
            y = ops.rms_norm(
                y,
                self.norm,
                self.plan.eps,
                gate=z,
                norm_before_gate=self.plan.norm_before_gate,
                groups=kind.ngroups,
            )
        return self.out_proj(y)


def mamba2_mixer(
    config: HfConfig,
    kind: LayerKind,
    *,
    eps: str,
    activation: str = "hidden_act",
    conv_bias: str = "use_conv_bias",
    proj_bias: str = "use_bias",
) -> Mamba2Plan:
    """Mamba-2 whose options are in the named fields; the bounds of the step in `time_step_limit`."""
    assert isinstance(kind, Mamba2)
    choice(config, activation, "silu", ("silu",))
    return Mamba2Plan(
        kind,
        dt_limit=limits(config, "time_step_limit"),
        eps=number(config, eps, 1e-5),
        conv_bias=config.flag(conv_bias, True),
        in_bias=config.flag(proj_bias, False),
        out_bias=config.flag(proj_bias, False),
    )


def nemotron_mamba2(config: HfConfig, kind: LayerKind) -> Mamba2Plan:
    """Nemotron-H's: steps are at least `time_step_min`, as transformers' prefill has it."""
    plan = mamba2_mixer(config, kind, eps="layer_norm_epsilon", activation="mamba_hidden_act")
    return replace(plan, dt_limit=_at_least_min(config))


def zamba_mamba2(config: HfConfig, kind: LayerKind) -> Mamba2Plan:
    """Zamba2's: steps bounded likewise, and an epsilon that no field changes."""
    assert isinstance(kind, Mamba2)
    bias = config.flag("add_bias_linear", False)
    return Mamba2Plan(kind, _at_least_min(config), eps=1e-5, in_bias=bias, out_bias=bias)


def falcon_mamba2(config: HfConfig, kind: LayerKind) -> Mamba2Plan:
    """Falcon-H1's: an optional norm on either side of the gate, factors on the input matrix's outputs."""
    plan = mamba2_mixer(
        config, kind, eps="rms_norm_eps", conv_bias="mamba_conv_bias", proj_bias="mamba_proj_bias"
    )
    return replace(
        plan,
        eps=plan.eps if config.flag("mamba_rms_norm", False) else None,
        norm_before_gate=config.flag("mamba_norm_before_gate", True),
        out_bias=config.flag("projectors_bias", False),
        factors=numbers(config, "ssm_multipliers", (1.0,) * 5),
    )


def _at_least_min(config: HfConfig) -> tuple[float, float]:
    return (number(config, "time_step_min", 0.001), float("inf"))


def _spread(factors: tuple[float, ...], columns: tuple[int, ...], weights: Weights) -> Tensor | None:
    """Each factor over its columns, [sum of columns]; None when all are 1."""
    if all(factor == 1 for factor in factors):
        return None
    parts = [torch.full((n,), f, dtype=weights.dtype) for f, n in zip(factors, columns, strict=True)]
    return torch.cat(parts).to(weights.ops.device)
