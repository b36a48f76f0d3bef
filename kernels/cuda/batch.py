"""A packed batch as the CUDA kernels read it."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hybridcache.kernels.packed import PackedBatch


class BatchArgs(ctypes.Structure):
    """hc::Batch of csrc/cuda/device.cuh; pointers into one device tensor, which must outlive it."""

    _fields_ = (
        ("num_sequences", ctypes.c_int64),
        ("num_tokens", ctypes.c_int64),
        ("first", ctypes.c_void_p),
        ("source", ctypes.c_void_p),
        ("store_offsets", ctypes.c_void_p),
        ("store_counts", ctypes.c_void_p),
        ("store_slots", ctypes.c_void_p),
    )


SEGMENT = 8
"""Tokens that one thread of the convolution takes."""
MAX_SEGMENTS = 8
"""Of a tile."""


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """The arrays of a batch on its device: made once a pass, read by all layers."""

    batch: PackedBatch
    numbers: Tensor
    """int64, all arrays end to end, on the device."""
    args: BatchArgs
    longest: int
    """Tokens of the longest sequence."""
    tiles: int
    """Address of [num_tiles, 2]: a sequence and a token of it, where a tile of the convolution begins."""
    num_tiles: int
    segments: int
    """Segments of a tile, chosen by the longest sequence."""

    @classmethod
    def of(cls, batch: PackedBatch, device: torch.device) -> "DeviceBatch":
        """One copy to the device, whatever the number of sequences."""
        stores = [
            (*s.emits, (s.stop - s.start, s.slot))  # the running slot's is the last
            for s in batch.sequences
        ]
        offsets = [0]
        for pairs in stores:
            offsets.append(offsets[-1] + len(pairs))
        longest = max((s.stop - s.start for s in batch.sequences), default=0)
        segments = min(MAX_SEGMENTS, 1 << max(0, -(-longest // SEGMENT) - 1).bit_length())
        tiles = [
            (index, token)
            for index, s in enumerate(batch.sequences)
            for token in range(0, max(1, s.stop - s.start), segments * SEGMENT)
        ]
        arrays = (
            batch.cu_seqlens.tolist(),
            [s.slot if s.has_state else -1 for s in batch.sequences],
            offsets,
            [count for pairs in stores for count, _ in pairs],
            [slot for pairs in stores for _, slot in pairs],
            [number for tile in tiles for number in tile],
        )
        numbers, pointers = device_arrays(arrays, device)
        args = BatchArgs(batch.num_sequences, batch.num_tokens, *pointers[:-1])
        return cls(batch, numbers, args, longest, pointers[-1], len(tiles), segments)


def device_arrays(arrays: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, list[int]]:
    """The arrays end to end as one int64 tensor on the device, and the address of each."""
    numbers = torch.tensor([number for array in arrays for number in array], dtype=torch.int64)
    numbers = numbers.to(device, non_blocking=True)
    addresses, address = [], numbers.data_ptr()
    for array in arrays:
        addresses.append(address)
        address += 8 * len(array)
    return numbers, addresses
