"""Activations by their names in a transformers config."""

from collections.abc import Mapping
from types import MappingProxyType

from hybridcache.kernels.ops import Activation

GATED: Mapping[str, Activation] = MappingProxyType(
    {"silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}
)
"""act(gate) * up."""

PLAIN: Mapping[str, Activation] = MappingProxyType(
    {"relu2": "relu2", "silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}
)
"""act(x)."""


def names(gated: bool) -> tuple[str, ...]:
    """The activations there are, for a gated layer or a plain one."""
    return tuple(GATED if gated else PLAIN)


def named(name: str, gated: bool) -> Activation:
    """The operation of an activation that `names` has."""
    return (GATED if gated else PLAIN)[name]
