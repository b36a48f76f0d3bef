"""Small models and short ways to drive a cache, for tests."""

from collections.abc import Sequence

from hybridcache.attention_layer import Attention
from hybridcache.layers import LayerKind
from hybridcache.mamba_layer import Mamba1
from hybridcache.spec import ModelSpec

ATTENTION = Attention(d_model=4, num_heads=1, num_kv_heads=1, head_dim=2)
RECURRENT = Mamba1(d_model=4, d_inner=4, d_state=2, dt_rank=1, d_conv=2, conv_width_stored=0)

KV_BYTES = 8
"""Bytes of KV a token in the toys with attention."""
STATE_BYTES = 32
"""Bytes of a checkpoint in the toys with a recurrent layer."""


def _spec(name: str, layers: Sequence[LayerKind]) -> ModelSpec:
    return ModelSpec(name, tuple(layers), d_model=4, vocab_size=16)


HYBRID = _spec("hybrid", [ATTENTION, RECURRENT])
ATTENTION_ONLY = _spec("attention", [ATTENTION])
RECURRENT_ONLY = _spec("recurrent", [RECURRENT])
