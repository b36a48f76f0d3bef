"""Families of hybrids whose layers are a mixer (Mamba or attention) and a feed-forward layer."""

from collections.abc import Callable

from hybridcache.hf_config import CacheDtypes, HfConfig
from hybridcache.hf_parts import (
    MIXERS,
    Mamba1Fields,
    Mamba2Fields,
    alternate,
    attention,
    bamba_mixer,
    dense_mlp,
    mamba1,
    mamba2,
    moe_layer,
    sliding_window,
)
from hybridcache.layers import LayerKind, Parallel

_NEMOTRON = {**MIXERS, "mlp": "mlp", "moe": "moe", "M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def jamba(config: HfConfig, dtypes: CacheDtypes) -> list[LayerKind]:
    """Jamba: Mamba-1 or attention by period and offset, then a dense MLP or experts by another."""
    listed = config.first("layers_block_type", "layer_types")
    if config.has(listed):
        types = config.layer_types(listed, MIXERS)
    else:
        types = ["attention" if chosen else "mamba" for chosen in _every(config, "attn", period=8, offset=4)]
    d_inner = config.integer("mamba_expand", 2) * config.integer("hidden_size")
    fields = Mamba1Fields("mamba_d_state", "mamba_dt_rank", "mamba_d_conv")
    mixers = {
        "mamba": mamba1(config, dtypes, d_inner=d_inner, fields=fields),
        "attention": attention(config, dtypes, window=sliding_window(config)),
    }
    dense = dense_mlp(config)
    experts: LayerKind = dense
    if config.integer("num_experts", 16) > 1:
        experts = moe_layer(config, experts_field="num_experts", width_field="intermediate_size")
    feed_forwards = [experts if chosen else dense for chosen in _every(config, "expert", period=2, offset=1)]
    return alternate([mixers[kind] for kind in types], feed_forwards)


def _every(config: HfConfig, what: str, *, period: int, offset: int) -> list[bool]:
    """For each layer whether it is the one at the offset of its period; the arguments are the defaults."""
    period = config.integer(f"{what}_layer_period", period)
    offset = config.integer(f"{what}_layer_offset", offset, at_least=0)
    if offset >= period:
        raise config.error(f"{what}_layer_offset", f"smaller than {what}_layer_period ({period})")
    return [index % period == offset for index in range(config.integer("num_hidden_layers"))]


def bamba(config: HfConfig, dtypes: CacheDtypes) -> list[LayerKind]:
    """Bamba: Mamba-2, attention at listed indices, a dense MLP after each."""
    count = config.integer("num_hidden_layers")
    listed = config.first("layers_block_type", "layer_types")
    if config.has(listed):
        types = config.layer_types(listed, MIXERS)
    else:
        chosen = config.integers("attn_layer_indices")
        if any(index >= count for index in chosen):
            raise config.error("attn_layer_indices", f"a list of indices below num_hidden_layers ({count})")
        types = ["attention" if index in chosen else "mamba" for index in range(count)]
    mixers = {
        "mamba": bamba_mixer(config, dtypes),
        "attention": attention(config, dtypes, window=sliding_window(config)),
    }
    return alternate([mixers[kind] for kind in types], [dense_mlp(config)] * count)


def granite(config: HfConfig, dtypes: CacheDtypes) -> list[LayerKind]:
    """Granite 4: Mamba-2 or attention as listed, then experts with a shared one, or the shared one alone."""
    types = config.layer_types(config.first("layer_types", "layers_block_type"), MIXERS)
    # Built on demand: a Granite without Mamba layers states mamba dimensions that need not fit.
    makers: dict[str, Callable[[], LayerKind]] = {
        "mamba": lambda: bamba_mixer(config, dtypes),
        "attention": lambda: attention(config, dtypes, window=sliding_window(config)),
    }
    mixers = {kind: makers[kind]() for kind in set(types)}
    shared = dense_mlp(config, "shared_intermediate_size")
    feed_forward: LayerKind = shared
    if config.integer("num_local_experts", at_least=0):
        feed_forward = moe_layer(
            config, experts_field="num_local_experts", width_field="intermediate_size", d_shared=shared.d_ff
        )
    return alternate([mixers[kind] for kind in types], [feed_forward] * len(types))


def nemotron_h(config: HfConfig, dtypes: CacheDtypes) -> list[LayerKind]:
    """Nemotron-H: one mixer or one (ungated) feed-forward per layer, by a pattern string or a list."""
    types = config.layer_types(
        config.first("hybrid_override_pattern", "layers_block_type", "layer_types"), _NEMOTRON
    )
    fields = Mamba2Fields("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel")
    makers: dict[str, Callable[[], LayerKind]] = {
        "mamba": lambda: mamba2(config, dtypes, d_inner=None, fields=fields),
        "attention": lambda: attention(config, dtypes, window=sliding_window(config)),
        "mlp": lambda: dense_mlp(config, gated=False),
        "moe": lambda: moe_layer(
            config,
            experts_field="n_routed_experts",
            width_field="moe_intermediate_size",
            d_shared=config.integer("moe_shared_expert_intermediate_size", at_least=0),
            gated=False,
            d_latent=config.integer("moe_latent_size") if config.has("moe_latent_size") else None,
        ),
    }
    layers = {kind: makers[kind]() for kind in set(types)}
    return [layers[kind] for kind in types]


def falcon_h1(config: HfConfig, dtypes: CacheDtypes) -> list[LayerKind]:
    """Falcon-H1: attention and Mamba-2 side by side, then a dense MLP, in every layer."""
    mixer = Parallel((attention(config, dtypes, window=sliding_window(config)), bamba_mixer(config, dtypes)))
    layers: list[LayerKind] = [mixer, dense_mlp(config)]
    return layers * config.integer("num_hidden_layers")
