"""From a checkpoint folder to a model that runs."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hybridcache.hf_config import HfConfig
from hybridcache.kernels.ops import Linear, Ops
from hybridcache.models.checkpoint import Checkpoint
from hybridcache.models.families import family_of
from hybridcache.models.family import Family
from hybridcache.models.generation import GenerationConfig
from hybridcache.models.model import HybridForCausalLM
from hybridcache.models.norm import RmsNorm
from hybridcache.models.options import number
from hybridcache.models.weights import Weights
from hybridcache.spec import ModelSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Dtypes that a model may run in."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model and what belongs to it."""

    spec: ModelSpec
    model: HybridForCausalLM
    tokenizer: "PreTrainedTokenizerBase | None"
    """With its chat template, if it has one; None: the folder has no tokenizer."""
    generation: GenerationConfig


def load_model(path: str | Path, *, ops: Ops, dtype: str = "float32", name: str | None = None) -> LoadedModel:
    """Loads a transformers checkpoint folder: config.json, safetensors, generation config, tokenizer.

    Config, names and shapes are checked in full before the first weight is read. Weights are read by memory
    map, packed layer by layer, and go to the device of `ops`. K, V and convolution states have the model's
    dtype, SSM states what the config says (float32 by default). Raises ValueError naming the file and the
    field, weight or value.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; use one of {', '.join(DTYPES)}")
    folder = Path(path)
    config = HfConfig.read(folder)
    family = family_of(config)
    family.check(config)
    spec = ModelSpec.from_hf(folder, name=name, kv_dtype=dtype, conv_dtype=dtype)
    generation = GenerationConfig.read(folder, config)
    for token in generation.eos_token_ids:
        if token >= spec.vocab_size:
            log.warning("%s: eos_token_id %d never comes; it has %d tokens", folder, token, spec.vocab_size)
    model = _read_model(folder, config, family, spec, DTYPES[dtype], ops)
    return LoadedModel(spec, model, _read_tokenizer(folder), generation)


def _read_model(
    folder: Path, config: HfConfig, family: Family, spec: ModelSpec, dtype: torch.dtype, ops: Ops
) -> HybridForCausalLM:
    plans = family.plans(config, spec.layers)
    tied = family.ties and config.flag("tie_word_embeddings", family.tied_default)
    table = (spec.vocab_size, spec.d_model)
    expected = {resolve(own): shape for plan, resolve in plans for own, shape in plan.shapes.items()}
    expected |= {family.embedding: table, family.final_norm: (spec.d_model,)}
    if not tied:
        expected[family.head] = table
    checkpoint = Checkpoint.open(folder, family.renames)
    checkpoint.check(expected, (*family.ignored, *([f"^{family.head}$"] if tied else [])))

    whole = Weights(checkpoint, lambda own: own, dtype, ops)
    # The head first: a matrix is in memory twice while it is packed, and this one is often the largest.
    embedding, head = _ends(whole, family, tied)
    norm = whole.tensor(family.final_norm)
    layers = [plan.build(replace(whole, resolve=resolve)) for plan, resolve in plans]
    return HybridForCausalLM(
        embedding=embedding,
        layers=layers,
        final_norm=RmsNorm(norm, number(config, family.eps, family.default_eps), ops, family.unit_offset),
        head=head,
        ops=ops,
        embedding_multiplier=family.factor(config, family.embedding_multiplier),
        head_multiplier=family.factor(config, family.head_multiplier),
        head_divisor=family.factor(config, family.head_divisor),
        wide_residual=family.wide_residual is not None
        and config.flag(family.wide_residual, family.wide_residual_default),
    )


def _ends(weights: Weights, family: Family, tied: bool) -> tuple[Tensor, Linear]:
    """Embedding and head. A tied embedding stays mapped: only rows that are looked up take memory twice."""
    if tied:
        embedding = weights.mapped(family.embedding).to(weights.ops.device)
        return embedding, weights.ops.linear(embedding)
    head = weights.ops.linear(weights.mapped(family.head))
    return weights.tensor(family.embedding), head


def _read_tokenizer(folder: Path) -> "PreTrainedTokenizerBase | None":
    if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        return None
    # Slow to import, and a model without a tokenizer does without it.
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        # Whatever its files make it raise: they are the user's.
        problem = f"{type(error).__name__}: {error}"
        raise ValueError(f"{folder}: its tokenizer cannot be loaded ({problem})") from error
    return tokenizer
