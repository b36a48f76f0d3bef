"""What a wrong checkpoint says, before anything of it has been packed."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hybridcache.kernels.packed import PackedBatch
from hybridcache.kernels.reference import ReferenceOps
from hybridcache.models.load import LoadedModel, load_model
from hybridcache.served_model import model_length
from tests.hybrid_runs import Memory, Part, run

Folder = Callable[..., Path]


class NoPacking(ReferenceOps):
    """A backend for checkpoints that must be refused before a weight is packed."""

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
        raise AssertionError("a weight was packed")


@pytest.fixture
def folder(checkpoint: Callable[[str], Path], tmp_path: Path) -> Folder:
    """Calling it gives a copy of a family's tiny checkpoint with config fields changed (None: removed)."""

    def copy(family: str, **fields: object) -> Path:
        target = tmp_path / family
        shutil.copytree(checkpoint(family), target)
        config = json.loads((target / "config.json").read_text())
        config.update(fields)
        config = {name: value for name, value in config.items() if value is not None}
        (target / "config.json").write_text(json.dumps(config))
        return target

    return copy


def refuses(path: Path, *words: str, **settings: Any) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        load_model(path, ops=NoPacking(), **settings)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def change_weights(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    weights = {name: tensor.clone() for name, tensor in load_file(path / "model.safetensors").items()}
    change(weights)
    save_file(weights, path / "model.safetensors")


def test_missing_extra_and_misshaped_weights_are_all_named(folder: Folder) -> None:
    path = folder("bamba")

    def change(weights: dict[str, torch.Tensor]) -> None:
        del weights["model.layers.0.mamba.A_log"]
        weights["model.layers.0.mamba.E"] = torch.zeros(2)
        weights["model.layers.1.self_attn.k_proj.weight"] = torch.zeros(3, 64)

    change_weights(path, change)
    refuses(
        path,
        str(path),
        "missing: model.layers.0.mamba.A_log [8]",
        "extra: model.layers.0.mamba.E",
        "misshaped: model.layers.1.self_attn.k_proj.weight is [3, 64], not [32, 64]",
    )


def test_long_lists_of_weights_are_cut(folder: Folder) -> None:
    refuses(folder("bamba", num_hidden_layers=2, attn_layer_indices=[1]), "extra:", "more")


@pytest.mark.parametrize(
    ("family", "fields", "words"),
    [
        ("llama", {"model_type": "gpt2"}, ("model_type", "'gpt2'", "bamba")),
        ("llama", {"rope_parameters": {"rope_type": "dynamic"}}, ("rope_parameters", "dynamic")),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 0}}, ("rope_parameters", "factor")),
        (
            "llama",
            {"rope_parameters": None, "rope_scaling": {"type": "linear"}},
            ("rope_scaling", "'factor' is missing"),
        ),
        ("llama", {"rope_parameters": {"rope_theta": "x"}}, ("rope_theta", "'x'")),
        ("llama", {"rope_parameters": {"rope_theta": 0}}, ("rope_theta", "above 0")),
        ("llama", {"rope_parameters": None, "rope_theta": -5.0}, ("rope_theta", "-5.0", "above 0")),
        ("llama", {"rms_norm_eps": -1e-5}, ("rms_norm_eps", "-1e-05", "at least 0")),
        ("llama", {"hidden_act": "gelu_new"}, ("hidden_act", "'gelu_new'", "'silu'")),
        ("llama", {"attention_bias": True}, ("missing", "layers.0.self_attn.q_proj.bias [64]")),
        ("llama", {"pretraining_tp": 2}, ("pretraining_tp", "2")),
        ("llama", {"quantization_config": {"quant_method": "fp8"}}, ("quantization_config", "fp8", "absent")),
        ("bamba", {"hidden_act": "relu"}, ("hidden_act", "'relu'")),
        ("bamba", {"time_step_limit": [1.0]}, ("time_step_limit", "[1.0]")),
        ("bamba", {"mamba_proj_bias": True}, ("missing", "layers.0.mamba.in_proj.bias")),
        ("bamba", {"rope_parameters": {"partial_rotary_factor": 1.5}}, ("partial_rotary_factor", "1.5")),
        ("granitemoehybrid", {"position_embedding_type": "alibi"}, ("position_embedding_type", "'alibi'")),
        ("granitemoehybrid", {"residual_multiplier": "x"}, ("residual_multiplier", "'x'")),
        ("granitemoehybrid", {"rms_norm_eps": True}, ("rms_norm_eps", "True")),
        ("nemotron_h", {"n_group": 3}, ("n_group", "3", "n_routed_experts (4)")),
        ("nemotron_h", {"n_group": 2, "topk_group": 3}, ("topk_group", "3")),
        ("nemotron_h", {"mlp_bias": True}, ("mlp_bias", "True")),
        ("nemotron_h", {"residual_in_fp32": True}, ("residual_in_fp32", "True")),
        ("nemotron_h", {"mamba_hidden_act": "gelu"}, ("mamba_hidden_act", "'gelu'")),
        ("mamba2", {"conv_kernel": 1}, ("conv_kernel", "1", "at least 2")),
        ("bamba", {"mamba_d_conv": 1}, ("mamba_d_conv", "1", "at least 2")),
        ("qwen3_next", {"linear_conv_kernel_dim": 1}, ("linear_conv_kernel_dim", "1", "at least 2")),
        ("mamba2", {"vocab_size": 77}, ("misshaped", "backbone.embeddings.weight", "[77, 64]")),
    ],
)
def test_unsupported_options(
    family: str, fields: dict[str, object], words: tuple[str, ...], folder: Folder
) -> None:
    refuses(folder(family, **fields), *words)


