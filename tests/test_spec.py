"""ModelSpec: bytes and FLOPs of whole models, the fingerprint, and the geometries of conf/model/."""

import hashlib
import json
from pathlib import Path

import pytest
import yaml

from hybridcache.layers import Attention, Mamba2, Mlp
from hybridcache.spec import ModelSpec

CONF = Path(__file__).parents[1] / "conf" / "model"
NAMES = sorted(path.stem for path in CONF.glob("*.yaml"))


def geometry(name: str) -> ModelSpec:
    return ModelSpec.from_config(yaml.safe_load((CONF / f"{name}.yaml").read_text()))


def small(**changes: object) -> dict[str, object]:
    """A small valid geometry with `changes`."""
    layers: dict[str, object] = {
        "mixer": {"kind": "mamba2", "nheads": 8, "headdim": 32, "d_state": 32, "ngroups": 1, "d_conv": 4},
        "attention": {"kind": "attention", "num_heads": 4, "num_kv_heads": 2, "head_dim": 32},
        "mlp": {"kind": "mlp", "d_ff": 256},
    }
    pattern = [{"repeat": 2, "layers": ["mixer", "mlp"]}, "attention", "mlp"]
    base = {"name": "small", "d_model": 128, "vocab_size": 4096, "conv_width_stored": 3}
    return {**base, "layers": layers, "pattern": pattern, **changes}


# KV bytes a token and bytes a checkpoint, from the dimensions: layers x (K and V) x heads x head_dim x bytes;
# layers x (channels x stored inputs x bytes + state elements x bytes).
BYTES = {
    "nvidia_hybrid_7b": (4 * 2 * 32 * 128 * 2, 24 * (4096 * 128 * 2 + (2 * 4096 + 2 * 128) * 4 * 2)),
    "qwen3_next_80b_peers": (12 * 2 * 2 * 256 * 2, 36 * 32 * 128 * 128 * 2),
    "qwen3_next_80b": (12 * 2 * 2 * 256 * 2, 36 * (8192 * 3 * 2 + 32 * 128 * 128 * 4)),
    "jamba_1_5_mini": (4 * 2 * 8 * 128 * 2, 28 * (8192 * 3 * 2 + 8192 * 16 * 4)),
    "nemotron_h_8b": (4 * 2 * 8 * 128 * 2, 24 * (10240 * 3 * 2 + 128 * 64 * 128 * 4)),
    "granite_4_h_small": (4 * 2 * 8 * 128 * 2, 36 * (8448 * 3 * 2 + 128 * 64 * 128 * 4)),
    "bamba_9b": (3 * 2 * 8 * 128 * 2, 29 * (8448 * 3 * 2 + 128 * 64 * 128 * 4)),
    "falcon_h1_7b": (44 * 2 * 2 * 128 * 2, 44 * (3584 * 3 * 2 + 24 * 128 * 256 * 4)),
    "tiny": (2 * 2 * 2 * 32 * 4, 4 * (320 * 3 * 4 + 8 * 32 * 32 * 4)),
}


@pytest.mark.parametrize("name", NAMES)
def test_geometry_bytes(name: str) -> None:
    spec = geometry(name)
    assert (spec.name, (spec.kv_bytes_per_token, spec.checkpoint_bytes)) == (name, BYTES[name])


def test_geometry_bytes_that_others_rely_on() -> None:
    assert BYTES["nvidia_hybrid_7b"] == (65_536, 26_787_840)
    assert BYTES["qwen3_next_80b_peers"] == (24_576, 37_748_736)


def test_nvidia_hybrid_7b_counts_flops_as_the_paper_does() -> None:
    spec = geometry("nvidia_hybrid_7b")
    assert spec.num_layers == {"paper_ssm": 24, "mlp": 28, "attention": 4}
    d, n = 4096, 128
    for a, b in ((0, 1), (0, 1000), (1000, 5000), (12_345, 67_890)):
        length = b - a
        ssm = 24 * (12 * length * d * d + 16 * length * d * n + 10 * length * d)
        attention = 4 * (8 * length * d * d + 4 * (b * b - a * a) * d)
        mlp = 28 * 16 * length * d * d
        assert spec.flops(a, b) == ssm + attention + mlp
    # 24 x 209,756,160 + 4 x (134,217,728 + 16,384) + 28 x 268,435,456
    assert spec.prefix_flops(1) == 13_087_277_056


