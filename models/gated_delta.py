"""The gated delta rule mixer (Yang, Kautz and Hatamizadeh, 2024, section 3) as Qwen3-Next has it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hybridcache.hf_config import HfConfig
from hybridcache.kernels.ops import Linear, Ops
from hybridcache.layers import GatedDelta, LayerKind
from hybridcache.models.forward_pass import ForwardPass
from hybridcache.models.layer import Layer, LayerState, Shapes
from hybridcache.models.options import choice, number
from hybridcache.models.weights import Weights


@dataclass(frozen=True, slots=True)
class GatedDeltaPlan:
    """Weights: `in_proj_qkvz` and `in_proj_ba`, `conv1d`, `dt_bias`, `A_log`, `norm`, `out_proj`.

    The rows of the two input matrices lie by key head: its q and k, then v and z (and b and a) of the value
    heads that read it.
    """

    kind: GatedDelta
    eps: float
    """Of the norm of each value head."""

    @property
    def value_width(self) -> int:
        """Columns of v and of z."""
        return self.kind.num_v_heads * self.kind.head_v_dim

    @property
    def columns(self) -> tuple[int, ...]:
        """Columns of the joined input matrix: (q, k, v), z, b, a."""
        heads = self.kind.num_v_heads
        return (self.kind.conv_channels, self.value_width, heads, heads)

    @property
    def shapes(self) -> Shapes:
        """All of them."""
        kind = self.kind
        return {
            "in_proj_qkvz.weight": (kind.conv_channels + self.value_width, kind.d_model),
            "in_proj_ba.weight": (2 * kind.num_v_heads, kind.d_model),
            "conv1d.weight": (kind.conv_channels, 1, kind.d_conv),
            "dt_bias": (kind.num_v_heads,),
            "A_log": (kind.num_v_heads,),
            "norm.weight": (kind.head_v_dim,),
            "out_proj.weight": (kind.d_model, self.value_width),
        }

    def row_order(self) -> Tensor:
        """int64: rows of the two input matrices, one below the other, in the order of `columns`."""
        kind = self.kind
        per_key = kind.num_v_heads // kind.num_k_heads
        values = per_key * kind.head_v_dim
        parts = [kind.head_k_dim, kind.head_k_dim, values, values]
        qkvz = torch.arange(kind.conv_channels + self.value_width).view(kind.num_k_heads, sum(parts))
        ba = qkvz.numel() + torch.arange(2 * kind.num_v_heads).view(kind.num_k_heads, 2 * per_key)
        split = (*torch.split(qkvz, parts, dim=1), *torch.split(ba, per_key, dim=1))
        return torch.cat([part.flatten() for part in split])

    def build(self, weights: Weights) -> Layer:
        """Packs the two input matrices as one, its rows sorted by what they are for."""
        return GatedDeltaMixer(
            self,
            in_proj=weights.linear("in_proj_qkvz", "in_proj_ba", rows=self.row_order()),
            conv_weight=weights.tensor("conv1d.weight").squeeze(1).float(),
            dt_bias=weights.tensor("dt_bias", torch.float32),
            A=-torch.exp(weights.tensor("A_log", torch.float32)),
            norm=weights.tensor("norm.weight"),
            out_proj=weights.linear("out_proj"),
            ops=weights.ops,
        )


@dataclass(frozen=True, slots=True)
class GatedDeltaMixer:
    """The mixer of a plan."""

    plan: GatedDeltaPlan
    in_proj: Linear
    conv_weight: Tensor
    """[conv_channels, d_conv]."""
    dt_bias: Tensor
    A: Tensor
    norm: Tensor
    """[head_v_dim]."""
    out_proj: Linear
    ops: Ops

    def __call__(self, x: Tensor, state: LayerState, step: ForwardPass) -> Tensor:
        """x [T, d_model] -> [T, d_model]."""
        kind, ops, batch = self.plan.kind, self.ops, step.batch
        qkv, z, b, a = torch.split(self.in_proj(x), list(self.plan.columns), dim=-1)
        qkv = ops.causal_conv1d(qkv, self.conv_weight, None, state["conv_state"], batch)
        key_width = kind.num_k_heads * kind.head_k_dim
        q, k, v = torch.split(qkv, [key_width, key_width, self.plan.value_width], dim=-1)
        y = ops.gated_delta_scan(
            q.view(len(x), kind.num_k_heads, kind.head_k_dim),
            k.view(len(x), kind.num_k_heads, kind.head_k_dim),
            v.view(len(x), kind.num_v_heads, kind.head_v_dim),
            self.A * ops.softplus(a.float() + self.dt_bias),
            ops.sigmoid(b),
            state["ssm_state"],
            batch,
            kind.head_k_dim**-0.5,
            l2norm=True,
        )
        gate = z.reshape(y.shape)
        y = ops.rms_norm(y, self.norm, self.plan.eps, gate=gate, norm_before_gate=True)
        return self.out_proj(y.flatten(1))


def qwen_gated_delta(config: HfConfig, kind: LayerKind) -> GatedDeltaPlan:
    """Qwen3-Next's."""
    assert isinstance(kind, GatedDelta)
    choice(config, "hidden_act", "silu", ("silu",))
    return GatedDeltaPlan(kind, number(config, "rms_norm_eps", 1e-6))
