"""Options that a family's tiny checkpoint does not use: the same logits, or an error that names the field."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from hybridcache.hf_config import HfConfig
from hybridcache.kernels.reference import ReferenceOps
from hybridcache.models.adapter import AdaptedLinear
from hybridcache.models.load import LoadedModel, load_model
from hybridcache.models.presets import write_checkpoint
from hybridcache.models.rope import longest_text
from hybridcache.models.shared_block import SharedBlockLayer
from tests.hybrid_runs import BLOCK_SIZE, Memory, Part, prompt_of, run

Edit = Callable[[dict[str, Any]], None]

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "bamba, groups": ("bamba", {"mamba_n_groups": 2}),
    "granitemoehybrid, groups": ("granitemoehybrid", {"mamba_n_groups": 4}),
    "mamba2, groups": ("mamba2", {"n_groups": 2}),
    "jamba, dense": ("jamba", {"num_experts": 1, "mamba_conv_bias": False, "mamba_proj_bias": True}),
    "jamba, tied": ("jamba", {"tie_word_embeddings": True, "num_experts_per_tok": 1}),
    "mamba, untied": ("mamba", {"tie_word_embeddings": False, "use_bias": True, "use_conv_bias": False}),
    "falcon_mamba, eps": ("falcon_mamba", {"mixer_rms_eps": 0.1, "tie_word_embeddings": False}),
    "falcon_h1, no norm": ("falcon_h1", {"mamba_rms_norm": False, "projectors_bias": True}),
    "falcon_h1, norm first": ("falcon_h1", {"mamba_norm_before_gate": True, "mamba_proj_bias": True}),
    "falcon_h1, biases": ("falcon_h1", {"attention_bias": True, "mlp_bias": True, "mamba_conv_bias": False}),
    "falcon_h1, plain": (
        "falcon_h1",
        {
            "lm_head_multiplier": 1.0,
            "embedding_multiplier": 1.0,
            "mlp_multipliers": None,
            "key_multiplier": 1.0,
            "attention_in_multiplier": 1.0,
            "attention_out_multiplier": 1.0,
            "ssm_multipliers": None,
            "ssm_in_multiplier": 1.0,
            "ssm_out_multiplier": 1.0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        },
    ),
    "zamba2, MLP adapters only": ("zamba2", {"use_shared_attention_adapter": False, "use_mem_rope": False}),
    "zamba2, one block": ("zamba2", {"num_mem_blocks": 1, "add_bias_linear": True, "time_step_min": 0.05}),
    "qwen3_next, shares as they are": ("qwen3_next", {"norm_topk_prob": False, "attention_bias": True}),
    "qwen3_next, dense": ("qwen3_next", {"num_experts": 0, "tie_word_embeddings": True}),
    "qwen3_next, wide rope": (
        "qwen3_next",
        {
            "linear_num_key_heads": 4,
            "decoder_sparse_step": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
        },
    ),
    "llama, positions scaled as llama3": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "qwen3_next, yarn": (
        "qwen3_next",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
            }
        },
    ),
    "bamba, positions scaled": (
        "bamba",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    ),
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def load(folder: Path) -> LoadedModel:
    return load_model(folder, ops=ReferenceOps(), name="variant")


def edited(folder: Path, **fields: Any) -> Path:
    """`folder` with other fields in its config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return folder


