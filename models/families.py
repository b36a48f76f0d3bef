"""The families that are served, by model_type."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from hybridcache.hf_config import HfConfig
from hybridcache.models.attention import (
    granite_attention,
    plain_attention,
    qwen_attention,
    rotary_attention,
)
from hybridcache.models.family import Family, Place, one_each, with_calls
from hybridcache.models.gated_delta import qwen_gated_delta
from hybridcache.models.mamba1 import InnerNorm, jamba_mamba1, mamba1_mixer
from hybridcache.models.mamba2 import mamba2_mixer, nemotron_mamba2, zamba_mamba2
from hybridcache.models.mlp import dense, falcon_dense
from hybridcache.models.moe import granite_moe, jamba_moe, nemotron_moe, qwen_moe
from hybridcache.models.parallel import falcon_parallel
from hybridcache.models.shared_block import zamba_shared_block

_bamba_mamba2 = partial(
    mamba2_mixer, eps="rms_norm_eps", conv_bias="mamba_conv_bias", proj_bias="mamba_proj_bias"
)
_OLD_BUFFERS = (r"\.rotary_emb\.inv_freq$",)


def _mamba(inner_norm: InnerNorm) -> Family:
    """Mamba-1 mixers only."""
    return Family(
        places={"mamba1": Place("mixer.", "norm.", partial(mamba1_mixer, inner_norm=inner_norm))},
        embedding="backbone.embeddings.weight",
        final_norm="backbone.norm_f.weight",
        block="backbone.layers.{}.",
        sites=one_each,
        eps="layer_norm_epsilon",
        default_eps=1e-5,
        tied_default=True,
        wide_residual="residual_in_fp32",
        wide_residual_default=True,
        renames=(("backbone.embedding.", "backbone.embeddings."),),
    )


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "bamba": Family(
            places={
                "mamba2": Place("mamba.", "input_layernorm.", _bamba_mamba2),
                # Half of each head is rotated, whatever older configs say in a field of their own.
                "attention": Place("self_attn.", "input_layernorm.", partial(rotary_attention, part=0.5)),
                "mlp": Place("feed_forward.", "pre_ff_layernorm.", dense),
            },
            final_norm="model.final_layernorm.weight",
            default_eps=1e-5,
            ignored=_OLD_BUFFERS,
        ),
        "granitemoehybrid": Family(
            places={
                "mamba2": Place("mamba.", "input_layernorm.", _bamba_mamba2),
                "attention": Place("self_attn.", "input_layernorm.", granite_attention),
                "mlp": Place(
                    "shared_mlp.",
                    "post_attention_layernorm.",
                    partial(dense, bias=None, joined=True),
                    {"gate_up_proj.": "input_linear.", "down_proj.": "output_linear."},
                ),
                "moe": Place(
                    "",
                    "post_attention_layernorm.",
                    granite_moe,
                    {
                        "router.": "block_sparse_moe.router.layer.",
                        "experts.gate_up": "block_sparse_moe.input_linear.weight",
                        "experts.down": "block_sparse_moe.output_linear.weight",
                        "shared.gate_up_proj.": "shared_mlp.input_linear.",
                        "shared.down_proj.": "shared_mlp.output_linear.",
                    },
                ),
            },
            embedding_multiplier="embedding_multiplier",
            residual_multiplier="residual_multiplier",
            head_divisor="logits_scaling",
            ignored=_OLD_BUFFERS,
        ),
        "nemotron_h": Family(
            places={
                "mamba2": Place("mixer.", "norm.", nemotron_mamba2),
                "attention": Place("mixer.", "norm.", partial(plain_attention, bias=None)),
                "mlp": Place("mixer.", "norm.", partial(dense, act="mlp_hidden_act", default="relu2")),
                "moe": Place(
                    "mixer.",
                    "norm.",
                    nemotron_moe,
                    {
                        "router.bias": "gate.e_score_correction_bias",
                        "router.": "gate.",
                        "shared.": "shared_experts.",
                        "latent_down.": "fc1_latent_proj.",
                        "latent_up.": "fc2_latent_proj.",
                    },
                ),
            },
            embedding="backbone.embeddings.weight",
            final_norm="backbone.norm_f.weight",
            block="backbone.layers.{}.",
            sites=one_each,
            eps="layer_norm_epsilon",
            default_eps=1e-5,
            ties=False,
            renames=(("model.", "backbone."),),
            ignored=(r"^mtp\.",),
            required={"attention_bias": (False,), "residual_in_fp32": (False,)},
        ),
        "llama": Family(
            places={
                "attention": Place("self_attn.", "input_layernorm.", rotary_attention),
                "mlp": Place("mlp.", "post_attention_layernorm.", dense),
            },
            required={"pretraining_tp": (1,)},
            ignored=_OLD_BUFFERS,
        ),
        "mamba2": Family(
            places={"mamba2": Place("mixer.", "norm.", partial(mamba2_mixer, eps="layer_norm_epsilon"))},
            embedding="backbone.embeddings.weight",
            final_norm="backbone.norm_f.weight",
            block="backbone.layers.{}.",
            sites=one_each,
            eps="layer_norm_epsilon",
            default_eps=1e-5,
            wide_residual="residual_in_fp32",
            wide_residual_default=True,
        ),
        "mamba": _mamba(InnerNorm.NONE),
        "falcon_mamba": _mamba(InnerNorm.PLAIN),
        "jamba": Family(
            places={
                "mamba1": Place("mamba.", "input_layernorm.", jamba_mamba1),
                "attention": Place("self_attn.", "input_layernorm.", partial(plain_attention, bias=None)),
                "mlp": Place("feed_forward.", "pre_ff_layernorm.", partial(dense, bias=None)),
                "moe": Place("feed_forward.", "pre_ff_layernorm.", jamba_moe),
            },
            final_norm="model.final_layernorm.weight",
        ),
        "falcon_h1": Family(
            places={
                "parallel": Place(
                    "",
                    "input_layernorm.",
                    falcon_parallel,
                    {"attention.": "self_attn.", "ssm.": "mamba."},
                ),
                "mlp": Place("feed_forward.", "pre_ff_layernorm.", falcon_dense),
            },
            final_norm="model.final_layernorm.weight",
            default_eps=1e-5,
            embedding_multiplier="embedding_multiplier",
            head_multiplier="lm_head_multiplier",
            ignored=(*_OLD_BUFFERS, r"\.mamba\.mup_vector$"),
        ),
        "zamba2": Family(
            places={
                "mamba2": Place("mamba.", "input_layernorm.", zamba_mamba2),
                "called": Place("mamba_decoder.mamba.", "mamba_decoder.input_layernorm.", zamba_mamba2),
                "shared_block": Place(
                    "",
                    None,
                    zamba_shared_block,
                    shared={
                        "shared.input_norm.": "shared_transformer.input_layernorm.",
                        "shared.attention.": "shared_transformer.self_attn.",
                        "shared.mlp_norm.": "shared_transformer.pre_ff_layernorm.",
                        "shared.mlp.": "shared_transformer.feed_forward.",
                        "adapter.q_proj.": "shared_transformer.self_attn.linear_q_adapter_list.{call}.",
                        "adapter.k_proj.": "shared_transformer.self_attn.linear_k_adapter_list.{call}.",
                        "adapter.v_proj.": "shared_transformer.self_attn.linear_v_adapter_list.{call}.",
                        "adapter.gate_up_proj.": (
                            "shared_transformer.feed_forward.gate_up_proj_adapter_list.{call}."
                        ),
                    },
                ),
            },
            final_norm="model.final_layernorm.weight",
            sites=with_calls,
            default_eps=1e-5,
            tied_default=True,
            ignored=_OLD_BUFFERS,
        ),
        "qwen3_next": Family(
            places={
                "gated_delta": Place("linear_attn.", "input_layernorm.", qwen_gated_delta),
                "attention": Place("self_attn.", "input_layernorm.", qwen_attention),
                "mlp": Place("mlp.", "post_attention_layernorm.", partial(dense, bias=None)),
                "moe": Place(
                    "mlp.",
                    "post_attention_layernorm.",
                    qwen_moe,
                    {"router.": "gate.", "shared.": "shared_expert.", "shared_gate.": "shared_expert_gate."},
                ),
            },
            unit_offset=True,
            ignored=(*_OLD_BUFFERS, r"^mtp\."),
        ),
    }
)


def family_of(config: HfConfig) -> Family:
    """The row of the config's `model_type`. Raises ValueError naming it and the supported ones."""
    name = config.fields.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise config.error("model_type", f"one of {', '.join(FAMILIES)}")
    return FAMILIES[name]
