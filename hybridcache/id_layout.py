"""Where each tensor lies in the region of one id: a block or a slot."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from hybridcache.spec import ModelSpec
from hybridcache.state_tensor import StateTensor, dtype_bytes


class PlacedTensor(NamedTuple):
    """A tensor of one layer, in the region of every id."""

    layer: int
    """Index of the layer in the spec."""
    name: str
    shape: tuple[int, ...]
    """Within one id: a KV tensor's begins with the tokens of a block."""
    dtype: str
    offset: int
    """Bytes from the start of the region."""


class RowRun(NamedTuple):
    """Consecutive KV tensors whose tokens take the same number of bytes."""

    offset: int
    """Bytes from the start of the region."""
    num_tensors: int
    row_bytes: int
    """Bytes of one token of each."""


@dataclass(frozen=True, slots=True)
class IdLayout:
    """The tensors of one id, end to end without gaps: the bytes that the budget counts, exactly.

    Wider elements come first (otherwise layers stay in order), so that every tensor is aligned to its
    elements when the region is. Raises ValueError when the region's size is no multiple of the widest
    element, since no order could then align the ids after the first, and when a layer has two tensors of
    one name.
    """

    tensors: tuple[PlacedTensor, ...]
    bytes_per_id: int = field(init=False)

    def __post_init__(self) -> None:
        sizes = [StateTensor(t.name, t.shape, t.dtype).num_bytes for t in self.tensors]
        total, widest = sum(sizes), max((dtype_bytes(t.dtype) for t in self.tensors), default=1)
        if total % widest:
            raise ValueError(
                f"{total} bytes an id with elements of {widest} bytes cannot be aligned: give the tensors "
                f"{sorted({f'{t.name} {list(t.shape)} {t.dtype}' for t in self.tensors})} one dtype, or an "
                "even number of the narrower elements"
            )
        keys = [(t.layer, t.name) for t in self.tensors]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            raise ValueError(f"layer {twice[0][0]} declares two tensors called {twice[0][1]!r}; rename one")
        object.__setattr__(self, "bytes_per_id", total)

    @classmethod
    def of_slots(cls, spec: ModelSpec) -> Self:
        """The state tensors of all layers: one checkpoint."""
        layers = enumerate(spec.layers)
        return cls(_placed((i, tensor) for i, layer in layers for tensor in layer.state_tensors))

    @classmethod
    def of_blocks(cls, spec: ModelSpec, block_size: int) -> Self:
        """The KV tensors of all layers, each for `block_size` tokens."""
        return cls(
            _placed(
                (i, StateTensor(tensor.name, (block_size, *tensor.shape), tensor.dtype))
                for i, layer in enumerate(spec.layers)
                for tensor in layer.kv_tensors
            )
        )

    def row_runs(self) -> list[RowRun]:
        """A block's tensors grouped so that the same tokens of a group are one strided copy."""
        runs: list[RowRun] = []
        for tensor in self.tensors:
            row_bytes = math.prod(tensor.shape[1:]) * dtype_bytes(tensor.dtype)
            if runs and runs[-1].row_bytes == row_bytes:
                runs[-1] = runs[-1]._replace(num_tensors=runs[-1].num_tensors + 1)
            else:
                runs.append(RowRun(tensor.offset, 1, row_bytes))
        return runs


def _placed(tensors: Iterable[tuple[int, StateTensor]]) -> tuple[PlacedTensor, ...]:
    placed, offset = [], 0
    for layer, tensor in sorted(tensors, key=lambda item: -dtype_bytes(item[1].dtype)):
        placed.append(PlacedTensor(layer, *tensor, offset))
        offset += tensor.num_bytes
    return tuple(placed)