@pytest.mark.parametrize(("family", "fields"), VARIANTS.values(), ids=VARIANTS)
def test_logits_are_those_of_transformers(
    family: str, fields: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    import transformers
    from transformers import AutoModelForCausalLM

    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if "groups" in request.node.callspec.id and version < (5, 24):
        pytest.skip("this transformers takes the gated norm over all groups together")
    folder = write_checkpoint(family, tmp_path, seed=2, vocab_size=320, **fields)
    ours = load(folder)
    tokens = prompt_of(ours.spec, 37)
    with torch.inference_mode():
        wanted = AutoModelForCausalLM.from_pretrained(folder).eval()(tokens[None], use_cache=False).logits[0]
    blocks = range(-(-len(tokens) // BLOCK_SIZE))
    (got,) = run(ours, Memory(ours.spec), Part(tokens, blocks=blocks))
    assert float(wanted.abs().max()) > 2
    assert float((got - wanted).abs().max()) < 1e-4


@pytest.mark.parametrize(
    ("family", "fields", "error"),
    [
        ("jamba", {"hidden_act": "gelu"}, "'hidden_act' is 'gelu'; it must be 'silu'"),
        (
            "falcon_h1",
            {"ssm_multipliers": [1.0, 2.0]},
            "'ssm_multipliers' is .*; it must be a list of 5 numbers",
        ),
        (
            "falcon_h1",
            {"mlp_multipliers": [1.0, "x"]},
            "'mlp_multipliers' is .*; it must be a list of 2 numbers",
        ),
        ("zamba2", {"use_long_context": True}, "'use_long_context' is True; it must be false"),
        ("zamba2", {"hidden_act": "tanh"}, "'hidden_act' is 'tanh'; it must be 'silu' or 'gelu'"),
        (
            "qwen3_next",
            {"rope_parameters": {"rope_type": "longrope"}},
            "rope_type 'longrope'; supported are 'default', 'linear', 'llama3', 'yarn'",
        ),
        ("qwen3_next", {"attention_bias": True}, r"missing: model.layers.2.self_attn.q_proj.bias \[256\]"),
        ("jamba", {"num_experts": 3}, "extra: model.layers.1.feed_forward.experts.3.down_proj.weight"),
        (
            "zamba2",
            {"adapter_rank": 9},
            r"misshaped: .*adapter_list.0.0.weight is \[8, 128\], not \[9, 128\]",
        ),
    ],
)
def test_errors_name_field_or_weight(family: str, fields: dict[str, Any], error: str, tmp_path: Path) -> None:
    folder = edited(write_checkpoint(family, tmp_path, vocab_size=320), **fields)
    with pytest.raises(ValueError, match=error):
        load(folder)


def test_calls_of_a_shared_block_share_the_packed_matrices(tmp_path: Path) -> None:
    layers = load(write_checkpoint("zamba2", tmp_path, vocab_size=320)).model.layers
    first, second, third = (layer for layer in layers if isinstance(layer, SharedBlockLayer))
    matrices = []
    for call in (first, second, third):
        into, qkv = getattr(call.mlp, "into"), getattr(call.attention, "qkv")  # noqa: B009
        assert isinstance(into, AdaptedLinear)
        assert isinstance(qkv, AdaptedLinear)
        matrices.append((into, qkv, getattr(call.mlp, "out"), getattr(call.attention, "out")))  # noqa: B009
    assert all(
        one.shared is other.shared for one, other in zip(matrices[0][:2], matrices[2][:2], strict=True)
    )
    assert all(one is other for one, other in zip(matrices[0][2:], matrices[2][2:], strict=True))
    assert matrices[0][0].shared is not matrices[1][0].shared
    assert matrices[0][0].down is not matrices[2][0].down
    assert first.linear is not third.linear


def test_older_names_of_weights_are_read(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = write_checkpoint("mamba", tmp_path, vocab_size=320)
    new = load(folder)
    weights = load_file(folder / "model.safetensors")
    weights["backbone.embedding.weight"] = weights.pop("backbone.embeddings.weight")
    save_file(weights, folder / "model.safetensors")
    old = load(folder)
    tokens = prompt_of(new.spec, 9)
    assert torch.equal(*(run(model, Memory(model.spec), Part(tokens))[0] for model in (new, old)))


def test_the_multiplier_vector_of_older_falcon_checkpoints_is_ignored(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = write_checkpoint("falcon_h1", tmp_path, vocab_size=320)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.mamba.mup_vector"] = torch.ones(1, 1, 262)
    save_file(weights, folder / "model.safetensors")
    assert load(folder).spec.num_layers == {"parallel": 3, "mlp": 3}


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, None),
        ({"max_position_embeddings": 4_096}, 4_096),
        ({"max_position_embeddings": 4_096, "rope_parameters": {"rope_type": "default"}}, 4_096),
        # As YaRN is added by hand: the other fields stay.
        (
            {
                "max_position_embeddings": 4_096,
                "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4_096},
            },
            16_384,
        ),
        # As Llama 3.1 has it: the config states the scaled length.
        (
            {
                "max_position_embeddings": 131_072,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "original_max_position_embeddings": 8_192,
                },
            },
            131_072,
        ),
    ],
)
def test_positions_reach_as_far_as_their_scaling(fields: dict[str, Any], tokens: int | None) -> None:
    assert longest_text(HfConfig.read(fields)) == tokens
