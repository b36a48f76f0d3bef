"""Small checkpoints by seed, written with transformers' own classes: for tests, demos and benchmarks.

    folder = preset_folder("tiny")                    # made once, then found in the user's cache folder
    write_checkpoint("zamba2", tmp_path, seed=1)      # any family, for a test

Nothing is downloaded. The folders are laid out like any checkpoint of transformers: config.json, safetensors,
generation_config.json, tokenizer and chat template.
"""

import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import torch

from hybridcache.models.chat_tokens import TOKENIZER_FOLDER, VOCAB_SIZE
from hybridcache.models.preset_configs import TINY_CONFIGS
from hybridcache.models.preset_weights import seed_weights

_FORMAT: Final = 1
"""Raised whenever the same settings would give other files."""


class Preset(NamedTuple):
    """A named model: its family, what it changes in the family's tiny config, its seed."""

    family: str
    overrides: Mapping[str, Any]
    seed: int = 0


PRESETS: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        # The geometry of conf/model/tiny.yaml, 2.2 million parameters.
        "tiny": Preset(
            "bamba",
            {
                "hidden_size": 128,
                "intermediate_size": 256,
                "num_hidden_layers": 6,
                "attn_layer_indices": [2, 5],
                "mamba_d_head": 32,
                "mamba_d_state": 32,
            },
        ),
        # 30 million parameters: 6 Mamba-2 and 2 attention layers, each with an MLP.
        "tiny-30m": Preset(
            "bamba",
            {
                "hidden_size": 512,
                "intermediate_size": 1152,
                "num_hidden_layers": 8,
                "attn_layer_indices": [3, 7],
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "mamba_n_heads": 16,
                "mamba_d_head": 64,
                "mamba_d_state": 64,
            },
        ),
        # 2.9 million parameters: 5 Mamba-1 and 1 attention layers, 4 experts in every other.
        "tiny-jamba": Preset(
            "jamba",
            {
                "hidden_size": 128,
                "intermediate_size": 256,
                "num_hidden_layers": 6,
                "attn_layer_period": 6,
                "attn_layer_offset": 2,
                "mamba_d_state": 16,
                "mamba_dt_rank": 8,
            },
        ),
    }
)


def write_checkpoint(
    family: str,
    folder: str | Path,
    *,
    seed: int = 0,
    max_shard_bytes: int | None = None,
    dtype: str = "float32",
    **overrides: object,
) -> Path:
    """Writes a checkpoint of `family` (a model_type of transformers) into `folder` and returns the folder.

    `overrides` are fields of the family's config class, put over its entry in TINY_CONFIGS.
    `max_shard_bytes` cuts the weights into several safetensors files; `dtype` is a floating-point dtype of
    torch. The tokenizer is left out when `vocab_size` is below its 4,096 tokens. Raises ValueError for an
    unknown family, field or dtype.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    if family not in TINY_CONFIGS:
        raise ValueError(f"family {family!r} is unknown; the families are {', '.join(TINY_CONFIGS)}")
    torch_dtype = getattr(torch, dtype, None)
    if not isinstance(torch_dtype, torch.dtype) or not torch_dtype.is_floating_point:
        raise ValueError(f"dtype {dtype!r} is unknown; give a floating-point dtype of torch, as bfloat16")
    known = AutoConfig.for_model(family, **TINY_CONFIGS[family])
    for name in overrides:
        if not hasattr(known, name):
            raise ValueError(f"{name!r} is no field of a {family} config; drop it or correct its name")
    config: Any = AutoConfig.for_model(family, **{**TINY_CONFIGS[family], **overrides})
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]), _no_progress_bars():
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        # Logits of standard deviation 1, hence at most 3 to 4 over 4,096 tokens, whatever the multipliers.
        head_std = (
            getattr(config, "logits_scaling", 1.0)
            / getattr(config, "lm_head_multiplier", 1.0)
            / math.sqrt(config.hidden_size)
        )
        tied = bool(config.tie_word_embeddings)
        embedding_std = head_std if tied else 1.0 / getattr(config, "embedding_multiplier", 1.0)
        seed_weights(model, seed, embedding_std=embedding_std, head_std=head_std)
        model = model.to(torch_dtype)
        model.config.dtype = torch_dtype
        model.generation_config = GenerationConfig(
            bos_token_id=config.bos_token_id,
            eos_token_id=config.eos_token_id,
            pad_token_id=config.pad_token_id,
        )
        shard = "50GB" if max_shard_bytes is None else max_shard_bytes
        model.save_pretrained(path, max_shard_size=shard)
    if config.vocab_size >= VOCAB_SIZE:
        for file in TOKENIZER_FOLDER.iterdir():
            shutil.copyfile(file, path / file.name)
    return path


def preset_folder(name: str) -> Path:
    """The checkpoint folder of preset `name`; made on first use.

    It lies in $HYBRIDCACHE_CACHE, else $XDG_CACHE_HOME/hybridcache, else ~/.cache/hybridcache, under a name
    with a hash of the preset's settings, the tokenizer and the versions of torch and transformers. It
    appears whole or not at all, also when several processes make it at once. Raises ValueError for an
    unknown name.
    """
    if name not in PRESETS:
        raise ValueError(f"preset {name!r} is unknown; the presets are {', '.join(PRESETS)}")
    preset = PRESETS[name]
    target = _cache_folder() / "presets" / f"{name}-{_key(preset)}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as scratch:
        made = write_checkpoint(preset.family, Path(scratch) / name, seed=preset.seed, **preset.overrides)
        try:
            made.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was faster, with the same files
                raise
    return target


def _cache_folder() -> Path:
    """The user's cache folder for this package."""
    if own := os.environ.get("HYBRIDCACHE_CACHE"):
        return Path(own)
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "hybridcache"
    return Path.home() / ".cache" / "hybridcache"


def _key(preset: Preset) -> str:
    """Hash of everything that decides the files of a preset."""
    import transformers

    tokenizer = hashlib.sha256(b"".join(f.read_bytes() for f in sorted(TOKENIZER_FOLDER.iterdir())))
    content = {
        "format": _FORMAT,
        "family": preset.family,
        "config": {**TINY_CONFIGS[preset.family], **preset.overrides},
        "seed": preset.seed,
        "tokenizer": tokenizer.hexdigest(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Keeps transformers from drawing a bar for a file that takes milliseconds."""
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()
