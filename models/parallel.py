"""Layers side by side: each reads the same input, and their outputs are added."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from hybridcache.hf_config import HfConfig
from hybridcache.layers import Attention, LayerKind, Parallel
from hybridcache.models.attention import rotary_attention
from hybridcache.models.forward_pass import ForwardPass
from hybridcache.models.layer import Layer, LayerPlan, LayerState, Shapes, within
from hybridcache.models.mamba2 import falcon_mamba2
from hybridcache.models.options import number
from hybridcache.models.weights import Weights


@dataclass(frozen=True, slots=True)
class Branch:
    """One of several layers; its weights' names begin with `name` and a dot."""

    name: str
    layer: LayerPlan
    into: float = 1.0
    """Factor of its input."""
    out: float = 1.0
    """Factor of its output."""


@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """The branches, added in order."""

    branches: tuple[Branch, ...]

    @property
    def shapes(self) -> Shapes:
        """The branches' weights."""
        return {
            name: shape
            for branch in self.branches
            for name, shape in within(f"{branch.name}.", branch.layer.shapes).items()
        }

    def build(self, weights: Weights) -> Layer:
        """Builds the branches in order."""
        layers = [branch.layer.build(weights.within(f"{branch.name}.")) for branch in self.branches]
        return ParallelLayer(self.branches, layers)


@dataclass(frozen=True, slots=True)
class ParallelLayer:
    """Sum of out * layer(into * x). The branches share one state, whose names the kind keeps distinct."""

    branches: tuple[Branch, ...]
    layers: Sequence[Layer]

    def __call__(self, x: Tensor, state: LayerState, step: ForwardPass) -> Tensor:
        """x [T, d_model] -> [T, d_model]."""
        total: Tensor | None = None
        for branch, layer in zip(self.branches, self.layers, strict=True):
            y = layer(x if branch.into == 1 else x * branch.into, state, step)
            y = y if branch.out == 1 else y * branch.out
            total = y if total is None else total + y
        assert total is not None
        return total


def falcon_parallel(config: HfConfig, kind: LayerKind) -> ParallelPlan:
    """Falcon-H1's: attention and Mamba-2, a factor before and after each; keys have one of their own."""
    assert isinstance(kind, Parallel)
    branches: list[Branch] = []
    for part in kind.branches:
        if isinstance(part, Attention):
            plan = rotary_attention(config, part)
            # A factor on the keys is a factor on the scores.
            plan = replace(plan, scale=plan.scale * number(config, "key_multiplier", 1.0))
            branches.append(_branch(config, "attention", plan))
        else:
            branches.append(_branch(config, "ssm", falcon_mamba2(config, part)))
    return ParallelPlan(tuple(branches))


def _branch(config: HfConfig, name: str, plan: LayerPlan) -> Branch:
    into, out = (number(config, f"{name}_{side}_multiplier", 1.0) for side in ("in", "out"))
    return Branch(name, plan, into, out)
