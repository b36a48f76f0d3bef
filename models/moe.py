"""Mixture of experts: each token goes through a few of many small feed-forward layers, and shared ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hybridcache.hf_config import HfConfig
from hybridcache.kernels.ops import Linear, Ops
from hybridcache.layers import LayerKind, Mlp, Moe
from hybridcache.models import activation
from hybridcache.models.forward_pass import ForwardPass
from hybridcache.models.layer import Layer, LayerState, Shapes, within
from hybridcache.models.mlp import MlpPlan
from hybridcache.models.options import choice, number
from hybridcache.models.router import RouterRule
from hybridcache.models.weights import Weights

SHARED = "shared."


@dataclass(frozen=True, slots=True)
class MoePlan:
    """Weights: `router.weight`, and `router.bias` with `choice_bias`; the experts'; `shared.` an MLP's;
    `shared_gate.weight`; `latent_down.weight` and `latent_up.weight` where experts work in another width.

    Experts are `experts.<number>.` and an MLP's names, or with `stacked` the two tensors `experts.gate_up`
    [experts, 2 d_expert, width] and `experts.down` [experts, width, d_expert].
    """

    kind: Moe
    act: str
    rule: RouterRule
    stacked: bool = False
    choice_bias: bool = False
    shared_joined: bool = False
    """The shared expert's input matrices are joined in the checkpoint."""
    wide_router: bool = False
    """Router weights and scores are float32 whatever the model's dtype."""

    @property
    def width(self) -> int:
        """Width that routed experts work in."""
        return self.kind.d_model if self.kind.d_latent is None else self.kind.d_latent

    @property
    def expert(self) -> MlpPlan:
        """One routed expert."""
        return MlpPlan(Mlp(self.width, self.kind.d_expert, self.kind.gated), self.act)

    @property
    def shared(self) -> MlpPlan | None:
        """The shared experts as one."""
        if not self.kind.d_shared:
            return None
        mlp = Mlp(self.kind.d_model, self.kind.d_shared, self.kind.gated)
        return MlpPlan(mlp, self.act, joined=self.shared_joined)

    @property
    def shapes(self) -> Shapes:
        """All of them."""
        kind, count = self.kind, self.kind.num_experts
        shapes: dict[str, tuple[int, ...]] = {"router.weight": (count, kind.d_model)}
        if self.choice_bias:
            shapes["router.bias"] = (count,)
        if self.stacked:
            shapes["experts.gate_up"] = (count, (2 if kind.gated else 1) * kind.d_expert, self.width)
            shapes["experts.down"] = (count, self.width, kind.d_expert)
        else:
            for index in range(count):
                shapes |= within(f"experts.{index}.", self.expert.shapes)
        if self.shared is not None:
            shapes |= within(SHARED, self.shared.shapes)
        if kind.shared_gate:
            shapes["shared_gate.weight"] = (1, kind.d_model)
        if kind.d_latent is not None:
            shapes["latent_down.weight"] = (kind.d_latent, kind.d_model)
            shapes["latent_up.weight"] = (kind.d_model, kind.d_latent)
        return shapes

    def build(self, weights: Weights) -> Layer:
        """Packs each expert's matrices on their own."""
        latent = self.kind.d_latent is not None
        return MoeLayer(
            self,
            router=weights.linear("router", dtype=torch.float32 if self.wide_router else None),
            bias=weights.tensor("router.bias", torch.float32) if self.choice_bias else None,
            experts=tuple(self._experts(weights)),
            shared=None if self.shared is None else self.shared.build(weights.within(SHARED)),
            shared_gate=weights.linear("shared_gate") if self.kind.shared_gate else None,
            latent_down=weights.linear("latent_down") if latent else None,
            latent_up=weights.linear("latent_up") if latent else None,
            ops=weights.ops,
        )

    def _experts(self, weights: Weights) -> list[tuple[Linear, Linear]]:
        if self.stacked:
            names = ("experts.gate_up", "experts.down")
            packed = (
                tuple(weights.ops.linear(weights.mapped(name, row)) for name in names)
                for row in range(self.kind.num_experts)
            )
            return [(into, out) for into, out in packed]
        places = (weights.within(f"experts.{index}.") for index in range(self.kind.num_experts))
        return [(place.linear(*self.expert.inputs), place.linear("down_proj")) for place in places]


