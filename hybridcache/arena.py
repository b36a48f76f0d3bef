"""The memory of one pool: a region of exactly so many bytes for every id."""

import math
import mmap
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridcache.pool import Ids

KEPT_SHARE = 1 / 64
"""Share of an arena that released ids may keep resident, so that memory goes back in batches."""
KEPT_BYTES = 1 << 20
"""Bytes that they may keep in an arena however small."""
POISON = 0xFF
"""Every byte of a poisoned region: NaN in all floating-point types, -1 in integers."""


class Arena:
    """`num_ids` regions of `bytes_per_id` bytes, one behind the other.

    On a CPU an anonymous private mapping: a page takes memory from its first write until all ids on it have
    been released and the arena has been trimmed. Transparent huge pages are switched off there, since one
    used id would keep 2 MiB. What stays resident beyond the ids in use: `KEPT_SHARE` of the arena (at least
    `KEPT_BYTES`), and, per run of used ids, the rest of its first and last page. On Linux; elsewhere
    memory is kept. On other devices all of it is allocated at once. Ids of 0 bytes: there are none.

    Raises ValueError when not even one id fits, or the system refuses the mapping.
    """

    __slots__ = (
        "name",
        "bytes_per_id",
        "num_ids",
        "memory",
        "written",
        "num_written",
        "_map",
        "_stale",
        "_kept",
    )

    def __init__(self, name: str, bytes_per_id: int, limit_bytes: float, device: torch.device) -> None:
        if bytes_per_id and not bytes_per_id <= limit_bytes < float("inf"):
            raise ValueError(
                f"storage of {limit_bytes:,.0f} bytes for the {name} pool, whose ids take {bytes_per_id:,} "
                "bytes each: give a finite budget that holds at least one"
            )
        self.name = name
        self.bytes_per_id = bytes_per_id
        self.num_ids = int(limit_bytes // bytes_per_id) if bytes_per_id else 0
        num_bytes = self.num_ids * bytes_per_id
        self._map: mmap.mmap | None = None
        if device.type == "cpu" and num_bytes:
            self._map = _anonymous_map(name, num_bytes)
            memory = torch.frombuffer(self._map, dtype=torch.uint8, count=num_bytes)
        else:
            memory = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        self.memory = memory.view(self.num_ids, bytes_per_id)
        """uint8 [num_ids, bytes_per_id]."""
        self.written: NDArray[np.bool_] = np.zeros(self.num_ids, dtype=np.bool_)
        """Whether an id [num_ids] was written since it was made or last released."""
        self.num_written = 0
        self._stale: NDArray[np.bool_] = np.zeros(self.num_ids, dtype=np.bool_)
        """Released ids that may still be resident."""
        self._kept = 0
        """Bytes of the stale ids."""

    def view(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The tensor at byte `offset` of every region: [num_ids, *shape], contiguous within an id."""
        assert not (offset % dtype.itemsize or self.bytes_per_id % dtype.itemsize), (self.name, offset, dtype)
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        per_id = self.bytes_per_id // dtype.itemsize
        flat = self.memory.view(-1).view(dtype)
        return flat.as_strided((self.num_ids, *shape), (per_id, *strides), offset // dtype.itemsize)

    def check(self, ids: Sequence[int] | Ids) -> Ids:
        """`ids` as an array. Raises ValueError when one of them has no region."""
        array = np.asarray(ids, dtype=np.int64)
        if len(array) and not (array.min() >= 0 and array.max() < self.num_ids):
            wrong = array[(array < 0) | (array >= self.num_ids)]
            raise ValueError(f"{self.name} ids {wrong.tolist()} are none: storage has {self.num_ids}")
        return array

    def check_written(self, id_: int) -> None:
        """Raises ValueError when `id_` holds nothing."""
        if not self.written[id_]:
            raise ValueError(f"{self.name} id {id_} is read, but nothing was written to it since it was free")

    def write(self, ids: Ids) -> None:
        """`ids` are about to be written."""
        fresh = ids[~self.written[ids]]
        if not len(fresh):
            return
        fresh = np.unique(fresh)
        self._kept -= int(np.count_nonzero(self._stale[fresh])) * self.bytes_per_id
        self._stale[fresh] = False
        self.written[fresh] = True
        self.num_written += len(fresh)

    def release(self, ids: Ids, poison: bool) -> Ids:
        """Nobody holds `ids` (distinct) any longer; those of them that had been written.

        With `poison` their bytes become `POISON` and stay resident.
        """
        gone = ids[self.written[ids]]
        self.written[gone] = False
        self.num_written -= len(gone)
        if poison:
            self.memory[torch.from_numpy(gone).to(self.memory.device)] = POISON
        elif self._map is not None:
            self._stale[gone] = True
            self._kept += len(gone) * self.bytes_per_id
            if self._kept > max(KEPT_BYTES, self.num_ids * self.bytes_per_id * KEPT_SHARE):
                self.trim()
        return gone

    def trim(self) -> None:
        """Give whole pages on which no written id lies back to the system; they read as zeros from then."""
        assert self._map is not None, self.name
        stale = np.flatnonzero(self._stale)
        self._stale[stale] = False
        self._kept = 0
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        size, page, written = self.bytes_per_id, mmap.PAGESIZE, self.written
        breaks = np.flatnonzero(np.diff(stale) != 1) + 1
        for run in np.split(stale, breaks):
            if not len(run):
                continue
            first, last = int(run[0]), int(run[-1]) + 1
            begin, end = first * size // page * page, -(-last * size // page) * page
            # The first and the last page may hold neighbours' bytes.
            if written[begin // size : first].any():
                begin += page
            if written[last : -(-end // size)].any():
                end -= page
            if begin < end:
                self._map.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def _anonymous_map(name: str, num_bytes: int) -> mmap.mmap:
    """A private mapping: memory of a shared one would not go back when it is given up."""
    try:
        region = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"the system refuses {num_bytes:,} bytes for the {name} pool ({error}): lower the budget"
        ) from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        try:
            region.madvise(mmap.MADV_NOHUGEPAGE)
        except OSError:
            return region  # a system without huge pages refuses to be told not to use them
    return region
