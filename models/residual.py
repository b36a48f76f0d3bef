"""The frame of most layers: x + multiplier * layer(norm(x))."""

from dataclasses import dataclass

from torch import Tensor

from hybridcache.models.forward_pass import ForwardPass
from hybridcache.models.layer import Layer, LayerPlan, LayerState, Shapes, within
from hybridcache.models.norm import RmsNorm
from hybridcache.models.weights import Weights

NORM = "pre_norm."
LAYER = "layer."


@dataclass(frozen=True, slots=True)
class ResidualPlan:
    """A layer behind its norm. Names: `pre_norm.weight` and `layer.` before the layer's own."""

    layer: LayerPlan
    width: int
    eps: float
    unit_offset: bool
    multiplier: float

    @property
    def shapes(self) -> Shapes:
        """The norm's and the layer's."""
        return {f"{NORM}weight": (self.width,), **within(LAYER, self.layer.shapes)}

    def build(self, weights: Weights) -> Layer:
        """Reads both."""
        norm = RmsNorm(weights.tensor(f"{NORM}weight"), self.eps, weights.ops, self.unit_offset)
        return Residual(norm, self.layer.build(weights.within(LAYER)), self.multiplier)


@dataclass(frozen=True, slots=True)
class Residual:
    """Adds the layer's output to the hidden state, whose dtype stays (float32 where a family asks for it)."""

    norm: RmsNorm
    layer: Layer
    multiplier: float

    def __call__(self, x: Tensor, state: LayerState, step: ForwardPass) -> Tensor:
        """x [T, d_model] -> [T, d_model]."""
        ops, read = self.norm.ops, x
        if step.aside is not None:
            read, step.aside = ops.add(x, step.aside), None
        return ops.add(x, self.layer(self.norm(read), state, step), self.multiplier)
