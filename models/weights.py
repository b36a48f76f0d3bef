"""The weights of one layer, under the names that the layer uses."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from hybridcache.kernels.ops import Linear, Ops
from hybridcache.models.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Weights:
    """Reads a checkpoint through `resolve`, which turns a layer's name into the checkpoint's."""

    checkpoint: Checkpoint
    resolve: Callable[[str], str]
    dtype: torch.dtype
    ops: Ops
    packed: dict[tuple[object, ...], Linear] = field(default_factory=dict)
    """Matrices packed so far, so that layers which share weights share the packed form."""

    def within(self, prefix: str) -> Self:
        """The weights whose names begin with `prefix`, without it."""
        return replace(self, resolve=lambda name: self.resolve(prefix + name))

    def mapped(self, name: str, row: int | None = None) -> Tensor:
        """The tensor or a row of it in the model's dtype; a view of the file where it has that dtype too."""
        return self.checkpoint.tensor(self.resolve(name), row).to(self.dtype)

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """A copy of the tensor in `dtype` (default: the model's), on the device of `ops`."""
        return self.checkpoint.entries[self.resolve(name)].copy(dtype or self.dtype).to(self.ops.device)

    def linear(
        self,
        *names: str,
        bias: bool = False,
        dtype: torch.dtype | None = None,
        rows: Tensor | None = None,
    ) -> Linear:
        """One packed matrix from `<name>.weight` [out, in], their outputs joined in order, and the biases.

        `rows`: int64 [out], another order of the joined outputs.
        """
        sources = tuple(self.resolve(f"{name}.weight") for name in names)
        key = (sources, bias, dtype or self.dtype)
        if key in self.packed:
            return self.packed[key]
        matrices = [self.checkpoint.tensor(source).to(dtype or self.dtype) for source in sources]
        biases = torch.cat([self.tensor(f"{name}.bias", dtype) for name in names]) if bias else None
        if rows is None and len(matrices) > 1:
            self.packed[key] = self.ops.joined_linear(matrices, biases)
            return self.packed[key]
        matrix = matrices[0] if len(matrices) == 1 else torch.cat(matrices)
        del matrices
        if rows is not None:
            matrix, biases = matrix[rows], None if biases is None else biases[rows]
        self.packed[key] = self.ops.linear(matrix, biases)
        return self.packed[key]
