"""One call of a transformer block whose weights several calls share (Zamba2)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hybridcache.hf_config import HfConfig
from hybridcache.kernels.ops import Linear
from hybridcache.layers import LayerKind, SharedBlock
from hybridcache.models import activation
from hybridcache.models.adapter import AdaptedLinear
from hybridcache.models.attention import AttentionLayer, AttentionPlan
from hybridcache.models.forward_pass import ForwardPass
from hybridcache.models.layer import Layer, LayerState, Shapes, within
from hybridcache.models.mlp import MlpLayer, MlpPlan
from hybridcache.models.norm import RmsNorm
from hybridcache.models.options import choice, number
from hybridcache.models.rope import hf_rope
from hybridcache.models.weights import Weights

SHARED = "shared."
ADAPTER = "adapter."
OUT = "linear."


@dataclass(frozen=True, slots=True)
class SharedBlockPlan:
    """Weights under `shared.`: `input_norm`, `attention.` and `mlp.` with their own, `mlp_norm`.

    The call's own: `linear`, and under `adapter.` pairs `<matrix>.0` (down) and `<matrix>.1` (up) for
    `gate_up_proj` and, with attention adapters, `q_proj`, `k_proj` and `v_proj`.
    """

    kind: SharedBlock
    attention: AttentionPlan
    mlp: MlpPlan
    eps: float

    @property
    def adapted(self) -> dict[str, tuple[int, int]]:
        """Input and output width of each matrix that has an adapter."""
        attention = {
            name: self.attention.shapes[f"{name}.weight"]
            for name in ("q_proj", "k_proj", "v_proj")
            if self.kind.attention_adapters
        }
        matrices = {**attention, "gate_up_proj": self.mlp.shapes["gate_up_proj.weight"]}
        return {name: (shape[1], shape[0]) for name, shape in matrices.items()}

    @property
    def shapes(self) -> Shapes:
        """All of them."""
        d_model, rank = self.kind.d_model, self.kind.adapter_rank
        shared = {
            "input_norm.weight": (2 * d_model,),
            "mlp_norm.weight": (d_model,),
            **within("attention.", self.attention.shapes),
            **within("mlp.", self.mlp.shapes),
        }
        adapters: dict[str, tuple[int, ...]] = {}
        for name, (inputs, outputs) in self.adapted.items():
            adapters |= {f"{name}.0.weight": (rank, inputs), f"{name}.1.weight": (outputs, rank)}
        return {
            **within(SHARED, shared),
            **within(ADAPTER, adapters),
            f"{OUT}weight": (d_model, d_model),
        }

    def build(self, weights: Weights) -> Layer:
        """Shared matrices are packed by the first call and found again by the others (`Weights.linear`)."""
        shared, own, ops = weights.within(SHARED), weights.within(ADAPTER), weights.ops
        attention, mlp = shared.within("attention."), shared.within("mlp.")

        def adapted(matrix: Linear, *names: str) -> Linear:
            down = own.linear(*(f"{name}.0" for name in names))
            return AdaptedLinear(matrix, down, [own.linear(f"{name}.1") for name in names])

        qkv = attention.linear("q_proj", "k_proj", "v_proj")
        if self.kind.attention_adapters:
            qkv = adapted(qkv, "q_proj", "k_proj", "v_proj")
        into = adapted(mlp.linear("gate_up_proj", bias=self.mlp.bias), "gate_up_proj")
        return SharedBlockLayer(
            input_norm=RmsNorm(shared.tensor("input_norm.weight"), self.eps, ops),
            attention=AttentionLayer(self.attention, qkv=qkv, out=attention.linear("o_proj"), ops=ops),
            mlp_norm=RmsNorm(shared.tensor("mlp_norm.weight"), self.eps, ops),
            mlp=MlpLayer(self.mlp, into=into, out=mlp.linear("down_proj", bias=self.mlp.bias), ops=ops),
            linear=weights.linear(OUT.removesuffix(".")),
        )


@dataclass(frozen=True, slots=True)
class SharedBlockLayer:
    """Reads the hidden state beside the embeddings; its output goes into the next layer's input alone."""

    input_norm: RmsNorm
    attention: Layer
    mlp_norm: RmsNorm
    mlp: Layer
    linear: Linear

    def __call__(self, x: Tensor, state: LayerState, step: ForwardPass) -> Tensor:
        """Leaves x [T, d_model] as it is, and what the block computed in `step.aside`."""
        y = self.input_norm(torch.cat([x, step.embeddings], dim=-1))
        y = self.mlp(self.mlp_norm(self.attention(y, state, step)), state, step)
        step.aside = self.linear(y)
        return x


def zamba_shared_block(config: HfConfig, kind: LayerKind) -> SharedBlockPlan:
    """Zamba2's: scores scaled by the root of half a head, rotary positions where `use_mem_rope` says so."""
    assert isinstance(kind, SharedBlock)
    if config.flag("use_long_context", False):
        raise config.error("use_long_context", "false; its rescaled positions are not supported")
    if not kind.adapter_rank:
        raise config.error("adapter_rank", "at least 1")
    attention = kind.attention
    rope = hf_rope(config, attention.head_dim) if config.flag("use_mem_rope", False) else None
    act = choice(config, "hidden_act", "gelu", activation.names(kind.mlp.gated))
    return SharedBlockPlan(
        kind,
        AttentionPlan(attention, rope, (attention.head_dim / 2) ** -0.5),
        MlpPlan(kind.mlp, act, config.flag("add_bias_linear", False), joined=True),
        number(config, "rms_norm_eps", 1e-5),
    )
