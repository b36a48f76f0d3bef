"""All kinds of layers under one import, and by the name a geometry file uses."""

from collections.abc import Mapping
from types import MappingProxyType

from hybridcache.attention_layer import Attention
from hybridcache.block_layer import Parallel, SharedBlock
from hybridcache.gated_delta_layer import GatedDelta
from hybridcache.layer_kind import LayerKind
from hybridcache.mamba_layer import Mamba1, Mamba2, PaperSsm
from hybridcache.mlp_layer import Mlp, Moe

__all__ = [
    "LAYER_KINDS",
    "Attention",
    "GatedDelta",
    "LayerKind",
    "Mamba1",
    "Mamba2",
    "Mlp",
    "Moe",
    "PaperSsm",
    "Parallel",
    "SharedBlock",
]

LAYER_KINDS: Mapping[str, type[LayerKind]] = MappingProxyType(
    {
        cls.kind: cls
        for cls in (Attention, Mamba1, Mamba2, GatedDelta, Mlp, Moe, Parallel, SharedBlock, PaperSsm)
    }
)
