"""The dense feed-forward layer, gated or plain."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hybridcache.hf_config import HfConfig
from hybridcache.kernels.ops import Linear, Ops
from hybridcache.layers import LayerKind, Mlp
from hybridcache.models import activation
from hybridcache.models.forward_pass import ForwardPass
from hybridcache.models.layer import Layer, LayerState, Shapes
from hybridcache.models.options import choice, numbers
from hybridcache.models.weights import Weights


@dataclass(frozen=True, slots=True)
class MlpPlan:
    """Weights `gate_proj`, `up_proj`, `down_proj`; the first two joined as `gate_up_proj` where `joined`."""

    kind: Mlp
    act: str
    bias: bool = False
    joined: bool = False
    gate_factor: float = 1.0
    """Of the gate before its activation."""
    out_factor: float = 1.0

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the input matrices."""
        if not self.kind.gated:
            return ("up_proj",)
        return ("gate_up_proj",) if self.joined else ("gate_proj", "up_proj")

    @property
    def shapes(self) -> Shapes:
        """The matrices and their biases."""
        kind = self.kind
        rows = (2 if kind.gated else 1) * kind.d_ff // len(self.inputs)
        matrices = {
            **dict.fromkeys(self.inputs, (rows, kind.d_model)),
            "down_proj": (kind.d_model, kind.d_ff),
        }
        biases = {f"{name}.bias": (shape[0],) for name, shape in matrices.items() if self.bias}
        return {**{f"{name}.weight": shape for name, shape in matrices.items()}, **biases}

    def build(self, weights: Weights) -> Layer:
        """Packs gate and up as one matrix."""
        return MlpLayer(
            self,
            into=weights.linear(*self.inputs, bias=self.bias),
            out=weights.linear("down_proj", bias=self.bias),
            ops=weights.ops,
        )


@dataclass(frozen=True, slots=True)
class MlpLayer:
    """down(act(gate x) * up x), or down(act(up x))."""

    plan: MlpPlan
    into: Linear
    out: Linear
    ops: Ops

    def __call__(self, x: Tensor, state: LayerState, step: ForwardPass) -> Tensor:
        """x [T, d_model] -> [T, d_model]."""
        plan, y = self.plan, self.into(x)
        if plan.gate_factor != 1:
            gate, up = y.chunk(2, dim=-1)
            y = torch.cat([gate * plan.gate_factor, up], dim=-1)
        gated = plan.kind.gated
        y = self.out(self.ops.activate(y, activation.named(plan.act, gated), gated=gated))
        return y if plan.out_factor == 1 else y * plan.out_factor


def dense(
    config: HfConfig,
    kind: LayerKind,
    *,
    act: str = "hidden_act",
    default: str = "silu",
    bias: str | None = "mlp_bias",
    joined: bool = False,
) -> MlpPlan:
    """A dense layer: activation in field `act`, biases switched on by field `bias`."""
    assert isinstance(kind, Mlp)
    return MlpPlan(
        kind,
        choice(config, act, default, activation.names(kind.gated)),
        bias is not None and config.flag(bias, False),
        joined,
    )


def falcon_dense(config: HfConfig, kind: LayerKind) -> MlpPlan:
    """Falcon-H1's: a factor on the gate and one on the output."""
    gate, out = numbers(config, "mlp_multipliers", (1.0, 1.0))
    return replace(dense(config, kind), gate_factor=gate, out_factor=out)
