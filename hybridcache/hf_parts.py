"""The layers that several families of transformers models share, read from a config's fields.

Field names and defaults follow transformers 5.24 (models/*/configuration_*.py) and the older names that
published config.json files still carry.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from hybridcache.hf_config import CacheDtypes, HfConfig
from hybridcache.layers import Attention, LayerKind, Mamba1, Mamba2, Mlp, Moe

MIXERS = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
}
"""What the names in a list of layer types mean: transformers renamed "mamba" and "attention" in version 5."""


class Mamba1Fields(NamedTuple):
    """Names of the config fields with the dimensions of a Mamba-1 mixer."""

    d_state: str
    dt_rank: str
    d_conv: str


class Mamba2Fields(NamedTuple):
    """Names of the config fields with the dimensions of a Mamba-2 mixer."""

    nheads: str
    headdim: str
    d_state: str
    ngroups: str
    d_conv: str


def sliding_window(config: HfConfig) -> int | None:
    """The sliding window (tokens) of a config that has one and has not switched it off."""
    if not config.has("sliding_window") or not config.flag("use_sliding_window", True):
        return None
    return config.integer("sliding_window")


def attention(
    config: HfConfig,
    dtypes: CacheDtypes,
    *,
    head_dim: int | None = None,
    gated: bool = False,
    input_width: int | None = None,
    window: int | None = None,
) -> Attention:
    """Attention of a config. `head_dim` and `input_width` (elements) override it; `window` is in tokens."""
    heads = config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise config.error("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    if head_dim is None:
        named = config.first("head_dim", "attention_head_dim")
        head_dim = (
            config.integer(named)
            if config.has(named)
            else config.divided("hidden_size", "num_attention_heads")
        )
    return Attention(
        config.integer("hidden_size"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        gated=gated,
        window=window,
        input_width=input_width,
        kv_dtype=dtypes.kv,
    )


def mamba1(config: HfConfig, dtypes: CacheDtypes, *, d_inner: int, fields: Mamba1Fields) -> Mamba1:
    """Mamba-1 of `d_inner` channels whose other dimensions are in `fields`."""
    d_model = config.integer("hidden_size")
    d_conv = config.integer(fields.d_conv, 4)
    return Mamba1(
        d_model,
        d_inner=d_inner,
        d_state=config.integer(fields.d_state, 16),
        dt_rank=config.integer_or_auto(fields.dt_rank, math.ceil(d_model / 16)),
        d_conv=d_conv,
        conv_width_stored=dtypes.conv_width(d_conv),
        ssm_dtype=dtypes.ssm,
        conv_dtype=dtypes.conv,
    )


def mamba2(config: HfConfig, dtypes: CacheDtypes, *, d_inner: int | None, fields: Mamba2Fields) -> Mamba2:
    """Mamba-2 with its dimensions in `fields`; `d_inner` is the inner width stated elsewhere, if any."""
    nheads = config.integer(fields.nheads)
    headdim = (
        config.integer(fields.headdim)
        if d_inner is None
        else config.integer_or_auto(fields.headdim, d_inner // nheads)
    )
    if d_inner is not None and headdim * nheads != d_inner:
        raise ValueError(
            f"{config.where}: field {fields.nheads!r} is {nheads} and {fields.headdim!r} is {headdim}; "
            f"their product must be the inner width, {d_inner}"
        )
    d_conv = config.integer(config.first(fields.d_conv, "mamba_d_conv"), 4)
    ngroups_field = config.first(fields.ngroups, "mamba_n_groups")
    ngroups = config.integer(ngroups_field, 1)
    if nheads % ngroups:
        raise config.error(ngroups_field, f"a divisor of {fields.nheads} ({nheads})")
    return Mamba2(
        config.integer("hidden_size"),
        nheads=nheads,
        headdim=headdim,
        d_state=config.integer(fields.d_state),
        ngroups=ngroups,
        d_conv=d_conv,
        conv_width_stored=dtypes.conv_width(d_conv),
        ssm_dtype=dtypes.ssm,
        conv_dtype=dtypes.conv,
    )


def bamba_mixer(config: HfConfig, dtypes: CacheDtypes) -> Mamba2:
    """Mamba-2 with Bamba's field names, which Granite and Falcon-H1 took over."""
    expanded = config.integer("mamba_expand", 2) * config.integer("hidden_size")
    return mamba2(
        config,
        dtypes,
        d_inner=config.integer("mamba_d_ssm", expanded),
        fields=Mamba2Fields(
            "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv"
        ),
    )


def dense_mlp(config: HfConfig, width: str = "intermediate_size", *, gated: bool = True) -> Mlp:
    """A dense feed-forward layer; `width` is the field with its inner width (elements)."""
    return Mlp(config.integer("hidden_size"), config.integer(width), gated=gated)


def moe_layer(
    config: HfConfig,
    *,
    experts_field: str,
    width_field: str,
    d_shared: int = 0,
    shared_gate: bool = False,
    gated: bool = True,
    d_latent: int | None = None,
) -> Moe:
    """A mixture of experts; the fields hold the number of routed experts and their inner width (elements)."""
    active, total = config.integer("num_experts_per_tok"), config.integer(experts_field)
    if active > total:
        raise config.error("num_experts_per_tok", f"at most {experts_field} ({total})")
    return Moe(
        config.integer("hidden_size"),
        d_expert=config.integer(width_field),
        num_experts=total,
        experts_per_token=active,
        d_shared=d_shared,
        shared_gate=shared_gate,
        gated=gated,
        d_latent=d_latent,
    )


def alternate(mixers: Sequence[LayerKind], feed_forwards: Sequence[LayerKind]) -> list[LayerKind]:
    """Each mixer followed by its feed-forward layer."""
    return [layer for pair in zip(mixers, feed_forwards, strict=True) for layer in pair]
