"""Causal attention over paged K and V."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hybridcache.hf_config import HfConfig
from hybridcache.kernels.ops import Linear, Ops
from hybridcache.layers import Attention, LayerKind
from hybridcache.models.forward_pass import ForwardPass
from hybridcache.models.layer import Layer, LayerState, Shapes
from hybridcache.models.options import number
from hybridcache.models.rope import Rope, hf_rope
from hybridcache.models.weights import Weights


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Weights `q_proj`, `k_proj`, `v_proj` and `o_proj`, with a bias each where `bias` is set."""

    kind: Attention
    rope: Rope | None
    scale: float
    """Factor of a query's dot product with a key."""
    bias: bool = False

    @property
    def shapes(self) -> Shapes:
        """The four matrices and their biases."""
        kind = self.kind
        width = kind.d_model if kind.input_width is None else kind.input_width
        queries, keys = kind.num_heads * kind.head_dim, kind.num_kv_heads * kind.head_dim
        matrices = {
            "q_proj": (queries, width),
            "k_proj": (keys, width),
            "v_proj": (keys, width),
            "o_proj": (kind.d_model, queries),
        }
        biases = {f"{name}.bias": (shape[0],) for name, shape in matrices.items() if self.bias}
        return {**{f"{name}.weight": shape for name, shape in matrices.items()}, **biases}

    def build(self, weights: Weights) -> Layer:
        """Packs Q, K and V as one matrix."""
        return AttentionLayer(
            self,
            qkv=weights.linear("q_proj", "k_proj", "v_proj", bias=self.bias),
            out=weights.linear("o_proj", bias=self.bias),
            ops=weights.ops,
        )


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """Projects, turns Q and K to their positions, stores K and V, attends."""

    plan: AttentionPlan
    qkv: Linear
    out: Linear
    ops: Ops

    def __call__(self, x: Tensor, state: LayerState, step: ForwardPass) -> Tensor:
        """x [T, width] -> [T, d_model]."""
        kind, rope = self.plan.kind, self.plan.rope
        heads = self.qkv(x).view(len(x), kind.num_heads + 2 * kind.num_kv_heads, kind.head_dim)
        q, k, v = torch.split(heads, [kind.num_heads, kind.num_kv_heads, kind.num_kv_heads], dim=1)
        if rope is not None:
            q, k = step.rotate(q, rope), step.rotate(k, rope)
        self.ops.store_kv(k, v, state["key"], state["value"], step.batch)
        y = self.ops.paged_attention(
            q, state["key"], state["value"], step.batch, self.plan.scale, kind.window
        )
        return self.out(y.flatten(1))


def rotary_attention(
    config: HfConfig, kind: LayerKind, *, bias: str | None = "attention_bias", part: float = 1.0
) -> AttentionPlan:
    """Attention with rotary positions. `bias`: the field that switches biases on; `part`: see `hf_rope`."""
    plan = plain_attention(config, kind, bias=bias)
    return AttentionPlan(plan.kind, hf_rope(config, plan.kind.head_dim, part=part), plan.scale, plan.bias)


def plain_attention(
    config: HfConfig, kind: LayerKind, *, bias: str | None = "attention_bias"
) -> AttentionPlan:
    """Attention that knows positions by the causal mask alone."""
    assert isinstance(kind, Attention)
    return AttentionPlan(kind, None, kind.head_dim**-0.5, bias is not None and config.flag(bias, False))


def granite_attention(config: HfConfig, kind: LayerKind) -> AttentionPlan:
    """Attention whose scale is `attention_multiplier`, rotary where `position_embedding_type` says so."""
    if config.has("position_embedding_type"):
        embedding = config.text("position_embedding_type", "rope")
        if embedding not in ("rope", "nope"):
            raise config.error("position_embedding_type", "'rope', 'nope' or null")
        plan = rotary_attention(config, kind) if embedding == "rope" else plain_attention(config, kind)
    else:
        plan = plain_attention(config, kind)
    return AttentionPlan(plan.kind, plan.rope, number(config, "attention_multiplier", 1.0), plan.bias)
