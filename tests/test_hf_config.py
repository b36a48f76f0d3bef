"""ModelSpec.from_hf: published configs give the geometries of conf/model/, bad ones name the field."""

import json
from pathlib import Path

import pytest
import yaml

from hybridcache.layers import Attention, GatedDelta, Mamba1, Mamba2, Mlp, Moe, SharedBlock
from hybridcache.spec import ModelSpec

CONF = Path(__file__).parents[1] / "conf" / "model"

# The fields of the published config.json files that decide bytes and FLOPs.
JAMBA: dict[str, object] = {
    "model_type": "jamba",
    "attn_layer_offset": 4,
    "attn_layer_period": 8,
    "expert_layer_offset": 1,
    "expert_layer_period": 2,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "mamba_d_conv": 4,
    "mamba_d_state": 16,
    "mamba_dt_rank": 256,
    "mamba_expand": 2,
    "num_attention_heads": 32,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
    "vocab_size": 65536,
}
BAMBA: dict[str, object] = {
    "model_type": "bamba",
    "attn_layer_indices": [9, 18, 27],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "mamba_d_conv": 4,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 128,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
GRANITE: dict[str, object] = {
    "model_type": "granitemoehybrid",
    "hidden_size": 4096,
    "intermediate_size": 768,
    "layer_types": (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4,
    "mamba_d_conv": 4,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 128,
    "num_attention_heads": 32,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "num_local_experts": 72,
    "shared_intermediate_size": 1536,
    "vocab_size": 100352,
}
NEMOTRON: dict[str, object] = {
    "model_type": "nemotron_h",
    "attention_head_dim": 128,
    "conv_kernel": 4,
    "hidden_size": 4096,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "intermediate_size": 21504,
    "mamba_head_dim": 64,
    "mamba_num_heads": 128,
    "n_groups": 8,
    "num_attention_heads": 32,
    "num_hidden_layers": 52,
    "num_key_value_heads": 8,
    "ssm_state_size": 128,
    "vocab_size": 131072,
}
FALCON: dict[str, object] = {
    "model_type": "falcon_h1",
    "attn_layer_indices": None,
    "head_dim": 128,
    "hidden_size": 3072,
    "intermediate_size": 12288,
    "mamba_d_conv": 4,
    "mamba_d_head": 128,
    "mamba_d_ssm": 3072,
    "mamba_d_state": 256,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 24,
    "num_attention_heads": 12,
    "num_hidden_layers": 44,
    "num_key_value_heads": 2,
    "vocab_size": 130049,
}
QWEN: dict[str, object] = {
    "model_type": "qwen3_next",
    "decoder_sparse_step": 1,
    "dtype": "bfloat16",
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "mlp_only_layers": [],
    "moe_intermediate_size": 512,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 512,
    "vocab_size": 151936,
}
PUBLISHED = {
    "jamba_1_5_mini": JAMBA,
    "bamba_9b": BAMBA,
    "granite_4_h_small": GRANITE,
    "nemotron_h_8b": NEMOTRON,
    "falcon_h1_7b": FALCON,
    "qwen3_next_80b": QWEN,
}
ZAMBA: dict[str, object] = {
    "model_type": "zamba2",
    "adapter_rank": 16,
    "attention_head_dim": 32,
    "hidden_size": 64,
    "intermediate_size": 256,
    "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "hybrid"],
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "mamba_headdim": 32,
    "mamba_ngroups": 1,
    "n_mamba_heads": 4,
    "num_attention_heads": 4,
    "num_hidden_layers": 5,
    "num_mem_blocks": 2,
    "vocab_size": 100,
}
LLAMA: dict[str, object] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "vocab_size": 100,
}
MAMBA: dict[str, object] = {
    "model_type": "mamba",
    "conv_kernel": 4,
    "expand": 2,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "state_size": 16,
    "time_step_rank": "auto",
    "vocab_size": 100,
}
MAMBA2: dict[str, object] = {
    "model_type": "mamba2",
    "conv_kernel": 4,
    "expand": 2,
    "head_dim": 16,
    "hidden_size": 64,
    "n_groups": 2,
    "num_heads": 8,
    "num_hidden_layers": 3,
    "state_size": 16,
    "vocab_size": 100,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_the_geometries(name: str) -> None:
    spec = ModelSpec.from_hf(PUBLISHED[name], name=name)
    geometry = ModelSpec.from_config(yaml.safe_load((CONF / f"{name}.yaml").read_text()))
    assert spec.kv_bytes_per_token == geometry.kv_bytes_per_token
    assert spec.checkpoint_bytes == geometry.checkpoint_bytes
    assert spec.head_flops == geometry.head_flops
    for start, stop in ((0, 1), (0, 1000), (777, 30_000)):
        assert spec.flops(start, stop) == geometry.flops(start, stop)
    assert spec == geometry
    assert spec.fingerprint == geometry.fingerprint


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (JAMBA, {"layers_block_type": (["mamba"] * 4 + ["attention"] + ["mamba"] * 3) * 4}),
        (BAMBA, {"attn_layer_indices": None, "layer_types": None, "mamba_d_head": "auto"}),
        (
            GRANITE,
            {"layer_types": (["linear_attention"] * 5 + ["full_attention"] + ["linear_attention"] * 4) * 4},
        ),
        (NEMOTRON, {"attention_head_dim": None, "head_dim": 128}),
        (FALCON, {"mamba_d_head": "auto"}),
        (QWEN, {"layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12}),
    ],
)
def test_older_and_newer_fields_say_the_same(config: dict[str, object], changes: dict[str, object]) -> None:
    if config is BAMBA:
        kinds = ["full_attention" if i in (9, 18, 27) else "linear_attention" for i in range(32)]
        changes = {**changes, "layers_block_type": kinds}
    assert ModelSpec.from_hf({**config, **changes}).layers == ModelSpec.from_hf(config).layers


def test_nemotron_lists_and_patterns_say_the_same() -> None:
    words = {"M": "linear_attention", "-": "mlp", "*": "full_attention"}
    listed = {key: value for key, value in NEMOTRON.items() if key != "hybrid_override_pattern"}
    listed["layers_block_type"] = [words[letter] for letter in str(NEMOTRON["hybrid_override_pattern"])]
    assert ModelSpec.from_hf(listed).layers == ModelSpec.from_hf(NEMOTRON).layers


def test_nemotron_experts() -> None:
    changes = {
        "hybrid_override_pattern": "ME*",
        "num_hidden_layers": 3,
        "moe_intermediate_size": 100,
        "moe_latent_size": 64,
        "moe_shared_expert_intermediate_size": 200,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
    }
    layers = ModelSpec.from_hf({**NEMOTRON, **changes}).layers
    assert layers[1] == Moe(4096, 100, 8, 2, d_shared=200, gated=False, d_latent=64)


def test_granite_without_experts_or_mamba() -> None:
    dense = {**GRANITE, "num_local_experts": 0, "num_experts_per_tok": 0, "mamba_d_head": 63}
    spec = ModelSpec.from_hf({**dense, "layer_types": ["attention"] * 40})
    assert spec.num_layers == {"attention": 40, "mlp": 40}
    assert spec.layers[1] == Mlp(4096, 1536)


def test_qwen_dense_layers() -> None:
    spec = ModelSpec.from_hf({**QWEN, "mlp_only_layers": [1], "decoder_sparse_step": 2})
    kinds = [layer.kind for layer in spec.layers[1::2]]
    assert kinds[:4] == ["mlp", "mlp", "mlp", "moe"]
    assert spec.layers[1] == Mlp(2048, 5120)
    assert isinstance(spec.layers[0], GatedDelta)
    attention = spec.layers[6]
    assert isinstance(attention, Attention)
    assert attention.gated


def test_zamba2_shares_weights_and_keeps_kv_for_each_call() -> None:
    spec = ModelSpec.from_hf(ZAMBA)
    assert spec.num_layers == {"mamba2": 5, "shared_block": 3}
    calls = [layer for layer in spec.layers if isinstance(layer, SharedBlock)]
    assert [call.block for call in calls] == [0, 1, 0]
    assert calls[0].attention == Attention(64, 4, 4, 32, input_width=128)
    assert spec.kv_bytes_per_token == 3 * 2 * 4 * 32 * 2
    assert spec.checkpoint_bytes == 5 * ((128 + 32) * 3 * 2 + 4 * 32 * 16 * 4)
    renamed = [
        "linear_attention" if kind == "mamba" else kind
        for kind in ("mamba", "hybrid", "mamba", "hybrid", "hybrid")
    ]
    assert ModelSpec.from_hf({**ZAMBA, "layers_block_type": renamed}).layers == spec.layers


def test_pure_mamba_families() -> None:
    mamba = ModelSpec.from_hf(MAMBA)
    assert (
        mamba.layers == (Mamba1(64, d_inner=128, d_state=16, dt_rank=4, d_conv=4, conv_width_stored=3),) * 3
    )
    assert mamba.kv_bytes_per_token == 0
    falcon = ModelSpec.from_hf({**MAMBA, "model_type": "falcon_mamba", "expand": 16, "intermediate_size": 96})
    assert falcon.layers[0] == Mamba1(64, d_inner=96, d_state=16, dt_rank=4, d_conv=4, conv_width_stored=3)
    mamba2 = ModelSpec.from_hf(MAMBA2)
    assert mamba2.layers == (Mamba2(64, 8, 16, 16, 2, d_conv=4, conv_width_stored=3),) * 3


def test_llama_full_and_sliding() -> None:
    dense = ModelSpec.from_hf(LLAMA)
    assert dense.layers[0] == Attention(64, 4, 4, 16)
    assert dense.num_layers == {"attention": 3, "mlp": 3}
    everywhere = ModelSpec.from_hf({**LLAMA, "sliding_window": 128})
    assert everywhere.layers[0] == Attention(64, 4, 4, 16, window=128)
    switched_off = ModelSpec.from_hf({**LLAMA, "sliding_window": 128, "use_sliding_window": False})
    assert switched_off.layers == dense.layers
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    mixed = ModelSpec.from_hf({**LLAMA, "sliding_window": 128, "layer_types": types})
    assert [layer.window for layer in mixed.layers if isinstance(layer, Attention)] == [128, None, 128]


def test_dtypes_come_from_the_config_and_can_be_overridden() -> None:
    layer = ModelSpec.from_hf({**MAMBA2, "dtype": "float32", "mamba_ssm_cache_dtype": "bfloat16"}).layers[0]
    assert isinstance(layer, Mamba2)
    assert (layer.ssm_dtype, layer.conv_dtype, layer.conv_width_stored) == ("bfloat16", "float32", 3)
    override = ModelSpec.from_hf(BAMBA, kv_dtype="float8_e4m3fn", ssm_dtype="bfloat16", conv_width_stored=4)
    assert override.kv_bytes_per_token == 3 * 2 * 8 * 128
    assert override.checkpoint_bytes == 29 * (8448 * 4 * 2 + 128 * 64 * 128 * 2)
    assert ModelSpec.from_hf({**LLAMA, "torch_dtype": "float32"}).kv_bytes_per_token == 3 * 2 * 4 * 16 * 4


def test_reads_a_file_or_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    from_folder, from_file = ModelSpec.from_hf(str(folder)), ModelSpec.from_hf(folder / "config.json")
    assert from_folder == from_file
    assert from_folder.name == "my-model"
    assert ModelSpec.from_hf(folder, name="other").name == "other"


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
