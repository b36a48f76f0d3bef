"""A packed batch on a device, and how its rows are dealt out to programs."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridcache.kernels.packed import PackedBatch


class QueryTiles(NamedTuple):
    """Pairs (new token, head of its group) of the sequences with many new tokens, by tile."""

    sequences: Tensor
    """int64 [tiles]."""
    starts: Tensor
    """int64 [tiles]: the first pair, counted from the sequence's first new token."""


class DecodeParts(NamedTuple):
    """The keys of the sequences that decode, in parts; a sequence has as many as its own keys need."""

    owners: Tensor
    """int64 [parts]: which of the decoding sequences, counted from 0."""
    numbers: Tensor
    """int64 [parts]: the part of its sequence."""
    offsets: Tensor
    """int64 [decoding sequences + 1]: the parts of each."""


class ScanChunks(NamedTuple):
    """The new tokens of some sequences in chunks that end at multiples of `size` in the sequence.

    An end is a place where a state is wanted: each emit, and behind a chunk's emits the chunk's own end. The
    state at a chunk's end is computed like an emitted one, so that both have the same bits.
    """

    size: int
    sequences: Tensor
    """int64 [sequences]: whose chunks these are."""
    chunk_offsets: Tensor
    """int64 [sequences + 1]: the chunks of each."""
    rows: Tensor
    """int64 [chunks]: the first row of each."""
    end_offsets: Tensor
    """int64 [chunks + 1]: the ends of each chunk."""
    end_chunks: Tensor
    """int64 [ends]: the chunk that an end lies in."""
    end_rows: Tensor
    """int64 [ends]: the row behind its last token."""
    end_slots: Tensor
    """int64 [ends]: where the state is emitted to; -1: nowhere."""

    @property
    def num_chunks(self) -> int:
        """Chunks of all sequences."""
        return len(self.rows)


