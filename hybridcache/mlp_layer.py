"""Feed-forward layers: dense and mixture of experts."""

from dataclasses import dataclass
from typing import ClassVar

from hybridcache.flops import FlopTerm
from hybridcache.layer_kind import LayerKind, check_dimensions


@dataclass(frozen=True, slots=True)
class Mlp(LayerKind):
    """Dense feed-forward layer: 3 matrices of d_model x d_ff when gated (SwiGLU), 2 otherwise."""

    kind: ClassVar[str] = "mlp"

    d_model: int
    d_ff: int
    gated: bool = True

    def __post_init__(self) -> None:
        check_dimensions(self, d_model=self.d_model, d_ff=self.d_ff)

    @property
    def flop_terms(self) -> tuple[FlopTerm, ...]:
        """The matrices, per token."""
        matrices = 3 if self.gated else 2
        return (FlopTerm("mlp", per_token=2 * matrices * self.d_model * self.d_ff),)


@dataclass(frozen=True, slots=True)
class Moe(LayerKind):
    """Mixture of experts: the router, the experts a token is sent to, and the shared ones every token uses.

    `d_shared` is the summed width of the shared experts (0: none); `shared_gate` adds Qwen's scalar gate on
    them. `d_latent` is the width routed experts work in when it is not d_model (Nemotron-H), reached by one
    projection down and one up.
    """

    kind: ClassVar[str] = "moe"

    d_model: int
    d_expert: int
    num_experts: int
    experts_per_token: int
    d_shared: int = 0
    shared_gate: bool = False
    gated: bool = True
    d_latent: int | None = None

    def __post_init__(self) -> None:
        check_dimensions(
            self,
            d_model=self.d_model,
            d_expert=self.d_expert,
            num_experts=self.num_experts,
            experts_per_token=self.experts_per_token,
            d_latent=1 if self.d_latent is None else self.d_latent,
        )
        check_dimensions(self, at_least=0, d_shared=self.d_shared)
        if self.experts_per_token > self.num_experts:
            raise ValueError(
                f"moe: experts_per_token {self.experts_per_token} is more than num_experts {self.num_experts}"
            )

    @property
    def flop_terms(self) -> tuple[FlopTerm, ...]:
        """Router, active experts and shared experts, per token."""
        matrices = 3 if self.gated else 2
        expert_width = self.d_model if self.d_latent is None else self.d_latent
        latent = 0 if self.d_latent is None else 4 * self.d_model * self.d_latent
        shared = 2 * matrices * self.d_model * self.d_shared + (2 * self.d_model if self.shared_gate else 0)
        return (
            FlopTerm("router", per_token=2 * self.d_model * self.num_experts),
            FlopTerm(
                "experts",
                per_token=latent + self.experts_per_token * 2 * matrices * expert_width * self.d_expert,
            ),
            FlopTerm("shared_experts", per_token=shared),
        )
