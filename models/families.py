"""The families that are served, by model_type."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from hybridcache.hf_config import HfConfig
from hybridcache.models.attention import granite_attention, plain_attention, rotary_attention
from hybridcache.models.family import Family, Place, one_each
from hybridcache.models.mamba2 import mamba2_mixer, nemotron_mamba2
from hybridcache.models.mlp import dense
from hybridcache.models.moe import granite_moe, nemotron_moe

_bamba_mamba2 = partial(
    mamba2_mixer, eps="rms_norm_eps", conv_bias="mamba_conv_bias", proj_bias="mamba_proj_bias"
)
_OLD_BUFFERS = (r"\.rotary_emb\.inv_freq$",)

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
            blocks=one_each,
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
            blocks=one_each,
            eps="layer_norm_epsilon",
            default_eps=1e-5,
            wide_residual="residual_in_fp32",
            wide_residual_default=True,
        ),
    }
)


def family_of(config: HfConfig) -> Family:
    """The row of the config's `model_type`. Raises ValueError naming it and the supported ones."""
    name = config.fields.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise config.error("model_type", f"one of {', '.join(FAMILIES)}")
    return FAMILIES[name]
