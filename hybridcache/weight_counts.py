"""Weights that a step reads, counted from the dimensions of a model's layers."""

from collections.abc import Iterator
from typing import NamedTuple

from hybridcache.block_layer import Parallel
from hybridcache.layer_kind import LayerKind
from hybridcache.mlp_layer import Moe
from hybridcache.spec import ModelSpec

# The scan multiplies activations with each other; every other term each of its weights once a token.
_WITHOUT_WEIGHTS = "scan"


class ExpertCounts(NamedTuple):
    """Layers of routed experts that are alike."""

    num_experts: int
    per_token: int
    """Experts that a token goes to."""
    weights: int
    """Of one expert of one layer."""
    num_layers: int

    def read(self, num_tokens: int) -> float:
        """Weights that ``num_tokens`` tokens read when each picks its experts alike and by itself."""
        missed = (1.0 - self.per_token / self.num_experts) ** num_tokens
        return self.num_layers * self.num_experts * (1.0 - missed) * self.weights


class WeightCounts(NamedTuple):
    """Weights of a model; a block that several calls share counts at every call, for each reads it again."""

    dense: int
    """Of all layers, routed experts left out."""
    experts: tuple[ExpertCounts, ...]
    head: int
    """Of the LM head; the embedding is as large, and a step reads a row of it a token."""

    @classmethod
    def of(cls, spec: ModelSpec) -> "WeightCounts":
        """Count those of ``spec``. Norms and biases, below 0.1%, are left out."""
        dense = 0
        alike: dict[tuple[int, int, int], int] = {}
        for layer in spec.layers:
            for part in parts_of(layer):
                for term in part.flop_terms:
                    if term.name == _WITHOUT_WEIGHTS:
                        continue
                    if isinstance(part, Moe) and term.name == "experts":
                        routed, each = _routed(part)
                        dense += term.per_token // 2 - routed
                        key = (part.num_experts, part.experts_per_token, each)
                        alike[key] = alike.get(key, 0) + 1
                    else:
                        dense += term.per_token // 2
        experts = tuple(ExpertCounts(*key, count) for key, count in alike.items())
        return cls(dense, experts, spec.d_model * spec.vocab_size)

    def read(self, num_tokens: int, num_logits: int) -> float:
        """Weights that a step of so many tokens reads, each once."""
        read = self.dense + sum(experts.read(num_tokens) for experts in self.experts)
        return read + self.head if num_logits else read

    @property
    def total(self) -> int:
        """All weights, embedding and head both."""
        routed = sum(e.num_layers * e.num_experts * e.weights for e in self.experts)
        return self.dense + routed + 2 * self.head


def parts_of(layer: LayerKind) -> Iterator[LayerKind]:
    """The layer itself, or its branches where they run side by side."""
    if isinstance(layer, Parallel):
        for branch in layer.branches:
            yield from parts_of(branch)
    else:
        yield layer


def _routed(layer: Moe) -> tuple[int, int]:
    """Weights of the experts that one token goes to, and of one expert."""
    width = layer.d_model if layer.d_latent is None else layer.d_latent
    each = (3 if layer.gated else 2) * width * layer.d_expert
    return layer.experts_per_token * each, each
