"""Checkpoints by seed: the same files each time, loadable by transformers, logits of a useful size."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from hybridcache.models.chat_tokens import VOCAB_SIZE  # noqa: E402
from hybridcache.models.preset_configs import TINY_CONFIGS  # noqa: E402
from hybridcache.models.presets import PRESETS, preset_folder, write_checkpoint  # noqa: E402
from hybridcache.spec import ModelSpec  # noqa: E402

ROOT = Path(__file__).parents[1]
QUICK = ("bamba", "zamba2")
FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.full) for name in TINY_CONFIGS],
)
def test_logits_are_about_three_and_text_goes_on(family: str, tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    folder = write_checkpoint(family, tmp_path, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    model = load(folder)
    ids = torch.arange(7, 7 + 40)[None]
    with torch.inference_mode():
        logits = model(ids).logits[0]
        text = model.generate(ids, max_new_tokens=12, do_sample=False, use_cache=False)[0, ids.shape[1] :]
    assert 0.7 < float(logits.std()) < 1.4
    assert 2.0 < float(logits.abs().max()) < 8.0
    assert len(set(text.tolist())) > 3


def test_same_seed_same_files(tmp_path: Path) -> None:
    one, two = (write_checkpoint("jamba", tmp_path / name, seed=5) for name in ("one", "two"))
    other = write_checkpoint("jamba", tmp_path / "other", seed=6)
    assert digests(one) == digests(two)
    assert digests(one).keys() == FILES
    changed = {name for name, digest in digests(other).items() if digest != digests(one)[name]}
    assert changed == {"model.safetensors"}


def test_shards_hold_the_same_weights(tmp_path: Path) -> None:
    whole = write_checkpoint("qwen3_next", tmp_path / "whole", vocab_size=300)
    parts = write_checkpoint("qwen3_next", tmp_path / "parts", vocab_size=300, max_shard_bytes=200_000)
    index = json.loads((parts / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    assert not (parts / "tokenizer.json").exists()
    one, two = load(whole).state_dict(), load(parts).state_dict()
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_dtype_is_written_and_rounded(tmp_path: Path) -> None:
    full = write_checkpoint("bamba", tmp_path / "full")
    half = write_checkpoint("bamba", tmp_path / "half", dtype="bfloat16")
    assert json.loads((half / "config.json").read_text())["dtype"] == "bfloat16"
    name = "model.layers.0.mamba.in_proj.weight"
    wanted = load(full).state_dict()[name].to(torch.bfloat16)
    assert torch.equal(load(half).state_dict()[name].to(torch.bfloat16), wanted)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"family": "gpt2"}, "family 'gpt2' is unknown"),
        ({"family": "llama", "hidden_sizes": 8}, "'hidden_sizes' is no field of a llama config"),
        ({"family": "llama", "dtype": "int64"}, "dtype 'int64' is unknown"),
    ],
)
def test_errors(arguments: dict[str, Any], error: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=error):
        write_checkpoint(**arguments, folder=tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_preset_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDCACHE_CACHE", str(tmp_path))
    folder = preset_folder("tiny")
    assert folder.parent == tmp_path / "presets"
    assert digests(folder).keys() == FILES
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert preset_folder("tiny") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_faster_process_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYBRIDCACHE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def overtaken(family: str, folder: Path, **settings: Any) -> Path:
        (tmp_path / "hybridcache/presets" / target).mkdir()
        (tmp_path / "hybridcache/presets" / target / "config.json").write_text("{}")
        return write_checkpoint(family, folder, **settings)

    target = preset_folder("tiny").name
    (tmp_path / "hybridcache/presets" / target).rename(tmp_path / "away")
    monkeypatch.setattr("hybridcache.models.presets.write_checkpoint", overtaken)
    folder = preset_folder("tiny")
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    assert [path.name for path in folder.parent.iterdir()] == [target]


def test_tiny_has_the_geometry_of_its_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDCACHE_CACHE", str(tmp_path))
    spec = ModelSpec.from_hf(preset_folder("tiny"), name="tiny")
    geometry = yaml.safe_load((ROOT / "conf/model/tiny.yaml").read_text())
    assert spec == ModelSpec.from_config(geometry)


def test_sizes_of_the_presets() -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    counts = {}
    with torch.device("meta"):
        for name, preset in PRESETS.items():
            fields = {**TINY_CONFIGS[preset.family], **preset.overrides}
            model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(preset.family, **fields))
            counts[name] = sum(parameter.numel() for parameter in model.parameters())
            assert model.config.vocab_size == VOCAB_SIZE
    assert 1.8e6 < counts["tiny"] < 2.3e6
    assert 29e6 < counts["tiny-30m"] < 31e6
    assert counts["tiny-jamba"] < 4e6


def test_unknown_preset() -> None:
    with pytest.raises(ValueError, match="preset 'huge' is unknown; the presets are tiny"):
        preset_folder("huge")