def test_a_kind_of_layer_that_the_family_lacks(folder: Folder) -> None:
    refuses(
        folder("llama", layer_types=["full_attention", "mamba", "full_attention"]), "layer_types", "'mamba'"
    )


def test_unknown_dtype(folder: Folder) -> None:
    refuses(folder("llama"), "'int8'", "float32", dtype="int8")


def test_no_weights(folder: Folder) -> None:
    path = folder("llama")
    (path / "model.safetensors").unlink()
    refuses(path, str(path), "model.safetensors.index.json")


def test_files_that_are_cut_off(folder: Folder) -> None:
    path = folder("llama")
    file = path / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-8])
    refuses(path, str(file), "cut off")
    file.write_bytes(content[:100])
    refuses(path, str(file), "cut off")
    file.write_bytes(content[:8] + b"x" * (len(content) - 8))
    refuses(path, str(file), "header")
    file.write_bytes(b"abc")
    refuses(path, str(file), "cut off")
    nested = b"[" * 100_000
    file.write_bytes(len(nested).to_bytes(8, "little") + nested)
    refuses(path, str(file), "header")


def test_tensors_that_overlap(folder: Folder) -> None:
    """One tensor's bytes would be read as another's."""
    path = folder("llama")
    file = path / "model.safetensors"
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    first, second = (f"model.layers.0.self_attn.{name}_proj.weight" for name in "kv")
    header[second]["data_offsets"] = header[first]["data_offsets"]
    raw = json.dumps(header).encode()
    file.write_bytes(len(raw).to_bytes(8, "little") + raw + content[8 + size :])
    refuses(path, str(file), first, second, "overlap")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["{", "{}", "[]", "\xe9"])
def test_a_damaged_tokenizer(
    checkpoint: Callable[[str], Path], folder: Folder, name: str, content: str
) -> None:
    path = folder("llama")
    if name == "tokenizer_config.json" and content == "{}":
        return  # every field of it may be left out
    (path / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}: its tokenizer cannot be loaded"):
        load_model(path, ops=ReferenceOps())


def test_an_end_token_that_never_comes_is_told(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    path = folder("llama")
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 10**6]}))
    load_model(path, ops=ReferenceOps())
    (record,) = caplog.records
    assert "eos_token_id 1000000 never comes" in record.getMessage()


def test_weights_that_are_no_floats(folder: Folder) -> None:
    path = folder("llama")
    change_weights(
        path, lambda weights: weights.update({"model.norm.weight": torch.zeros(64, dtype=torch.int8)})
    )
    refuses(path, "model.norm.weight", "I8", "BF16")


def test_an_index_that_lies(folder: Folder) -> None:
    path = folder("llama")
    names = list(load_file(path / "model.safetensors"))
    index = path / "model.safetensors.index.json"

    def write(weight_map: object) -> None:
        index.write_text(json.dumps({"weight_map": weight_map}))

    (path / "model.safetensors").rename(path / "model-1.safetensors")
    write({**dict.fromkeys(names, "model-1.safetensors"), "model.more.weight": "model-1.safetensors"})
    refuses(path, str(index), "model.more.weight")
    write(dict.fromkeys(names, "model-2.safetensors"))
    refuses(path, "model-2.safetensors", "cannot be read")
    write(dict.fromkeys(names, "../model-1.safetensors"))
    refuses(path, str(index), "../model-1.safetensors")
    write([])
    refuses(path, str(index), "weight_map")
    shutil.copy(path / "model-1.safetensors", path / "model-2.safetensors")
    write({**dict.fromkeys(names, "model-1.safetensors"), names[0]: "model-2.safetensors"})
    refuses(path, "is in", "model-2.safetensors")


def test_a_damaged_generation_config(folder: Folder) -> None:
    path = folder("llama")
    file = path / "generation_config.json"
    file.write_text(json.dumps({"eos_token_id": "stop"}))
    refuses(path, str(file), "eos_token_id", "'stop'")
    file.write_text("{")
    refuses(path, str(file), "JSON")
    file.write_text("[" * 100_000)
    refuses(path, str(file), "JSON")
    file.write_text("[]")
    refuses(path, str(file), "list")
    for field, value in (
        ("temperature", -1.0), ("top_p", 0.0), ("top_p", 1.5), ("min_p", 2.0), ("repetition_penalty", 0.0),
    ):  # fmt: skip
        file.write_text(json.dumps({"do_sample": True, field: value}))
        refuses(path, str(file), field, str(value))


def test_a_batch_that_does_not_fit(loaded: Callable[..., LoadedModel]) -> None:
    ours = loaded("llama", "reference")
    memory = Memory(ours.spec)
    with pytest.raises(ValueError, match=r"token_ids has values from 5 to 4096"):
        run(ours, memory, Part(torch.tensor([5, 4096]), blocks=(0,)))
    batch = PackedBatch.build([1], block_tables=[[0]])
    token, row = torch.tensor([1]), torch.tensor([0])
    with pytest.raises(ValueError, match="2 layers; the model has 6"):
        ours.model.forward(token, batch, memory.states[:2], row)
    with pytest.raises(ValueError, match=r"shape \[2\] for a batch of 1"):
        ours.model.forward(token.repeat(2), batch, memory.states, row)
    with pytest.raises(ValueError, match=r"logits_at has values from 1 to 1"):
        ours.model.forward(token, batch, memory.states, row + 1)
    assert all(view.isnan().all() for views in memory.states for view in views.values())


def test_a_length_that_leaves_room_for_no_answer(folder: Folder) -> None:
    path = folder("llama", max_position_embeddings=1)
    with pytest.raises(ValueError, match="'max_position_embeddings' is 1; it must be at least 2"):
        model_length(path, None)
