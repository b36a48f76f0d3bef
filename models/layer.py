"""What a layer of a model is: a plan that names its weights, and the code that runs on them."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from hybridcache.models.forward_pass import ForwardPass
from hybridcache.models.weights import Weights

Shapes = Mapping[str, tuple[int, ...]]
"""A layer's weights by the name it uses for them, and their shapes."""

LayerState = Mapping[str, Tensor]
"""Views into storage, by the names that the layer's kind declares: each state tensor [slots, *shape], each KV
tensor [blocks, block_size, *shape], with any stride of the first dimension."""

LayerStates = Sequence[LayerState]
"""One entry for each of `ModelSpec.layers`, in order."""


class Layer(Protocol):
    """A built layer. It keeps weights, never anything of a request."""

    def __call__(self, x: Tensor, state: LayerState, step: ForwardPass) -> Tensor:
        """x [T, d_model] -> [T, d_model]; reads and writes `state` in place."""


class LayerPlan(Protocol):
    """A layer before its weights are read: everything that can be wrong with a checkpoint is found here."""

    @property
    def shapes(self) -> Shapes:
        """The weights it needs."""

    def build(self, weights: Weights) -> Layer:
        """Reads and packs the weights, which have been checked against `shapes`."""


def within(prefix: str, shapes: Shapes) -> Shapes:
    """`shapes` under a longer name."""
    return {prefix + name: shape for name, shape in shapes.items()}
