"""Small configs of every supported family, as the keyword arguments of transformers' config classes.

Each uses what makes its family special at least once: multipliers other than 1, both kinds of layers, odd
group counts, more experts than a token uses.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from hybridcache.models.chat_tokens import VOCAB_SIZE

Fields = Mapping[str, Any]

_COMMON: Final[dict[str, Any]] = {
    "vocab_size": VOCAB_SIZE,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_BAMBA_MIXER: Final[dict[str, Any]] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    # transformers before 5.24 takes the gated norm of this mixer over all groups together.
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
_ATTENTION: Final[dict[str, Any]] = {"num_attention_heads": 4, "num_key_value_heads": 2}

TINY_CONFIGS: Final[Mapping[str, Fields]] = MappingProxyType(
    {
        "jamba": _COMMON
        | _ATTENTION
        | {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 5,
            "attn_layer_period": 4,
            "attn_layer_offset": 2,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "mamba_d_state": 8,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_dt_rank": 6,
        },
        "bamba": _COMMON
        | _ATTENTION
        | _BAMBA_MIXER
        | {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 4,
            "attn_layer_indices": [1, 3],
        },
        "granitemoehybrid": _COMMON
        | _ATTENTION
        | _BAMBA_MIXER
        | {
            "hidden_size": 64,
            "intermediate_size": 48,
            "shared_intermediate_size": 96,
            "num_hidden_layers": 4,
            "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "embedding_multiplier": 6.0,
            "logits_scaling": 4.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
            "position_embedding_type": "rope",
        },
        "nemotron_h": _COMMON
        | _ATTENTION
        | {
            "hidden_size": 64,
            "intermediate_size": 96,
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe", "linear_attention"],
            "head_dim": 16,
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "ssm_state_size": 16,
            "n_groups": 2,
            "conv_kernel": 4,
            "expand": 2,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "moe_shared_expert_intermediate_size": 64,
            "routed_scaling_factor": 1.5,
        },
        "falcon_h1": _COMMON
        | _ATTENTION
        | {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "head_dim": 16,
            "mamba_d_ssm": 96,
            "mamba_n_heads": 6,
            "mamba_d_head": 16,
            "mamba_n_groups": 2,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "lm_head_multiplier": 0.25,
            "embedding_multiplier": 4.0,
            "mlp_multipliers": [0.8, 0.6],
            "key_multiplier": 0.5,
            "attention_in_multiplier": 0.9,
            "attention_out_multiplier": 0.7,
            "ssm_multipliers": [0.6, 0.9, 0.8, 1.2, 0.7],
            "ssm_in_multiplier": 1.1,
            "ssm_out_multiplier": 0.75,
        },
        "zamba2": _COMMON
        | {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 6,
            "layers_block_type": [
                "linear_attention",
                "hybrid",
                "linear_attention",
                "hybrid",
                "hybrid",
                "linear_attention",
            ],
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "n_mamba_heads": 8,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_ngroups": 2,
            "num_mem_blocks": 2,
            "adapter_rank": 8,
            "use_shared_attention_adapter": True,
            "use_mem_rope": True,
        },
        "qwen3_next": _COMMON
        | {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 4,
            "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 24,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "moe_intermediate_size": 48,
            "shared_expert_intermediate_size": 48,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "mlp_only_layers": [1],
        },
        "mamba2": _COMMON
        | {
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_heads": 8,
            "head_dim": 16,
            "state_size": 16,
            "n_groups": 1,
            "conv_kernel": 4,
            "expand": 2,
        },
        "mamba": _COMMON | {"hidden_size": 64, "num_hidden_layers": 3, "state_size": 8, "conv_kernel": 4},
        "falcon_mamba": _COMMON
        | {"hidden_size": 64, "num_hidden_layers": 3, "state_size": 8, "conv_kernel": 4},
        "llama": _COMMON
        | _ATTENTION
        | {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "max_position_embeddings": 4096,
        },
    }
)
"""Per model_type of transformers: dimensions in elements; a few hundred thousand parameters each."""
