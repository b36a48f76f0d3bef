"""The layers of every supported family of transformers models, by model_type."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hybridcache.hf_config import CacheDtypes, HfConfig
from hybridcache.hf_hybrids import bamba, falcon_h1, granite, jamba, nemotron_h
from hybridcache.hf_parts import (
    Mamba1Fields,
    Mamba2Fields,
    alternate,
    attention,
    dense_mlp,
    mamba1,
    mamba2,
    moe_layer,
    sliding_window,
)
from hybridcache.layers import GatedDelta, LayerKind, Mlp, SharedBlock

_ZAMBA = {"mamba": "mamba", "linear_attention": "mamba", "hybrid": "hybrid"}
_LLAMA = {"attention": "attention", "full_attention": "attention", "sliding_attention": "sliding"}
_DELTA = {"linear_attention": "delta", "full_attention": "attention"}


def hf_layers(config: HfConfig, dtypes: CacheDtypes) -> tuple[LayerKind, ...]:
    """The layers of `config` in order. Raises ValueError naming file, field, value and what is supported."""
    family = config.fields.get("model_type")
    if not isinstance(family, str) or family not in _FAMILIES:
        raise config.error("model_type", f"one of {', '.join(_FAMILIES)}")
    return tuple(_FAMILIES[family](config, dtypes))


def _zamba2(config: HfConfig, dtypes: CacheDtypes) -> list[LayerKind]:
    """Zamba2: Mamba-2 in every layer; a hybrid layer first calls one of the shared blocks, in turn."""
    d_model, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    types = config.layer_types(config.first("layers_block_type", "layer_types"), _ZAMBA)
    mixer = mamba2(
        config,
        dtypes,
        d_inner=config.integer("mamba_expand", 2) * d_model,
        fields=Mamba2Fields(
            "n_mamba_heads", "mamba_headdim", "mamba_d_state", "mamba_ngroups", "mamba_d_conv"
        ),
    )
    shared_attention = attention(
        config,
        dtypes,
        head_dim=config.integer("attention_head_dim", 2 * d_model // heads),
        input_width=2 * d_model,
        window=sliding_window(config),
    )
    blocks = [
        SharedBlock(
            d_model,
            block=block,
            attention=shared_attention,
            mlp=Mlp(d_model, config.integer("intermediate_size", 4 * d_model)),
            adapter_rank=config.integer("adapter_rank", 128),
            attention_adapters=config.flag("use_shared_attention_adapter", False),
        )
        for block in range(config.integer("num_mem_blocks", 1))
    ]
    layers: list[LayerKind] = []
    calls = 0
    for kind in types:
        if kind == "hybrid":
            layers.append(blocks[calls % len(blocks)])
            calls += 1
        layers.append(mixer)
    return layers


def _qwen3_next(config: HfConfig, dtypes: CacheDtypes) -> list[LayerKind]:
    """Qwen3-Next: gated delta rule or gated attention, then experts (one shared) or a dense MLP."""
    count, d_conv = config.integer("num_hidden_layers"), config.integer("linear_conv_kernel_dim", 4)
    if config.has("layer_types"):
        types = config.layer_types("layer_types", _DELTA)
    else:
        interval = config.integer("full_attention_interval", 4)
        types = ["delta" if (index + 1) % interval else "attention" for index in range(count)]
    k_heads, v_heads = config.integer("linear_num_key_heads"), config.integer("linear_num_value_heads")
    if v_heads % k_heads:
        raise config.error("linear_num_key_heads", f"a divisor of linear_num_value_heads ({v_heads})")
    delta = GatedDelta(
        config.integer("hidden_size"),
        num_k_heads=k_heads,
        num_v_heads=v_heads,
        head_k_dim=config.integer("linear_key_head_dim"),
        head_v_dim=config.integer("linear_value_head_dim"),
        d_conv=d_conv,
        conv_width_stored=dtypes.conv_width(d_conv),
        ssm_dtype=dtypes.ssm,
        conv_dtype=dtypes.conv,
    )
    mixers = {
        "delta": delta,
        "attention": attention(config, dtypes, gated=True, window=sliding_window(config)),
    }
    step, dense_only = config.integer("decoder_sparse_step", 1), config.integers("mlp_only_layers")
    has_experts = config.integer("num_experts", at_least=0) > 0
    sparse = [has_experts and (i + 1) % step == 0 and i not in dense_only for i in range(count)]
    feed_forwards: dict[bool, LayerKind] = {}
    if True in sparse:
        feed_forwards[True] = moe_layer(
            config,
            experts_field="num_experts",
            width_field="moe_intermediate_size",
            d_shared=config.integer("shared_expert_intermediate_size"),
            shared_gate=True,
        )
    if False in sparse:
        feed_forwards[False] = dense_mlp(config)
    return alternate([mixers[kind] for kind in types], [feed_forwards[is_sparse] for is_sparse in sparse])


def _mamba(config: HfConfig, dtypes: CacheDtypes) -> list[LayerKind]:
    """Mamba and Falcon-Mamba: Mamba-1 mixers only."""
    # A stored intermediate_size overrides expand in these families (falcon-mamba-7b relies on it).
    d_inner = config.integer("intermediate_size", config.integer("expand", 2) * config.integer("hidden_size"))
    fields = Mamba1Fields("state_size", "time_step_rank", "conv_kernel")
    layers: list[LayerKind] = [mamba1(config, dtypes, d_inner=d_inner, fields=fields)]
    return layers * config.integer("num_hidden_layers")


def _mamba2(config: HfConfig, dtypes: CacheDtypes) -> list[LayerKind]:
    """Mamba-2: Mamba-2 mixers only."""
    d_inner = config.integer("expand", 2) * config.integer("hidden_size")
    fields = Mamba2Fields("num_heads", "head_dim", "state_size", "n_groups", "conv_kernel")
    layers: list[LayerKind] = [mamba2(config, dtypes, d_inner=d_inner, fields=fields)]
    return layers * config.integer("num_hidden_layers")


def _llama(config: HfConfig, dtypes: CacheDtypes) -> list[LayerKind]:
    """Llama and what is built like it: attention (full or sliding) and a dense MLP."""
    count = config.integer("num_hidden_layers")
    if config.has("layer_types"):
        types = config.layer_types("layer_types", _LLAMA)
    else:
        types = ["attention" if sliding_window(config) is None else "sliding"] * count
    if "sliding" in types and sliding_window(config) is None:
        raise config.error("sliding_window", "the window in tokens, since layer_types has sliding_attention")
    mixers = {
        "attention": attention(config, dtypes),
        "sliding": attention(config, dtypes, window=sliding_window(config)),
    }
    return alternate([mixers[kind] for kind in types], [dense_mlp(config)] * count)


_FAMILIES: Mapping[str, Callable[[HfConfig, CacheDtypes], list[LayerKind]]] = MappingProxyType(
    {
        "jamba": jamba,
        "bamba": bamba,
        "granitemoehybrid": granite,
        "nemotron_h": nemotron_h,
        "falcon_h1": falcon_h1,
        "zamba2": _zamba2,
        "qwen3_next": _qwen3_next,
        "mamba": _mamba,
        "mamba2": _mamba2,
        "falcon_mamba": _mamba,
        "llama": _llama,
    }
)