# Billions of weights a token is multiplied with, both embeddings included, as the projects publish them:
# all parameters of the dense models, the active ones of the mixtures.
@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("bamba_9b", 9.78),
        ("falcon_h1_7b", 7.59),
        ("nemotron_h_8b", 8.1),
        ("granite_4_h_small", 9.2),
        ("jamba_1_5_mini", 12.1),
        ("tiny", 0.00217),
    ],
)
def test_geometry_has_the_published_number_of_weights(name: str, billions: float) -> None:
    spec = geometry(name)
    terms = [term for layer in spec.layers for term in layer.flop_terms if term.name not in ("scan", "conv")]
    weights = sum(term.per_token for term in terms) / 2 + 2 * spec.d_model * spec.vocab_size
    assert weights / 1e9 == pytest.approx(billions, rel=0.01)


def test_geometry_layer_counts() -> None:
    counts = {name: geometry(name).num_layers for name in NAMES}
    assert counts["jamba_1_5_mini"] == {"mamba1": 28, "mlp": 16, "moe": 16, "attention": 4}
    assert counts["nemotron_h_8b"] == {"mamba2": 24, "mlp": 24, "attention": 4}
    assert counts["falcon_h1_7b"] == {"parallel": 44, "mlp": 44}
    assert counts["qwen3_next_80b"] == {"gated_delta": 36, "moe": 48, "attention": 12}
    letters = {"mamba2": "M", "mlp": "-", "attention": "*"}
    pattern = "".join(letters[layer.kind] for layer in geometry("nemotron_h_8b").layers)
    assert pattern == "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
    mixers = geometry("granite_4_h_small").layers[::2]
    assert [i for i, layer in enumerate(mixers) if layer.kind == "attention"] == [5, 15, 25, 35]


def test_dtypes_change_bytes_and_no_flops() -> None:
    wide = ModelSpec.from_config(small())
    narrow = ModelSpec.from_config(
        small(ssm_dtype="bfloat16", conv_dtype="float8_e4m3fn", kv_dtype="float8_e5m2")
    )
    assert wide.checkpoint_bytes == 2 * (320 * 3 * 2 + 8 * 32 * 32 * 4)
    assert narrow.checkpoint_bytes == 2 * (320 * 3 * 1 + 8 * 32 * 32 * 2)
    assert (wide.kv_bytes_per_token, narrow.kv_bytes_per_token) == (256, 128)
    assert wide.flops(3, 500) == narrow.flops(3, 500)
    assert wide.fingerprint != narrow.fingerprint


def test_models_without_one_kind_of_layer() -> None:
    recurrent = ModelSpec.from_config(small(pattern=["mixer", "mlp"]))
    assert recurrent.kv_bytes_per_token == 0
    assert recurrent.checkpoint_bytes > 0
    dense = ModelSpec.from_config(small(pattern=["attention", "mlp"]))
    assert dense.checkpoint_bytes == 0
    assert dense.kv_bytes_per_token == 256
    assert "= the KV of" not in recurrent.describe() + dense.describe()


def test_the_head_is_counted_apart() -> None:
    spec = geometry("tiny")
    assert spec.head_flops == 2 * 128 * 4096
    assert spec.prefix_flops(0) == 0
    assert spec.flops(0, 100) == spec.prefix_flops(100)
    assert spec.request_flops(100) - spec.prefix_flops(100) == spec.head_flops
    assert spec.request_flops(100, num_sampled=7) - spec.prefix_flops(100) == 7 * spec.head_flops


def test_fingerprint_is_the_hash_of_a_canonical_encoding() -> None:
    spec = ModelSpec("m", (Mlp(8, 20), Attention(8, 2, 1, 4, window=16)), d_model=8, vocab_size=11)
    mlp = {"kind": "mlp", "d_model": 8, "d_ff": 20, "gated": True}
    attention = {"kind": "attention", "d_model": 8, "num_heads": 2, "num_kv_heads": 1, "head_dim": 4}
    attention |= {
        "gated": False,
        "window": 16,
        "input_width": None,
        "full_square": False,
        "kv_dtype": "bfloat16",
    }
    text = json.dumps(["m", 8, 11, [mlp, attention]], sort_keys=True, separators=(",", ":"))
    assert spec.fingerprint == hashlib.sha256(text.encode()).hexdigest()


