"""Activations by their names in a transformers config."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import Tensor

from hybridcache.kernels.ops import Ops

GATED: Mapping[str, Callable[[Ops, Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "silu": lambda ops, gate, up: ops.silu_mul(gate, up),
        "gelu": lambda ops, gate, up: ops.gelu_mul(gate, up),
        "gelu_pytorch_tanh": lambda ops, gate, up: ops.gelu_tanh_mul(gate, up),
    }
)
"""act(gate) * up."""

PLAIN: Mapping[str, Callable[[Ops, Tensor], Tensor]] = MappingProxyType(
    {
        "relu2": lambda ops, x: ops.relu2(x),
        "silu": lambda ops, x: ops.silu(x),
        "gelu": lambda ops, x: ops.gelu(x),
        "gelu_pytorch_tanh": lambda ops, x: ops.gelu_tanh(x),
    }
)
"""act(x)."""


def names(gated: bool) -> tuple[str, ...]:
    """The activations there are, for a gated layer or a plain one."""
    return tuple(GATED if gated else PLAIN)
