"""A pass's kernel calls, kept so that one call performs them all again for another batch of as many tokens.

In decoding, calling kernels one by one from Python costs as much as many of them take. A recording is what
CUDA graphs are on a GPU: addresses are fixed, contents are not.
"""

import ctypes
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hybridcache.kernels.operands import BatchArgs
from hybridcache.kernels.packed import PackedBatch


class Call(ctypes.Structure):
    """A kernel and its arguments, as hc_replay takes them."""

    _fields_ = (("run", ctypes.c_void_p), ("args", ctypes.c_void_p), ("threads", ctypes.c_int64))


class Scratch:
    """Memory for results within recorded passes, one of which runs at a time.

    A result's memory is used again once its tensor is gone, as it will be each time the pass is repeated:
    calls keep their order. All recordings share it, so that it grows to what the largest needs.
    """

    __slots__ = ("_free", "num_bytes")

    def __init__(self) -> None:
        self._free: dict[int, list[NDArray[np.uint8]]] = {}
        """Blocks that no tensor uses, by size in bytes."""
        self.num_bytes = 0
        """Of all blocks."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor of any content."""
        needed = math.prod(shape) * dtype.itemsize
        size = max(64, 1 << (needed - 1).bit_length())
        blocks = self._free.setdefault(size, [])
        if not blocks:
            blocks.append(np.empty(size, dtype=np.uint8))
            self.num_bytes += size
        block = blocks.pop()
        part = block[:needed]
        weakref.finalize(part, blocks.append, block).atexit = False
        return torch.from_numpy(part).view(dtype).view(*shape)


class Recorder:
    """What is recorded while a pass runs."""

    def __init__(self, scratch: Scratch) -> None:
        self.scratch = scratch
        self.calls: list[tuple[Call, object]] = []
        """Each with what it points to."""
        self.slots = self.blocks = 2**63 - 1
        """Ids of the smallest pool in use: a batch that fits there fits everywhere."""
        self.block_size: int | None = None
        self.needs_slots = False


class Recording:
    """The calls of one pass. What they read and write lives as long as the tensors of that pass do."""

    __slots__ = ("_calls", "_kept", "_recorder", "_replay")

    def __init__(self, recorder: Recorder, replay: Callable[[Any, int, Any], None]) -> None:
        self._recorder = recorder
        self._calls = (Call * len(recorder.calls))(*(call for call, _ in recorder.calls))
        self._kept = [kept for _, kept in recorder.calls]
        self._replay = replay

    def fits(self, batch: PackedBatch) -> bool:
        """Whether the states and the KV that the pass used have all of the batch's slots and blocks."""
        r = self._recorder
        if r.needs_slots and not 0 <= batch.min_slot <= batch.max_slot < r.slots:
            return False
        if r.block_size is None:
            return True
        return (
            batch.block_size == r.block_size and batch.max_block < r.blocks and batch.without_blocks is None
        )

    def __call__(self, batch: PackedBatch) -> None:
        """Performs the pass again for a batch that fits and has as many tokens."""
        self._replay(self._calls, len(self._calls), ctypes.byref(BatchArgs.of(batch)))


class OtherWork(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators of torch that make something new: a recording would not repeat them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled; torch's way to say so loads its compiler, which takes seconds."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        out = func(*args, **(kwargs or {}))
        given, made = _memory(args), _memory(out)
        if func._schema.is_mutable or not made or not made <= given:
            self.names.append(str(func))
        return out


def _memory(value: object) -> set[int]:
    """Addresses of the memory of the tensors in a value."""
    if isinstance(value, Tensor):
        return {value.untyped_storage().data_ptr()}
    if isinstance(value, (tuple, list)):
        return {address for item in value for address in _memory(item)}
    return set()
