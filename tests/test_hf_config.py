"""ModelSpec.from_hf: published configs give the geometries of conf/model/, small ones every family."""

import json
from pathlib import Path

import pytest
import yaml

from hybridcache.layers import Attention, GatedDelta, Mamba1, Mamba2, Mlp, Moe, SharedBlock
from hybridcache.spec import ModelSpec

CONF = Path(__file__).parents[1] / "conf" / "model"
DATA = Path(__file__).parent / "test_hf_config_data"
PUBLISHED = (
    "jamba_1_5_mini",
    "bamba_9b",
    "granite_4_h_small",
    "nemotron_h_8b",
    "falcon_h1_7b",
    "qwen3_next_80b",
)


def load(name: str) -> dict[str, object]:
    """The fields of a config that decide bytes and FLOPs."""
    fields = json.loads((DATA / f"{name}.json").read_text())
    assert isinstance(fields, dict)
    return fields


JAMBA = load("jamba_1_5_mini")
BAMBA = load("bamba_9b")
GRANITE = load("granite_4_h_small")
NEMOTRON = load("nemotron_h_8b")
FALCON = load("falcon_h1_7b")
QWEN = load("qwen3_next_80b")
ZAMBA = load("small_zamba2")
LLAMA = load("small_llama")
MAMBA = load("small_mamba")
MAMBA2 = load("small_mamba2")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_the_geometries(name: str) -> None:
    spec = ModelSpec.from_hf(DATA / f"{name}.json")
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
