"""The weights of a checkpoint folder: one safetensors file or several with an index."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from torch import Tensor

from hybridcache.models.safetensors_file import TensorEntry, merge, safetensors_entries

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Tensors by name; each is mapped when it is read, so that only what is being packed is in memory."""

    folder: Path
    entries: Mapping[str, TensorEntry]

    @classmethod
    def open(cls, folder: Path, renames: Iterable[tuple[str, str]] = ()) -> Self:
        """Reads the headers in `folder`. `renames` maps older beginnings of names to the current ones.

        Raises ValueError naming what is absent, cut off or contradictory.
        """
        entries: dict[str, TensorEntry] = {}
        for name, entry in _read_entries(folder).items():
            old, new = next((pair for pair in renames if name.startswith(pair[0])), ("", ""))
            merge(entries, {new + name.removeprefix(old): entry})
        return cls(folder, entries)

    def check(self, expected: Mapping[str, tuple[int, ...]], ignored: Iterable[str] = ()) -> None:
        """Compares names and shapes with `expected`; names that match a pattern of `ignored` may be there.

        Raises ValueError naming every kind of difference: missing, extra and misshaped weights.
        """
        patterns = [re.compile(pattern) for pattern in ignored]
        missing = [f"{name} {list(shape)}" for name, shape in expected.items() if name not in self.entries]
        extra = [
            name
            for name in self.entries
            if name not in expected and not any(pattern.search(name) for pattern in patterns)
        ]
        misshaped = [
            f"{name} is {list(self.entries[name].shape)}, not {list(shape)}"
            for name, shape in expected.items()
            if name in self.entries and self.entries[name].shape != shape
        ]
        faults = [
            f"{label}: {', '.join(names[:_SHOWN])}"
            + (f" and {len(names) - _SHOWN} more" * (len(names) > _SHOWN))
            for label, names in (("missing", missing), ("extra", extra), ("misshaped", misshaped))
            if names
        ]
        if faults:
            raise ValueError(f"{self.folder}: weights do not fit config.json; {'; '.join(faults)}")

    def tensor(self, name: str, row: int | None = None) -> Tensor:
        """The tensor, or a row of its first dimension, mapped from its file."""
        entry = self.entries[name]
        return entry.read() if row is None else entry.rows(row, row + 1).read()[0]


def _read_entries(folder: Path) -> dict[str, TensorEntry]:
    index = folder / INDEX
    if not index.is_file():
        if not (folder / SINGLE).is_file():
            raise ValueError(
                f"{folder}: neither {SINGLE} nor {INDEX} is there; give a folder in safetensors format"
            )
        return safetensors_entries(folder / SINGLE)
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        places = {str(name): str(file) for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index}: no safetensors index ({error!r}); weight_map is needed") from error
    entries: dict[str, TensorEntry] = {}
    for file in sorted(set(places.values())):
        if Path(file).name != file:
            raise ValueError(f"{index}: names the file {file!r}; only files of the same folder are read")
        merge(entries, safetensors_entries(folder / file))
    for name, file in places.items():
        if name not in entries or entries[name].file.name != file:
            raise ValueError(f"{index}: tensor {name!r} is not in {file}")
    return entries