def test_fingerprints_tell_models_apart() -> None:
    assert len({geometry(name).fingerprint for name in NAMES}) == len(NAMES)
    assert geometry("tiny").fingerprint == geometry("tiny").fingerprint
    spec = ModelSpec("m", (Mlp(8, 20), Mlp(8, 30)), d_model=8, vocab_size=11)
    assert spec.fingerprint != ModelSpec("m", (Mlp(8, 30), Mlp(8, 20)), d_model=8, vocab_size=11).fingerprint


def test_texts_for_people() -> None:
    spec = geometry("nvidia_hybrid_7b")
    assert str(spec) == (
        "nvidia_hybrid_7b: 24 paper_ssm, 28 mlp, 4 attention; "
        "65,536 B of KV a token, 26,787,840 B a checkpoint"
    )
    text = spec.describe()
    assert "65,536 B/token" in text
    assert "= the KV of 409 tokens" in text


def test_a_pattern_may_nest_and_layers_may_be_parts() -> None:
    layers = small()["layers"]
    assert isinstance(layers, dict)
    layers |= {
        "both": {"kind": "parallel", "branches": ["attention", "mixer"]},
        "call": {"kind": "shared_block", "block": 1, "attention": "attention", "mlp": "mlp"},
    }
    pattern = [{"repeat": 2, "layers": ["both", {"repeat": 3, "layers": ["mlp"]}]}, "call"]
    spec = ModelSpec.from_config(small(layers=layers, pattern=pattern))
    assert [layer.kind for layer in spec.layers] == [*(["parallel"] + ["mlp"] * 3) * 2, "shared_block"]
    assert spec.kv_bytes_per_token == 3 * 256


def with_layer(name: str, **definition: object) -> dict[str, object]:
    layers = small()["layers"]
    assert isinstance(layers, dict)
    return small(layers={**layers, name: definition})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (small(name=""), "name is ''"),
        (small(width=3), r"'small': key 'width' is unknown; the keys are name"),
        (small(d_model="128"), "d_model is '128'; it must be an integer"),
        (small(vocab_size=0), "vocab_size is 0; it must be a positive integer"),
        (small(ssm_dtype="fp32"), "ssm_dtype: dtype 'fp32' is unknown; use one of float64"),
        (small(layers={}), "layers is {}"),
        (small(pattern=[]), r"pattern is \[\]; it must be a list"),
        (small(pattern="mlp"), "pattern is 'mlp'; it must be a list"),
        (small(pattern=["ssm"]), "pattern names 'ssm'; the layers are mixer, attention, mlp"),
        (small(pattern=[{"repeat": 0, "layers": ["mlp"]}]), "with N >= 1"),
        (small(pattern=[{"repeat": 2}]), "with N >= 1"),
        (
            with_layer("mixer", kind="mamba3"),
            "layer 'mixer' has kind 'mamba3'; the kinds are attention, mamba1",
        ),
        (with_layer("mlp", kind="mlp", d_ff=4, width=3), "layer 'mlp' has 'width'; the fields of mlp are"),
        (with_layer("mlp", kind="mlp"), "layer 'mlp' lacks d_ff"),
        (with_layer("mlp", kind="mlp", d_ff=0), "layer 'mlp': mlp: d_ff is 0"),
        (with_layer("mlp", kind="mlp", d_ff=4, gated="no"), "gated 'no'; it must be true or false"),
        (with_layer("both", kind="parallel", branches=["both"]), "contains itself through both -> both"),
        (
            with_layer("both", kind="parallel", branches=["nothing"]),
            "layer 'nothing' is None; the layers are",
        ),
        (with_layer("both", kind="parallel"), "layer 'both': branches is None"),
        (
            with_layer("call", kind="shared_block", block=0, attention="mlp", mlp="mlp"),
            "it must be 'attention'",
        ),
    ],
)
def test_bad_geometries_are_named(config: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelSpec.from_config(config)


def test_a_spec_needs_layers_and_known_dtypes() -> None:
    with pytest.raises(ValueError, match="'m' has no layers"):
        ModelSpec("m", (), d_model=8, vocab_size=11)
    layer = Mamba2(
        8, nheads=4, headdim=4, d_state=5, ngroups=2, d_conv=4, conv_width_stored=3, ssm_dtype="fp8"
    )
    with pytest.raises(ValueError, match="dtype 'fp8' is unknown"):
        ModelSpec("m", (layer,), d_model=8, vocab_size=11)
