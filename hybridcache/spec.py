"""A model as the cache sees it: its layers in order, the bytes of a token and of a checkpoint, its FLOPs."""

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from hybridcache.flops import FlopCurve
from hybridcache.geometry import geometry_layers
from hybridcache.hf_config import CacheDtypes, HfConfig
from hybridcache.hf_families import hf_layers
from hybridcache.layers import LayerKind
from hybridcache.state_tensor import StateTensor

__all__ = ["ModelSpec", "StateTensor"]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything the cache knows about a model.

    `layers` are in execution order; repeated layers may be one object. Bytes are summed from the layers'
    declarations when the spec is built, FLOPs from their coefficients. Raises ValueError for a spec without
    layers, non-positive d_model or vocab_size, or a dtype whose size is unknown.
    """

    name: str
    layers: tuple[LayerKind, ...]
    d_model: int
    vocab_size: int
    kv_bytes_per_token: int = field(init=False, compare=False)
    """Bytes of K and V of all attention layers for one token; 0 without attention."""
    checkpoint_bytes: int = field(init=False, compare=False)
    """Bytes of every recurrent layer's state at one position; 0 without recurrent layers."""
    head_flops: int = field(init=False, compare=False)
    """FLOPs of the LM head for one position; of the methods only `request_flops` contains them."""
    fingerprint: str = field(init=False, compare=False)
    """SHA-256 (hex) of the canonical JSON of name, d_model, vocab_size and layers; knows no weights."""
    _curve: FlopCurve = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError(f"model {self.name!r} has no layers; name at least one")
        for label, value in (("d_model", self.d_model), ("vocab_size", self.vocab_size)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"model {self.name!r}: {label} is {value!r}; it must be a positive integer")
        derived: dict[str, object] = {
            "kv_bytes_per_token": sum(layer.kv_bytes_per_token for layer in self.layers),
            "checkpoint_bytes": sum(layer.checkpoint_bytes for layer in self.layers),
            "head_flops": 2 * self.d_model * self.vocab_size,
            "fingerprint": _fingerprint(self),
            "_curve": FlopCurve.of(term for layer in self.layers for term in layer.flop_terms),
        }
        for attribute, content in derived.items():
            object.__setattr__(self, attribute, content)

    @classmethod
    def from_config(cls, geometry: Mapping[str, object]) -> Self:
        """Builds the spec of a geometry: a file of conf/model/ as a plain mapping.

        Raises ValueError naming the geometry, the key, its value and what is allowed.
        """
        name, d_model, vocab_size, layers = geometry_layers(geometry)
        return cls(name, layers, d_model, vocab_size)

    @classmethod
    def from_hf(
        cls,
        source: str | Path | Mapping[str, object],
        *,
        name: str | None = None,
        kv_dtype: str | None = None,
        ssm_dtype: str | None = None,
        conv_dtype: str | None = None,
        conv_width_stored: int | None = None,
    ) -> Self:
        """Builds the spec of a transformers model from its config.json: the file, its folder or a mapping.

        `kv_dtype` and `conv_dtype` default to the config's dtype (bfloat16 if it has none), `ssm_dtype` to
        the config's mamba_ssm_cache_dtype, else float32; `conv_width_stored` (tokens) to the convolution's
        width less one. Raises ValueError naming file, field, value and what is supported.
        """
        config = HfConfig.read(source)
        dtypes = CacheDtypes.of(config, kv=kv_dtype, ssm=ssm_dtype, conv=conv_dtype, width=conv_width_stored)
        layers = hf_layers(config, dtypes)
        return cls(name or config.label, layers, config.integer("hidden_size"), config.integer("vocab_size"))

    @property
    def num_layers(self) -> dict[str, int]:
        """Number of layers of each kind, in order of first appearance."""
        return dict(Counter(layer.kind for layer in self.layers))

    def prefix_flops(self, stop: int) -> float:
        """FLOPs of computing tokens [0, stop), the LM head left out (see `request_flops`)."""
        return self._curve.prefix(stop)

    def flops(self, start: int, stop: int) -> float:
        """FLOPs of computing tokens [start, stop) when [0, start) is cached, the LM head left out.

        Savings are therefore plain differences: flops(a, b) + flops(b, c) is flops(a, c) up to the rounding
        of a float, exactly so below 2**53.
        """
        return self._curve.between(start, stop)

    def request_flops(self, num_tokens: int, *, num_sampled: int = 1) -> float:
        """FLOPs of computing `num_tokens` from nothing with the LM head run at `num_sampled` positions."""
        return self.prefix_flops(num_tokens) + num_sampled * self.head_flops

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.num_layers.items())
        return (
            f"{self.name}: {kinds}; {self.kv_bytes_per_token:,} B of KV a token, "
            f"{self.checkpoint_bytes:,} B a checkpoint"
        )

    def describe(self) -> str:
        """A few lines for people: layers, bytes per token and per checkpoint, FLOPs at two lengths."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.num_layers.items())
        lines = [
            f"{self.name}: d_model {self.d_model:,}, vocabulary {self.vocab_size:,}",
            f"  layers      {len(self.layers)} ({kinds})",
            f"  KV          {self.kv_bytes_per_token:,} B/token",
            f"  checkpoint  {self.checkpoint_bytes:,} B",
        ]
        if self.kv_bytes_per_token and self.checkpoint_bytes:
            lines.append(
                f"              = the KV of {self.checkpoint_bytes / self.kv_bytes_per_token:,.0f} tokens"
            )
        lines += [
            f"  FLOPs       {self.prefix_flops(n):.3g} for the first {n:,} tokens" for n in (1_000, 32_000)
        ]
        return "\n".join(lines)


def _fingerprint(spec: ModelSpec) -> str:
    content = [spec.name, spec.d_model, spec.vocab_size, _canonical(spec.layers)]
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _canonical(value: object) -> object:
    """`value` as JSON types; a layer becomes its kind and its fields."""
    if isinstance(value, LayerKind):
        assert dataclasses.is_dataclass(value), f"layer kind {value.kind} is no dataclass"
        fields = {item.name: _canonical(getattr(value, item.name)) for item in dataclasses.fields(value)}
        return {"kind": value.kind, **fields}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_canonical(item) for item in value]
    return value