@dataclass(frozen=True, slots=True)
class MoeLayer:
    """Tokens are grouped by expert; a token's parts are added in the order of the experts' numbers."""

    plan: MoePlan
    router: Linear
    bias: Tensor | None
    experts: Sequence[tuple[Linear, Linear]]
    """Input matrix (gate and up joined) and output matrix of each."""
    shared: Layer | None
    shared_gate: Linear | None
    latent_down: Linear | None
    latent_up: Linear | None
    ops: Ops

    def __call__(self, x: Tensor, state: LayerState, step: ForwardPass) -> Tensor:
        """x [T, d_model] -> [T, d_model]."""
        weights, chosen = self.plan.rule(
            self.ops, self.router(x.float() if self.plan.wide_router else x), self.bias
        )
        y = self.ops.experts(
            x if self.latent_down is None else self.latent_down(x),
            weights,
            chosen,
            self.experts,
            activation.named(self.plan.act, self.plan.kind.gated),
            gated=self.plan.kind.gated,
        )
        if self.latent_up is not None:
            y = self.latent_up(y)
        if self.shared is None:
            return y
        shared = self.shared(x, state, step)
        if self.shared_gate is not None:
            shared = shared * self.ops.sigmoid(self.shared_gate(x))
        return self.ops.add(y, shared)


def granite_moe(config: HfConfig, kind: LayerKind) -> MoePlan:
    """Granite's: softmax over the chosen experts; experts stacked, the shared one's input matrices joined."""
    assert isinstance(kind, Moe)
    return MoePlan(
        kind,
        choice(config, "hidden_act", "silu", activation.names(kind.gated)),
        RouterRule("top_then_softmax", kind.experts_per_token),
        stacked=True,
        shared_joined=True,
    )


def nemotron_moe(config: HfConfig, kind: LayerKind) -> MoePlan:
    """Nemotron-H's: sigmoid scores, a bias that moves the choice, groups of experts, plain experts."""
    assert isinstance(kind, Moe)
    if config.flag("mlp_bias", False):
        raise config.error("mlp_bias", "false in a model with experts")
    groups, top_groups = config.integer("n_group", 1), config.integer("topk_group", 1)
    if kind.num_experts % groups or (groups > 1 and kind.num_experts // groups < 2):
        raise config.error(
            "n_group", f"a divisor of n_routed_experts ({kind.num_experts}) with 2 or more each"
        )
    if not top_groups * (kind.num_experts // groups) >= kind.experts_per_token or top_groups > groups:
        raise config.error(
            "topk_group", f"at most n_group ({groups}), with num_experts_per_tok experts or more"
        )
    return MoePlan(
        kind,
        choice(config, "mlp_hidden_act", "relu2", activation.names(kind.gated)),
        RouterRule(
            "sigmoid",
            kind.experts_per_token,
            renormalise=config.flag("norm_topk_prob", True),
            scale=number(config, "routed_scaling_factor", 1.0),
            groups=groups,
            top_groups=top_groups,
        ),
        choice_bias=True,
        wide_router=True,
    )


def jamba_moe(config: HfConfig, kind: LayerKind) -> MoePlan:
    """Jamba's: the best of the softmax over all experts, as they are."""
    assert isinstance(kind, Moe)
    act = choice(config, "hidden_act", "silu", activation.names(kind.gated))
    return MoePlan(kind, act, RouterRule("softmax_then_top", kind.experts_per_token))


def qwen_moe(config: HfConfig, kind: LayerKind) -> MoePlan:
    """Qwen3-Next's: likewise, divided by their sum where `norm_topk_prob` says so."""
    assert isinstance(kind, Moe)
    act = choice(config, "hidden_act", "silu", activation.names(kind.gated))
    renormalise = config.flag("norm_topk_prob", True)
    return MoePlan(kind, act, RouterRule("softmax_then_top", kind.experts_per_token, renormalise))