class DeviceBatch:
    """The tensors of one PackedBatch on a device, copied once a pass; schedules are made when asked for.

    With `stepwise` every sequence counts as one that goes token by token; otherwise those with one new token
    or none do, and the longer ones are cut into tiles and chunks.
    """

    __slots__ = (
        "batch",
        "device",
        "capability",
        "cu_seqlens",
        "slots",
        "has_state",
        "emit_offsets",
        "emit_counts",
        "emit_slots",
        "num_computed",
        "positions",
        "block_tables",
        "slot_mapping",
        "long",
        "short",
        "short_sequences",
        "decoding",
        "decoding_sequences",
        "stepwise",
        "_tiles",
        "_parts",
        "_chunks",
    )

    def __init__(
        self, batch: PackedBatch, device: torch.device, *, capability: int = 90, stepwise: bool = False
    ) -> None:
        self.batch = batch
        self.device = device
        self.capability = capability
        """Of the device, 90 for 9.0: kernels are cut to fit it."""
        self.stepwise = stepwise
        lengths = [s.stop - s.start for s in batch.sequences]
        self.long = [i for i, n in enumerate(lengths) if n > 1 and not stepwise]
        """Sequences that are cut into tiles and chunks."""
        self.short = [i for i, n in enumerate(lengths) if n <= 1 or stepwise]
        """The others."""
        self.decoding = [i for i, n in enumerate(lengths) if n == 1 and not stepwise]
        """Sequences of one new token, where those are told apart."""
        (
            self.cu_seqlens,
            self.slots,
            self.has_state,
            self.emit_offsets,
            self.emit_counts,
            self.emit_slots,
            self.num_computed,
            self.positions,
            tables,
            self.slot_mapping,
            self.short_sequences,
            self.decoding_sequences,
        ) = self._to_device(
            batch.cu_seqlens.numpy(),
            batch.slots.numpy(),
            batch.has_state.numpy(),
            batch.emit_offsets.numpy(),
            batch.emit_counts.numpy(),
            batch.emit_slots.numpy(),
            batch.num_computed.numpy(),
            batch.positions.numpy(),
            batch.block_tables.numpy().ravel(),
            batch.slot_mapping.numpy(),
            np.array(self.short, np.int64),
            np.array(self.decoding, np.int64),
        )
        self.block_tables = tables.view(batch.block_tables.shape)
        self._tiles: dict[tuple[int, int], QueryTiles] = {}
        self._parts: dict[tuple[int, int], DecodeParts] = {}
        self._chunks: dict[int, ScanChunks] = {}

    def query_tiles(self, pairs: int, group: int) -> QueryTiles:
        """Tiles of `pairs` pairs, `group` heads a token, of all sequences that are not `decoding`."""
        key = (pairs, group)
        if key not in self._tiles:
            indices = range(self.batch.num_sequences) if self.stepwise else self.long
            self._tiles[key] = self._tiled(indices, pairs, group)
        return self._tiles[key]

    def row_tiles(self, size: int) -> QueryTiles:
        """Tiles of `size` new tokens of all sequences."""
        key = (size, 0)
        if key not in self._tiles:
            self._tiles[key] = self._tiled(range(self.batch.num_sequences), size, 1)
        return self._tiles[key]

    def decode_parts(self, size: int, window: int) -> DecodeParts:
        """Parts of `size` keys, from multiples of it, of those that the tokens in `decoding` see.

        `window`: keys that one sees, its own included; 0: all.
        """
        key = (size, window)
        if key not in self._parts:
            last = self.batch.num_computed.numpy()[self.decoding]
            first = np.maximum(last + 1 - window, 0) // size if window else np.zeros_like(last)
            counts = last // size - first + 1
            offsets = np.concatenate([_int64([0]), np.cumsum(counts)])
            owners = np.repeat(np.arange(len(last)), counts)
            numbers = np.arange(offsets[-1]) + (first - offsets[:-1])[owners]
            self._parts[key] = DecodeParts(*self._to_device(owners, numbers, offsets))
        return self._parts[key]

    def scan_chunks(self, size: int) -> ScanChunks:
        """Chunks of `size` tokens of the long sequences."""
        if size not in self._chunks:
            offsets, end_offsets = [0], [0]
            rows: list[int] = []
            end_chunks: list[int] = []
            end_rows: list[int] = []
            end_slots: list[int] = []
            for index in self.long:
                s = self.batch.sequences[index]
                emits = [(s.start + count, slot) for count, slot in s.emits]
                cursor = s.start
                while cursor < s.stop:
                    stop = min(s.stop, cursor + size - (s.num_computed + cursor - s.start) % size)
                    while emits and emits[0][0] <= stop:
                        row, slot = emits.pop(0)
                        end_chunks.append(len(rows))
                        end_rows.append(row)
                        end_slots.append(slot)
                    end_chunks.append(len(rows))
                    end_rows.append(stop)
                    end_slots.append(-1)
                    rows.append(cursor)
                    end_offsets.append(len(end_rows))
                    cursor = stop
                offsets.append(len(rows))
            columns = (self.long, offsets, rows, end_offsets, end_chunks, end_rows, end_slots)
            self._chunks[size] = ScanChunks(size, *self._to_device(*map(_int64, columns)))
        return self._chunks[size]

    def _tiled(self, indices: Iterable[int], pairs: int, group: int) -> QueryTiles:
        owners: list[int] = []
        starts: list[int] = []
        for index in indices:
            s = self.batch.sequences[index]
            first = range(0, (s.stop - s.start) * group, pairs)
            owners.extend([index] * len(first))
            starts.extend(first)
        return QueryTiles(*self._to_device(_int64(owners), _int64(starts)))

    def _to_device(self, *arrays: NDArray[np.generic]) -> list[Tensor]:
        """The arrays as int64 tensors, in one copy.

        Each begins at a multiple of 16 bytes: Triton compiles anew for one that does not.
        """
        sizes = [len(array) for array in arrays]
        starts = np.cumsum([0, *(size + size % 2 for size in sizes)]).tolist()
        flat = np.zeros(starts[-1], np.int64)
        for array, start in zip(arrays, starts[:-1], strict=True):
            flat[start : start + len(array)] = array
        tensor = torch.from_numpy(flat)
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()
        tensor = tensor.to(self.device, non_blocking=True)
        return [tensor[start : start + size] for start, size in zip(starts[:-1], sizes, strict=True)]


def _int64(values: Sequence[int]) -> NDArray[np.int64]:
    return np.array(values, np.int64)
