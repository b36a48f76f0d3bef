"""ModelSpec.from_hf: what is wrong with a config is said by file, field and value."""

import json
from pathlib import Path

import pytest

from hybridcache.spec import ModelSpec

DATA = Path(__file__).parent / "test_hf_config_data"


def load(name: str) -> dict[str, object]:
    """The fields of a config that decide bytes and FLOPs."""
    fields = json.loads((DATA / f"{name}.json").read_text())
    assert isinstance(fields, dict)
    return fields


JAMBA = load("jamba_1_5_mini")
BAMBA = load("bamba_9b")
GRANITE = load("granite_4_h_small")
NEMOTRON = load("nemotron_h_8b")
QWEN = load("qwen3_next_80b")
ZAMBA = load("small_zamba2")
LLAMA = load("small_llama")
MAMBA = load("small_mamba")
MAMBA2 = load("small_mamba2")


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"gone: cannot be read \(No such file"):
        ModelSpec.from_hf(tmp_path / "gone")
    with pytest.raises(ValueError, match=r"config\.json: cannot be read"):
        ModelSpec.from_hf(tmp_path)
    path = tmp_path / "config.json"
    path.write_text('{"model_type": ')
    with pytest.raises(ValueError, match=r"config\.json: no JSON text"):
        ModelSpec.from_hf(tmp_path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"config\.json: no JSON text"):
        ModelSpec.from_hf(tmp_path)
    path.write_text("[1]")
    with pytest.raises(ValueError, match=r"config\.json: a JSON list"):
        ModelSpec.from_hf(tmp_path)
    path.write_text(json.dumps({**LLAMA, "hidden_size": "64"}))
    with pytest.raises(ValueError, match=r"config\.json: field 'hidden_size' is '64'; it must be an integer"):
        ModelSpec.from_hf(tmp_path)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (LLAMA, {"model_type": "gpt2"}, "'model_type' is 'gpt2'; it must be one of jamba, bamba"),
        (LLAMA, {"model_type": ["llama"]}, r"'model_type' is \['llama'\]"),
        (LLAMA, {"num_hidden_layers": 0}, "'num_hidden_layers' is 0"),
        (LLAMA, {"num_attention_heads": 5}, r"'num_attention_heads' is 5; .* divisor of hidden_size \(64\)"),
        (LLAMA, {"num_key_value_heads": 3}, r"'num_key_value_heads' is 3; .* num_attention_heads \(4\)"),
        (
            LLAMA,
            {"layer_types": ["sliding_attention"] * 3},
            "'sliding_window' is missing; .* sliding_attention",
        ),
        (LLAMA, {"layer_types": ["full_attention"] * 2}, "2 layers, num_hidden_layers is 3; they must agree"),
        (
            LLAMA,
            {"layer_types": ["conv"] * 3},
            "layer 0 of type 'conv'; supported are attention, full_attention",
        ),
        (LLAMA, {"layer_types": 3}, "'layer_types' is 3; it must be a list"),
        (LLAMA, {"use_sliding_window": 1, "sliding_window": 8}, "'use_sliding_window' is 1; it must be true"),
        (LLAMA, {"torch_dtype": "fp8"}, "'torch_dtype': dtype 'fp8' is unknown"),
        (LLAMA, {"dtype": 16}, "'dtype' is 16; it must be a text"),
        (NEMOTRON, {"hybrid_override_pattern": "M-X" + "-" * 49}, "layer 2 of type 'X'; supported are"),
        (NEMOTRON, {"hybrid_override_pattern": None}, "'hybrid_override_pattern' is None"),
        (NEMOTRON, {"n_groups": 7}, r"'n_groups' is 7; it must be a divisor of mamba_num_heads \(128\)"),
        (GRANITE, {"layer_types": None}, "'layer_types' is None; it must be a list of mamba"),
        (GRANITE, {"num_experts_per_tok": 80}, r"is 80; it must be at most num_local_experts \(72\)"),
        (BAMBA, {"attn_layer_indices": [9, 32]}, r"indices below num_hidden_layers \(32\)"),
        (BAMBA, {"attn_layer_indices": "9"}, "'attn_layer_indices' is '9'; it must be a list"),
        (
            BAMBA,
            {"mamba_d_head": 32},
            "'mamba_n_heads' is 128 and 'mamba_d_head' is 32; .* inner width, 8192",
        ),
        (
            JAMBA,
            {"attn_layer_offset": 8},
            r"'attn_layer_offset' is 8; .* smaller than attn_layer_period \(8\)",
        ),
        (QWEN, {"linear_num_key_heads": 5}, r"divisor of linear_num_value_heads \(32\)"),
        (ZAMBA, {"layers_block_type": ["attention"] * 5}, "layer 0 of type 'attention'; supported are mamba"),
        (MAMBA, {"state_size": 1.5}, "'state_size' is 1.5"),
    ],
)
def test_bad_fields_are_named(config: dict[str, object], changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelSpec.from_hf({**config, **changes})


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (LLAMA, "model_type"),
        (LLAMA, "intermediate_size"),
        (JAMBA, "num_hidden_layers"),
        (BAMBA, "mamba_n_heads"),
        (GRANITE, "shared_intermediate_size"),
        (NEMOTRON, "mamba_head_dim"),
        (QWEN, "moe_intermediate_size"),
        (ZAMBA, "layers_block_type"),
        (MAMBA2, "num_heads"),
        (LLAMA, "vocab_size"),
    ],
)
def test_missing_fields_are_named(config: dict[str, object], field: str) -> None:
    with pytest.raises(ValueError, match=f"config: field '{field}' is missing; it must be"):
        ModelSpec.from_hf({key: value for key, value in config.items() if key != field})


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="dtype 'half' is unknown"):
        ModelSpec.from_hf(LLAMA, kv_dtype="half")
    with pytest.raises(ValueError, match="conv_width_stored is -1"):
        ModelSpec.from_hf(MAMBA, conv_width_stored=-1)
