"""A transformers config.json read without transformers: typed fields, and errors that name them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from hybridcache.state_tensor import dtype_bytes


@dataclass(frozen=True, slots=True)
class HfConfig:
    """The fields of one config and where they came from. `label` is a short name for the model."""

    fields: Mapping[str, object]
    where: str
    label: str

    @classmethod
    def read(cls, source: str | Path | Mapping[str, object]) -> Self:
        """Reads a config.json, a folder with one, or a mapping. Raises ValueError naming the file."""
        if isinstance(source, Mapping):
            return cls(source, "config", str(source.get("model_type")))
        path = Path(source)
        if path.is_dir():
            path = path / "config.json"
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(
                f"{path}: cannot be read ({error.strerror}); give a config.json or its folder"
            ) from error
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: no JSON text ({error}); give a transformers config.json") from error
        if not isinstance(fields, dict):
            raise ValueError(
                f"{path}: a JSON {type(fields).__name__}; give a transformers config.json (an object)"
            )
        label = path.resolve().parent.name if path.name == "config.json" else path.stem
        return cls(fields, str(path), label or str(fields.get("model_type")))

    def error(self, name: str, wanted: str) -> ValueError:
        """The error for field `name` holding something else than `wanted`."""
        if name not in self.fields:
            return ValueError(f"{self.where}: field {name!r} is missing; it must be {wanted}")
        return ValueError(f"{self.where}: field {name!r} is {self.fields[name]!r}; it must be {wanted}")

    def has(self, name: str) -> bool:
        """Whether `name` is there and not null."""
        return self.fields.get(name) is not None

    def first(self, *names: str) -> str:
        """The first of `names` that is set; the first of them when none is."""
        return next((name for name in names if self.has(name)), names[0])

    def integer(self, name: str, default: int | None = None, *, at_least: int = 1) -> int:
        """Integer field `name`, or `default` when it is absent or null."""
        if default is not None and not self.has(name):
            return default
        value = self.fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            raise self.error(name, f"an integer of at least {at_least}")
        return value

    def integer_or_auto(self, name: str, auto: int) -> int:
        """Integer field `name`; `auto` when it is absent, null or the text "auto"."""
        return auto if self.fields.get(name) == "auto" else self.integer(name, auto)

    def flag(self, name: str, default: bool) -> bool:
        """Boolean field `name`, or `default` when it is absent or null."""
        value = self.fields[name] if self.has(name) else default
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def text(self, name: str, default: str) -> str:
        """Text field `name`, or `default` when it is absent or null."""
        value = self.fields[name] if self.has(name) else default
        if not isinstance(value, str):
            raise self.error(name, "a text")
        return value

    def integers(self, name: str) -> list[int]:
        """List field `name` of non-negative integers; empty when it is absent or null."""
        value = self.fields[name] if self.has(name) else []
        if not isinstance(value, list) or any(
            isinstance(v, bool) or not isinstance(v, int) or v < 0 for v in value
        ):
            raise self.error(name, "a list of non-negative integers")
        return value

    def layer_types(self, name: str, meaning: Mapping[str, str]) -> list[str]:
        """The list of layers (or string, a letter a layer) in field `name`, each put through `meaning`.

        Raises ValueError for an entry that `meaning` lacks, and for a length other than num_hidden_layers
        where the config has that field.
        """
        value = self.fields.get(name)
        if not isinstance(value, list | str) or not value:
            raise self.error(name, f"a list of {', '.join(meaning)}")
        kinds = []
        for index, entry in enumerate(value):
            if not isinstance(entry, str) or entry not in meaning:
                raise ValueError(
                    f"{self.where}: field {name!r} has layer {index} of type {entry!r}; "
                    f"supported are {', '.join(meaning)}"
                )
            kinds.append(meaning[entry])
        if self.has("num_hidden_layers") and len(kinds) != self.integer("num_hidden_layers"):
            count = self.fields["num_hidden_layers"]
            raise ValueError(
                f"{self.where}: field {name!r} has {len(kinds)} layers, num_hidden_layers is {count}; "
                f"they must agree"
            )
        return kinds

    def divided(self, name: str, by: str) -> int:
        """Field `name` divided by field `by`, which must leave no rest."""
        quotient, rest = divmod(self.integer(name), self.integer(by))
        if rest or not quotient:
            raise self.error(by, f"a divisor of {name} ({self.fields[name]})")
        return quotient


class CacheDtypes(NamedTuple):
    """How the cache stores K, V and states: dtypes, and a convolution's stored inputs (None: width - 1)."""

    kv: str
    ssm: str
    conv: str
    width: int | None

    @classmethod
    def of(
        cls, config: HfConfig, *, kv: str | None, ssm: str | None, conv: str | None, width: int | None
    ) -> Self:
        """The given dtypes, else the config's. Raises ValueError for an unknown dtype or a negative width."""
        if width is not None and (isinstance(width, bool) or width < 0):
            raise ValueError(f"conv_width_stored is {width!r}; it must be 0 or more")
        for given in (kv, ssm, conv):
            if given is not None:
                dtype_bytes(given)
        dtype_field = config.first("dtype", "torch_dtype")
        dtype = config.text(dtype_field, "bfloat16").removeprefix("torch.")
        ssm_dtype = config.text("mamba_ssm_cache_dtype", "float32").removeprefix("torch.")
        for field, value in ((dtype_field, dtype), ("mamba_ssm_cache_dtype", ssm_dtype)):
            try:
                dtype_bytes(value)
            except ValueError as error:
                raise ValueError(f"{config.where}: field {field!r}: {error}") from None
        return cls(kv or dtype, ssm or ssm_dtype, conv or dtype, width)

    def conv_width(self, d_conv: int) -> int:
        """Inputs of a convolution over `d_conv` tokens that a checkpoint stores."""
        return d_conv - 1 if self.width is None else self.width
