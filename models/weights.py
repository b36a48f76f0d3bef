"""The weights of one layer, under the names that the layer uses."""

from collections.abc import Callable
from dataclasses import dataclass, replace
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

    def within(self, prefix: str) -> Self:
        """The weights whose names begin with `prefix`, without it."""
        return replace(self, resolve=lambda name: self.resolve(prefix + name))

    def mapped(self, name: str) -> Tensor:
        """The tensor in the model's dtype; a view of the file where that is the file's dtype too."""
        return self.checkpoint.tensor(self.resolve(name)).to(self.dtype)

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """A copy of the tensor in `dtype` (default: the model's)."""
        return self.checkpoint.tensor(self.resolve(name)).to(dtype or self.dtype, copy=True)

    def linear(self, *names: str, bias: bool = False, dtype: torch.dtype | None = None) -> Linear:
        """One packed matrix from `<name>.weight` [out, in], their outputs joined in order, and the biases."""
        matrices = [self.checkpoint.tensor(self.resolve(f"{name}.weight")) for name in names]
        matrix = (matrices[0] if len(matrices) == 1 else torch.cat(matrices)).to(dtype or self.dtype)
        del matrices
        biases = torch.cat([self.tensor(f"{name}.bias", dtype) for name in names]) if bias else None
        return self.ops.linear(matrix, biases)
