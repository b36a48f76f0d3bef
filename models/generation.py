"""What a checkpoint says about generating: stop tokens and sampling defaults."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hybridcache.hf_config import HfConfig
from hybridcache.models.options import fraction, number

log = logging.getLogger(__name__)

FILE = "generation_config.json"
NOT_APPLIED: Mapping[str, float | None] = {
    "no_repeat_ngram_size": 0, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "num_beams": 1,
    "guidance_scale": 1.0, "penalty_alpha": 0.0, "min_length": 0, "min_new_tokens": 0, "bad_words_ids": None,
    "sequence_bias": None, "suppress_tokens": None, "begin_suppress_tokens": None, "stop_strings": None,
    "forced_bos_token_id": None, "forced_eos_token_id": None, "exponential_decay_length_penalty": None,
}  # fmt: skip
"""Fields of transformers that would change answers, with the values that change nothing (null never does)."""


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """Defaults of a request; None: the checkpoint does not say."""

    eos_token_ids: tuple[int, ...]
    """Tokens that end an answer; none: only the length does."""
    bos_token_id: int | None = None
    do_sample: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    """Also where `do_sample` is False."""

    @classmethod
    def read(cls, folder: Path, model: HfConfig) -> Self:
        """generation_config.json of `folder`, and the model's config for tokens that it does not name.

        Raises ValueError naming file, field and value.
        """
        path, fields = folder / FILE, {}
        if path.is_file():
            try:
                fields = json.loads(path.read_text(encoding="utf-8"))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}: no JSON text ({error})") from error
            if not isinstance(fields, Mapping):
                raise ValueError(f"{path}: a JSON {type(fields).__name__}, no object")
        own = HfConfig(fields, str(path), model.label)
        eos = own if own.has("eos_token_id") else model
        bos = own if own.has("bos_token_id") else model
        found = cls(
            eos_token_ids=_token_ids(eos, "eos_token_id"),
            bos_token_id=bos.integer("bos_token_id", at_least=0) if bos.has("bos_token_id") else None,
            do_sample=own.flag("do_sample", False),
            temperature=number(own, "temperature") if own.has("temperature") else None,
            top_p=number(own, "top_p") if own.has("top_p") else None,
            top_k=own.integer("top_k", at_least=0) if own.has("top_k") else None,
            min_p=number(own, "min_p") if own.has("min_p") else None,
            repetition_penalty=number(own, "repetition_penalty") if own.has("repetition_penalty") else None,
        )
        if found.do_sample and (found.temperature or 0.0) < 0:
            raise own.error("temperature", "at least 0")
        if found.do_sample:
            fraction(own, "top_p", 1.0)
        if found.do_sample and not 0 <= (found.min_p or 0.0) <= 1:
            raise own.error("min_p", "from 0 to 1")
        if not 0.01 <= number(own, "repetition_penalty", 1.0) <= 100:
            raise own.error("repetition_penalty", "from 0.01 to 100")
        ignored = [name for name, neutral in NOT_APPLIED.items() if own.has(name) and fields[name] != neutral]
        if ignored:
            log.warning("%s: %s: not applied to answers", path, ", ".join(ignored))
        return found


def _token_ids(config: HfConfig, name: str) -> tuple[int, ...]:
    if isinstance(config.fields.get(name), list):
        return tuple(config.integers(name))
    return (config.integer(name, at_least=0),) if config.has(name) else ()
