"""The Mamba-2 mixer (Dao and Gu, 2024, section 7)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hybridcache.hf_config import HfConfig
from hybridcache.kernels.ops import Linear, Ops
from hybridcache.layers import LayerKind, Mamba2
from hybridcache.models.forward_pass import ForwardPass
from hybridcache.models.layer import Layer, LayerState, Shapes
from hybridcache.models.options import choice, limits, number
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
    proj_bias: bool = False
    norm_before_gate: bool = False

    @property
    def shapes(self) -> Shapes:
        """All of them; vectors are a number for each head but the norm's."""
        kind = self.kind
        columns = kind.d_inner + kind.conv_channels + kind.nheads
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
        if self.proj_bias:
            shapes |= {"in_proj.bias": (columns,), "out_proj.bias": (kind.d_model,)}
        if self.eps is not None:
            shapes["norm.weight"] = (kind.d_inner,)
        return shapes

    def build(self, weights: Weights) -> Layer:
        """The scan's vectors are kept in float32."""
        return Mamba2Mixer(
            self,
            in_proj=weights.linear("in_proj", bias=self.proj_bias),
            conv_weight=weights.tensor("conv1d.weight").squeeze(1),
            conv_bias=weights.tensor("conv1d.bias") if self.conv_bias else None,
            dt_bias=weights.tensor("dt_bias", torch.float32),
            A=-torch.exp(weights.tensor("A_log", torch.float32)),
            D=weights.tensor("D", torch.float32),
            norm=None if self.eps is None else weights.tensor("norm.weight"),
            out_proj=weights.linear("out_proj", bias=self.proj_bias),
            ops=weights.ops,
        )


@dataclass(frozen=True, slots=True)
class Mamba2Mixer:
    """The mixer of a plan."""

    plan: Mamba2Plan
    in_proj: Linear
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
        z, xbc, dt = torch.split(self.in_proj(x), [kind.d_inner, kind.conv_channels, kind.nheads], dim=-1)
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
        proj_bias=config.flag(proj_bias, False),
    )


def nemotron_mamba2(config: HfConfig, kind: LayerKind) -> Mamba2Plan:
    """Nemotron-H's: steps are at least `time_step_min`, as transformers' prefill has it."""
    plan = mamba2_mixer(config, kind, eps="layer_norm_epsilon", activation="mamba_hidden_act")
    return Mamba2Plan(
        plan.kind,
        dt_limit=(number(config, "time_step_min", 0.001), float("inf")),
        eps=plan.eps,
        conv_bias=plan.conv_bias,
        proj_bias=plan.proj_bias,
    )
