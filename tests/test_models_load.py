"""Checkpoint folders: what comes with the weights, tied and renamed weights, memory."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hybridcache.hf_config import HfConfig
from hybridcache.kernels.reference import ReferenceOps
from hybridcache.models.generation import GenerationConfig
from hybridcache.models.load import LoadedModel, load_model
from hybridcache.models.presets import write_checkpoint
from hybridcache.models.safetensors_file import safetensors_entries
from hybridcache.sampling_params import SamplingParams
from hybridcache.served_model import default_params
from tests.hybrid_runs import Memory, Part, prompt_of, run


def logits(model: LoadedModel) -> torch.Tensor:
    (result,) = run(model, Memory(model.spec), Part(prompt_of(model.spec, 20), blocks=range(2)))
    return result


def test_tokenizer_and_stop_tokens_come_along(loaded: Callable[..., LoadedModel]) -> None:
    ours = loaded("bamba")
    assert ours.generation == GenerationConfig(eos_token_ids=(2,), bos_token_id=1)
    assert ours.tokenizer is not None
    text = ours.tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}], tokenize=False)
    assert "Hello" in text
    assert ours.tokenizer.decode(ours.tokenizer.encode("Hello there")) == "Hello there"


def test_generation_config_goes_before_the_model_config(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    for file in checkpoint("mamba2").iterdir():
        if not file.name.startswith(("tokenizer", "generation")):
            (tmp_path / file.name).symlink_to(file)
    assert load_model(tmp_path, ops=ReferenceOps()).generation.eos_token_ids == (2,)
    own = {"eos_token_id": [7, 9], "temperature": 0.7, "top_k": 40, "do_sample": True, "top_p": 0.9}
    (tmp_path / "generation_config.json").write_text(json.dumps(own))
    ours = load_model(tmp_path, ops=ReferenceOps())
    assert ours.generation == GenerationConfig((7, 9), 1, True, 0.7, 0.9, 40)
    assert ours.tokenizer is None


def test_sampling_defaults_of_a_generation_config(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = HfConfig({"eos_token_id": 2}, "config.json", "tiny")
    said: dict[str, Any] = {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05}
    said["repetition_penalty"] = 1.1
    neutral = {"num_beams": 1, "typical_p": 1.0, "bad_words_ids": None}
    (tmp_path / "generation_config.json").write_text(json.dumps(said | neutral))
    found = default_params(GenerationConfig.read(tmp_path, model))
    del said["do_sample"]
    assert found == SamplingParams(**said) and not caplog.records
    others = {"no_repeat_ngram_size": 3, "stop_strings": ["end"], "num_beams": 4}
    (tmp_path / "generation_config.json").write_text(json.dumps(others | {"repetition_penalty": 1.1}))
    found = default_params(GenerationConfig.read(tmp_path, model))
    assert found == SamplingParams(temperature=0.0, repetition_penalty=1.1)
    assert "no_repeat_ngram_size, num_beams, stop_strings: not applied" in caplog.text


def test_tied_embeddings(tmp_path: Path) -> None:
    folder = write_checkpoint("granitemoehybrid", tmp_path, tie_word_embeddings=True)
    weights = load_file(folder / "model.safetensors")
    assert "lm_head.weight" not in weights
    first = logits(load_model(folder, ops=ReferenceOps()))
    # Some writers store the head again.
    save_file(
        weights | {"lm_head.weight": weights["model.embed_tokens.weight"].clone()},
        folder / "model.safetensors",
    )
    assert torch.equal(logits(load_model(folder, ops=ReferenceOps())), first)


def test_the_two_names_of_nemotron_weights(
    checkpoint: Callable[[str], Path], loaded: Callable[..., LoadedModel], tmp_path: Path
) -> None:
    source = checkpoint("nemotron_h")
    weights = load_file(source / "model.safetensors")
    renamed = {name.replace("backbone.", "model.", 1): tensor for name, tensor in weights.items()}
    assert renamed.keys() != weights.keys()
    save_file(renamed | {"mtp.layers.0.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    ours = load_model(tmp_path, ops=ReferenceOps())
    assert torch.equal(logits(ours), logits(loaded("nemotron_h", "reference")))


def test_tensors_that_are_not_aligned_are_read(tmp_path: Path) -> None:
    header = json.dumps(
        {
            "byte": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]},
            "odd": {"dtype": "F32", "shape": [2, 2], "data_offsets": [2, 18]},
            "none": {"dtype": "F32", "shape": [0, 4], "data_offsets": [18, 18]},
        }
    ).encode()
    file = tmp_path / "odd.safetensors"
    values = torch.tensor([[1.5, 2.5], [3.5, -4.5]])
    data = len(header).to_bytes(8, "little") + header + b"\x00\x00" + values.numpy().tobytes()
    file.write_bytes(data)
    entries = safetensors_entries(file)
    assert torch.equal(entries["odd"].read(), values)
    assert entries["none"].read().shape == (0, 4)
    entries["odd"].read().zero_()
    assert file.read_bytes() == data, "a map is private"


MEASURE = """
import resource, sys, torch
from hybridcache.kernels.dispatch import build_ops
from hybridcache.models.load import load_model
torch.set_num_threads(1)
load_model(sys.argv[2], ops=build_ops("cpu"))   # compiles and warms up what a first load does
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = load_model(sys.argv[1], ops=build_ops("cpu"))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.full
def test_peak_memory_is_the_weights_and_a_layer(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 16}
    heads: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 4096}
    folder = write_checkpoint("llama", tmp_path, max_shard_bytes=200_000_000, **sizes, **heads)
    total = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert total > 700_000_000
    small = str(checkpoint("llama"))
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder), small], check=True, capture_output=True, text=True
    )
    assert int(done.stdout) < 1.15 * total
