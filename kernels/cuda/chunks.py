"""A packed batch cut into chunks, as the three passes of a chunked scan read it."""

from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from hybridcache.kernels.cuda.batch import BatchArgs, device_arrays
from hybridcache.kernels.packed import PackedBatch, PackedSequence

CHUNK = 128
"""Tokens; chunks begin at multiples of it in the sequence, and where a pass begins."""
Stores = list[tuple[int, int]]
"""(tokens or chunks, slot), ascending."""


@dataclass(frozen=True, slots=True)
class ChunkedBatch:
    """The arrays of one batch on its device; the structures point into `numbers`."""

    batch: PackedBatch
    numbers: Tensor
    """int64."""
    summary: BatchArgs
    """Each chunk by itself, from zero; its state goes to the slot of its own number."""
    middle: BatchArgs
    """Sequences counted in chunks; states at the chunks' edges go to the slots that want them."""
    scan: BatchArgs
    """Each chunk from the slot of its own number; states within chunks go to the slots that want them."""
    num_chunks: int

    @classmethod
    def of(cls, batch: PackedBatch, device: torch.device) -> "ChunkedBatch":
        """One copy to the device. A sequence without tokens has no chunk; the middle stores its state."""
        rows, firsts = [0], [0]
        edges: list[Stores] = []
        inner: list[Stores] = []
        for s in batch.sequences:
            stops = _stops(s)
            wanted = [*s.emits, (s.stop - s.start, s.slot)]
            at_edge = {0: 0} | {t: n for n, t in enumerate(stops) if (s.num_computed + t) % CHUNK == 0}
            edges.append([(at_edge[count], slot) for count, slot in wanted if count in at_edge])
            for start, stop in pairwise(stops):
                inside = [(c - start, slot) for c, slot in wanted if start < c <= stop and c not in at_edge]
                inner.append(inside)
                rows.append(s.start + stop)
            firsts.append(len(inner))
        chunks = range(len(inner))
        lengths = [stop - start for start, stop in pairwise(rows)]
        sources = [s.slot if s.has_state else -1 for s in batch.sequences]
        arrays = (
            *(rows, [-1 for _ in chunks], *_flat([[(lengths[chunk], chunk)] for chunk in chunks])),
            *(firsts, sources, *_flat(edges)),
            *(rows, list(chunks), *_flat(inner)),
        )
        numbers, at = device_arrays(arrays, device)
        tokens, count = batch.num_tokens, len(inner)
        return cls(
            batch,
            numbers,
            BatchArgs(count, tokens, *at[:5]),
            BatchArgs(batch.num_sequences, count, *at[5:10]),
            BatchArgs(count, tokens, *at[10:]),
            count,
        )


def _stops(s: PackedSequence) -> list[int]:
    """0, and the tokens of this pass at the end of each of its chunks."""
    length = s.stop - s.start
    first = CHUNK - s.num_computed % CHUNK
    return [0, *range(first, length, CHUNK), length] if length else [0]


def _flat(stores: list[Stores]) -> tuple[list[int], list[int], list[int]]:
    """Offsets, counts, slots."""
    pairs = [pair for each in stores for pair in each]
    offsets = [0, *accumulate(len(each) for each in stores)]
    return offsets, [count for count, _ in pairs], [slot for _, slot in pairs]
