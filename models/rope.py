"""Rotary position embedding (Su et al., 2021), over all or the first part of a head."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hybridcache.hf_config import HfConfig
from hybridcache.models.options import fraction, number


@dataclass(frozen=True, slots=True)
class Rope:
    """Angles of position p: p * inv_freq, one for each rotated pair of dimensions (i, i + dim / 2)."""

    theta: float
    dim: int
    """Rotated dimensions of a head; even."""
    inv_freq: Tensor = field(init=False, repr=False, compare=False)
    """float32 [dim / 2]."""

    def __post_init__(self) -> None:
        exponents = torch.arange(0, self.dim, 2, dtype=torch.float32) / self.dim
        object.__setattr__(self, "inv_freq", 1.0 / self.theta**exponents)


def hf_rope(config: HfConfig, head_dim: int, *, part: float = 1.0) -> Rope:
    """The rotary embedding of a config, which names it in one field (transformers 5) or in several (4).

    `part` is the rotated part of a head where the config does not say. Raises ValueError naming file, field
    and value for a scaled or otherwise unsupported kind.
    """
    nested = config.first("rope_parameters", "rope_scaling")
    parameters = config.fields.get(nested) if config.has(nested) else {}
    if not isinstance(parameters, Mapping):
        raise config.error(nested, "an object")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind != "default":
        raise ValueError(
            f"{config.where}: field {nested!r} has rope_type {kind!r}; supported is 'default' (no scaling)"
        )
    inner = HfConfig(parameters, f"{config.where}: {nested}", config.label)
    theta = number(inner, "rope_theta", number(config, "rope_theta", 10_000.0))
    part = fraction(inner, "partial_rotary_factor", fraction(config, "partial_rotary_factor", part))
    dim = int(head_dim * part)
    if dim < 2 or dim % 2:
        raise ValueError(
            f"{config.where}: {part} of a head of {head_dim} is {dim} rotated dimensions; "
            f"partial_rotary_factor must leave an even number"
        )
    return Rope(theta, dim)
