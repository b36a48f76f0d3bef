"""Causal attention over paged K and V."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hybridcache.hf_config import HfConfig
from hybridcache.kernels.ops import Linear, Ops
from hybridcache.layers import Attention, LayerKind
from hybridcache.models.forward_pass import ForwardPass
from hybridcache.models.layer import Layer, LayerState, Shapes
from hybridcache.models.norm import RmsNorm
from hybridcache.models.options import number
from hybridcache.models.rope import Rope, hf_rope
from hybridcache.models.weights import Weights


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Weights `q_proj`, `k_proj`, `v_proj` and `o_proj`, with a bias each where `bias` is set.

    Of a gated kind `q_proj` has the rows of a head's query, then those of its gate, head by head. With
    `head_eps` also `q_norm` and `k_norm` [head_dim].
    """

    kind: Attention
    rope: Rope | None
    scale: float
    """Factor of a query's dot product with a key."""
    bias: bool = False
    head_eps: float | None = None
    """Of the norms (times 1 + weight) of each query's and each key's head; None: no such norms."""

    @property
    def shapes(self) -> Shapes:
        """The four matrices and their biases."""
        kind = self.kind
        width = kind.d_model if kind.input_width is None else kind.input_width
        queries, keys = kind.num_heads * kind.head_dim, kind.num_kv_heads * kind.head_dim
        matrices = {
            "q_proj": (queries * (2 if kind.gated else 1), width),
            "k_proj": (keys, width),
            "v_proj": (keys, width),
            "o_proj": (kind.d_model, queries),
        }
        shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in matrices.items()}
        if self.bias:
            shapes |= {f"{name}.bias": (shape[0],) for name, shape in matrices.items()}
        if self.head_eps is not None:
            shapes |= {"q_norm.weight": (kind.head_dim,), "k_norm.weight": (kind.head_dim,)}
        return shapes

    def build(self, weights: Weights) -> Layer:
        """Packs Q, K, V and the gate as one matrix, in this order."""
        norms: list[RmsNorm | None] = [None, None]
        if self.head_eps is not None:
            scales = (weights.tensor(f"{name}.weight") for name in ("q_norm", "k_norm"))
            norms = [RmsNorm(scale, self.head_eps, weights.ops, unit_offset=True) for scale in scales]
        return AttentionLayer(
            self,
            qkv=weights.linear("q_proj", "k_proj", "v_proj", bias=self.bias, rows=self._row_order()),
            out=weights.linear("o_proj", bias=self.bias),
            ops=weights.ops,
            q_norm=norms[0],
            k_norm=norms[1],
        )

    def _row_order(self) -> Tensor | None:
        """int64: rows of Q, K and V one below the other, so that all gates come last; None: as they are."""
        kind = self.kind
        if not kind.gated:
            return None
        queries = kind.num_heads * kind.head_dim
        pairs = torch.arange(2 * queries).view(kind.num_heads, 2, kind.head_dim)
        rest = torch.arange(2 * queries, 2 * queries + 2 * kind.num_kv_heads * kind.head_dim)
        return torch.cat([pairs[:, 0].flatten(), rest, pairs[:, 1].flatten()])


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """Projects, turns Q and K to their positions, stores K and V, attends."""

    plan: AttentionPlan
    qkv: Linear
    """To queries, keys, values and, of a gated kind, gates."""
    out: Linear
    ops: Ops
    q_norm: RmsNorm | None = None
    k_norm: RmsNorm | None = None

    def __call__(self, x: Tensor, state: LayerState, step: ForwardPass) -> Tensor:
        """x [T, width] -> [T, d_model]."""
        kind, rope = self.plan.kind, self.plan.rope
        num_gates = kind.num_heads if kind.gated else 0
        parts = [kind.num_heads, kind.num_kv_heads, kind.num_kv_heads, num_gates]
        q, k, v, gate = torch.split(self.qkv(x).view(len(x), sum(parts), kind.head_dim), parts, dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if rope is not None:
            q, k = step.rotate(q, rope), step.rotate(k, rope)
        self.ops.store_kv(k, v, state["key"], state["value"], step.batch)
        y = self.ops.paged_attention(
            q, state["key"], state["value"], step.batch, self.plan.scale, kind.window
        )
        if kind.gated:
            y = y * self.ops.sigmoid(gate)
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


def qwen_attention(config: HfConfig, kind: LayerKind) -> AttentionPlan:
    """Qwen3-Next's: gated, with normalised heads, a quarter of each rotated unless the config says more."""
    plan = rotary_attention(config, kind, part=0.25)
    return replace(plan, head_eps=number(config, "rms_norm_eps", 1e-6))
