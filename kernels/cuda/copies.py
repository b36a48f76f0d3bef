"""Copies of states and KV blocks on a GPU: many in one launch, 16 bytes a thread at a time."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hybridcache.copier import Copier
from hybridcache.kernels.cuda.arguments import EntryCopyArgs, StateInt8Args
from hybridcache.kernels.cuda.build import ELEMENTS, Kernels, Variant
from hybridcache.kernels.operands import DTYPE_CODES, inner_contiguous
from hybridcache.kernels.state_int8 import Pairs

MAX_COPIES = 65_535
"""Of one launch: a dimension of the grid."""
Copy = tuple[int, ...]
"""(source, target) or (source, target, tokens)."""


class CudaCopies(Copier):
    """Copies on the device's current stream. Raises BuildError and RuntimeError as Kernels does."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels

    def copy_entries(self, memory: Tensor, copies: Sequence[tuple[int, int]]) -> None:
        num_bytes = memory.shape[1]
        self._copy(memory, [(*copy, num_bytes) for copy in copies], 0, 1, 1)

    def copy_rows(self, rows: Tensor, copies: Sequence[tuple[int, int, int]]) -> None:
        _, tensors, _, row_bytes = rows.shape
        self._copy(rows, copies, rows.stride(1), tensors, row_bytes)

    def pack_states(self, states: Tensor, packed: Tensor, scales: Tensor, pairs: Pairs) -> None:
        """As the twin in state_int8.py."""
        self._int8(states, packed, scales, pairs, restore=False)

    def unpack_states(self, states: Tensor, packed: Tensor, scales: Tensor, pairs: Pairs) -> None:
        """As the twin in state_int8.py."""
        self._int8(states, packed, scales, pairs, restore=True)

    def _copy(
        self, memory: Tensor, copies: Sequence[Copy], segment_stride: int, segments: int, unit_bytes: int
    ) -> None:
        assert memory.dtype == torch.uint8 and inner_contiguous(memory)
        for group in independent([copy for copy in copies if copy[2]]):
            table = torch.tensor(group, dtype=torch.int64).to(memory.device, non_blocking=True)
            longest = unit_bytes * max(copy[2] for copy in group)
            args = EntryCopyArgs(
                memory.data_ptr(),
                memory.stride(0),
                segment_stride,
                segments,
                unit_bytes,
                longest,
                table.data_ptr(),
                len(group),
            )
            self.kernels.run(Variant("entry_copy", "raw", 1), memory.device, args)

    def _int8(self, states: Tensor, packed: Tensor, scales: Tensor, pairs: Pairs, *, restore: bool) -> None:
        heads, elements = states.shape[1], states.shape[2:].numel()
        if packed.shape[1:] != states.shape[1:] or packed.dtype != torch.int8:
            raise ValueError(
                f"packed is {packed.dtype} {tuple(packed.shape)}; use int8 [slots, {list(states.shape[1:])}]"
            )
        if scales.shape != (len(packed), heads) or scales.dtype != torch.float32:
            raise ValueError(
                f"scales are {scales.dtype} {tuple(scales.shape)}; use float32 {[len(packed), heads]}"
            )
        for name, tensor in (("states", states), ("packed", packed), ("scales", scales)):
            if not inner_contiguous(tensor):
                raise ValueError(f"{name} have strides {tensor.stride()}; entries must be contiguous")
            if tensor.device.type != self.kernels.device_type or tensor.device != states.device:
                raise ValueError(
                    f"{name} are on {tensor.device}; all must be on one {self.kernels.device_type}"
                )
        for pair in pairs:
            if not (0 <= pair[0] < len(states) and 0 <= pair[1] < len(packed)):
                raise ValueError(
                    f"{tuple(pair)}: there are {len(states)} states and {len(packed)} packed ones"
                )
        for begin in range(0, len(pairs), MAX_COPIES):
            group = pairs[begin : begin + MAX_COPIES]
            table = torch.tensor(group, dtype=torch.int64).to(states.device, non_blocking=True)
            pool = (states.data_ptr(), states.stride(0) * states.element_size(), DTYPE_CODES[states.dtype])
            args = StateInt8Args(
                pool,
                packed.data_ptr(),
                scales.data_ptr(),
                packed.stride(0),
                scales.stride(0),
                table.data_ptr(),
                len(group),
                heads,
                elements,
                restore,
            )
            self.kernels.run(Variant("state_int8", ELEMENTS[states.dtype], 1), states.device, args)


def independent(copies: Sequence[Copy]) -> list[list[Copy]]:
    """`copies` cut, in order, into groups within which none reads or writes what another writes."""
    groups: list[list[Copy]] = []
    read: set[int] = set()
    written: set[int] = set()
    for copy in copies:
        source, target = copy[:2]
        clash = source in written or target in written or target in read
        if clash or not groups or len(groups[-1]) == MAX_COPIES:
            groups.append([])
            read.clear()
            written.clear()
        groups[-1].append(copy)
        read.add(source)
        written.add(target)
    return groups
