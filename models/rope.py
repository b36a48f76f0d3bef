"""Rotary position embedding (Su et al., 2021), over all or the first part of a head."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hybridcache.hf_config import HfConfig
from hybridcache.models.options import fraction, number

SCALED = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
"""Fields that each kind of scaling needs; all positive."""
_ORIGINAL = "original_max_position_embeddings"
_STATED = "max_position_embeddings"


@dataclass(frozen=True, slots=True)
class Rope:
    """Angles of position p: p * inv_freq, one for each rotated pair of dimensions (i, i + dim / 2)."""

    frequencies: tuple[float, ...]
    """[dim / 2], radians a token; exact float32 values."""
    factor: float = 1.0
    """Of cosine and sine (YaRN's temperature of attention)."""
    inv_freq: Tensor = field(init=False, repr=False, compare=False)
    """float32 [dim / 2]: the same."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "inv_freq", torch.tensor(self.frequencies, dtype=torch.float32))

    @property
    def dim(self) -> int:
        """Rotated dimensions of a head; even."""
        return 2 * len(self.frequencies)


def hf_rope(config: HfConfig, head_dim: int, *, part: float = 1.0) -> Rope:
    """The rotary embedding of a config, which names it in one field (transformers 5) or in several (4).

    `part` is the rotated part of a head where the config does not say. Frequencies that do not change with
    the length of a prompt may be scaled: linear, llama3, and yarn (Peng et al., "YaRN", 2023). Raises
    ValueError naming file, field and value for others, and for a scaling that lacks a field.
    """
    nested = config.first("rope_parameters", "rope_scaling")
    parameters = config.fields.get(nested) if config.has(nested) else {}
    if not isinstance(parameters, Mapping):
        raise config.error(nested, "an object")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind != "default" and kind not in SCALED:
        raise ValueError(
            f"{config.where}: field {nested!r} has rope_type {kind!r}; supported are 'default', "
            f"{', '.join(map(repr, SCALED))}"
        )
    inner = HfConfig(parameters, f"{config.where}: {nested}", config.label)
    theta = number(inner, "rope_theta", number(config, "rope_theta", 10_000.0))
    if theta <= 0:
        raise (inner if inner.has("rope_theta") else config).error("rope_theta", "above 0")
    part = fraction(inner, "partial_rotary_factor", fraction(config, "partial_rotary_factor", part))
    dim = int(head_dim * part)
    if dim < 2 or dim % 2:
        raise ValueError(
            f"{config.where}: {part} of a head of {head_dim} is {dim} rotated dimensions; "
            f"partial_rotary_factor must leave an even number"
        )
    if kind == "default":
        exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
        return Rope(tuple((1.0 / theta**exponents).tolist()))
    if not inner.has(_ORIGINAL) and config.has(_STATED):
        inner = HfConfig({**parameters, _ORIGINAL: config.fields[_STATED]}, inner.where, inner.label)
    for name in SCALED[kind]:
        if not number(inner, name) > 0:
            raise inner.error(name, "a number above 0")
    return _scaled(kind, inner.fields, theta, dim)


def longest_text(config: HfConfig) -> int | None:
    """Tokens that the positions of a model are made for; None where the config does not say.

    A scaled model's are those that it was trained with, times the factor, where that is more than what the
    config states: YaRN is often added to a config whose other fields stay as they are.
    """
    stated = config.integer(_STATED) if config.has(_STATED) else None
    parameters = config.fields.get(config.first("rope_parameters", "rope_scaling"))
    if stated is None or not isinstance(parameters, Mapping):
        return stated
    inner = HfConfig(parameters, config.where, config.label)
    if parameters.get("rope_type", parameters.get("type")) not in SCALED or not inner.has(_ORIGINAL):
        return stated
    return max(stated, int(number(inner, "factor", 1.0) * number(inner, _ORIGINAL)))


def _scaled(kind: str, parameters: Mapping[str, Any], theta: float, dim: int) -> Rope:
    """transformers' own frequencies, so that they are those that the model was tuned with."""
    # Slow to import, and few models need it.
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    given = {**parameters, "rope_type": kind, "rope_theta": theta, "partial_rotary_factor": 1.0}
    given.pop("type", None)
    # Of the config only the size of a head counts: `dim` of its dimensions are rotated.
    head = LlamaConfig(hidden_size=dim, num_attention_heads=1, head_dim=dim, rope_parameters=given)
    inv_freq, factor = ROPE_INIT_FUNCTIONS[kind](head, torch.device("cpu"))
    return Rope(tuple(inv_freq.tolist()), float(factor))
