"""Ids of KV blocks and of state slots, their reference counts, and the bytes they draw from one budget."""

from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
"""Ids of one pool, shape [n]."""

PoolName = Literal["kv", "state"]
T = TypeVar("T", bound=np.generic)


class MemoryBudget:
    """Bytes that KV blocks and state slots may hold together, or each with a share of its own.

    ``unified``: both pools draw on ``budget_bytes``. ``split``: blocks may hold at most
    ``kv_fraction * budget_bytes``, to the nearest byte, and slots the rest.
    """

    __slots__ = ("budget_bytes", "memory", "limits", "used", "used_bytes", "peak_bytes")

    def __init__(self, budget_bytes: float, memory: str = "unified", kv_fraction: float = 0.5) -> None:
        if not budget_bytes >= 0:
            raise ValueError(f"budget_bytes={budget_bytes!r}: give the budget in bytes, zero or more")
        if memory not in ("unified", "split"):
            raise ValueError(f"memory={memory!r}: choose 'unified' or 'split'")
        if memory == "split" and not 0.0 <= kv_fraction <= 1.0:
            raise ValueError(f"kv_fraction={kv_fraction!r}: the blocks' share of the budget lies in [0, 1]")
        self.budget_bytes = budget_bytes
        self.memory = memory
        shared = memory == "unified" or budget_bytes == float("inf")
        # Whole bytes: a share that was worked out from a number of blocks gives that many, not one fewer.
        kv_limit = budget_bytes if shared else min(round(budget_bytes * kv_fraction), budget_bytes)
        state_limit = budget_bytes if shared else budget_bytes - kv_limit
        self.limits: dict[str, float] = {"kv": kv_limit, "state": state_limit}
        """Bytes that each pool may hold at most."""
        self.used: dict[str, int] = {"kv": 0, "state": 0}
        """Bytes that each pool holds."""
        self.used_bytes = 0
        self.peak_bytes = 0
        """The largest ``used_bytes`` so far."""

    def room(self, pool: PoolName) -> float:
        """Bytes that ``pool`` could take now. Modifies nothing."""
        if self.memory == "unified":
            return self.budget_bytes - self.used_bytes
        return self.limits[pool] - self.used[pool]

    def take(self, pool: PoolName, num_bytes: int) -> None:
        """Draw bytes; the caller has made room for them before."""
        assert num_bytes <= self.room(pool), (pool, num_bytes, self.room(pool))
        self.used[pool] += num_bytes
        self.used_bytes += num_bytes
        if self.used_bytes > self.peak_bytes:
            self.peak_bytes = self.used_bytes

    def give_back(self, pool: PoolName, num_bytes: int) -> None:
        """Return bytes drawn before."""
        self.used[pool] -= num_bytes
        self.used_bytes -= num_bytes
        assert self.used[pool] >= 0, (pool, num_bytes, self.used)


class IdPool:
    """Ids 0, 1, 2, ... of one pool: which are free, and how many hold each of the others.

    The pool knows neither what an id stands for nor who holds it. Ids are dense: a new one is
    made only when no freed one is left, so storage addressed by ids stays as small as the peak.
    """

    __slots__ = (
        "name", "bytes_per_id", "budget", "num_ids", "num_used", "_free", "_num_free", "_num_seen", "_refs",
    )  # fmt: skip

    def __init__(self, name: PoolName, bytes_per_id: int, budget: MemoryBudget) -> None:
        self.name: PoolName = name
        self.bytes_per_id = bytes_per_id
        self.budget = budget
        self.num_ids = 0
        """Ids made so far; all are below this number."""
        self.num_used = 0
        self._free = np.empty(64, dtype=np.int64)
        self._num_free = 0
        self._num_seen = 0
        """The free ids below this number have been free since the last ``drain_freed``."""
        self._refs = np.zeros(64, dtype=np.int32)

    def allocate(self, n: int) -> Ids:
        """``n`` ids that nobody holds, each with one reference. The budget must have room for them."""
        if n == 1:
            return np.array([self._allocate_one()], dtype=np.int64)
        self.budget.take(self.name, n * self.bytes_per_id)
        left = max(self._num_free - n, 0)
        ids = self._free[left : self._num_free].copy()
        self._num_free = left
        if left < self._num_seen:
            self._num_seen = left
        if len(ids) < n:
            first, self.num_ids = self.num_ids, self.num_ids + n - len(ids)
            ids = np.concatenate((ids, np.arange(first, self.num_ids)))
            if self.num_ids > len(self._refs):
                self._refs = grown(self._refs, self.num_ids)
        self._refs[ids] = 1
        self.num_used += n
        return ids

    def retain(self, id_: int) -> None:
        """One more holder of an id that is held already."""
        assert self._refs[id_] > 0, (self.name, id_)
        self._refs[id_] += 1

    def release(self, ids: Ids) -> int:
        """End one reference to each of the distinct ``ids``; how many became free.

        Raises ValueError, and changes nothing, when one of them is not held.
        """
        if len(ids) <= 1:
            return self._release_one(int(ids[0])) if len(ids) else 0
        refs = self._refs.take(ids)
        # argmin and argmax find the extremes of a few hundred ids in a fraction of what min and max take.
        if refs.item(refs.argmin()) < 1:
            raise ValueError(f"{self.name} ids {ids[refs < 1].tolist()} are released but not held")
        if refs.item(refs.argmax()) == 1:
            self._refs[ids] = 0
            freed = ids
        else:
            self._refs[ids] = refs - 1
            freed = ids[refs == 1]
        n = len(freed)
        if n:
            if self._num_free + n > len(self._free):
                self._free = grown(self._free, self._num_free + n)
            self._free[self._num_free : self._num_free + n] = freed
            self._num_free += n
            self.num_used -= n
            self.budget.give_back(self.name, n * self.bytes_per_id)
        return n

    def _release_one(self, id_: int) -> int:
        refs = int(self._refs[id_]) - 1
        if refs < 0:
            raise ValueError(f"{self.name} id {id_} is released but not held")
        self._refs[id_] = refs
        if refs:
            return 0
        if self._num_free == len(self._free):
            self._free = grown(self._free, self._num_free + 1)
        self._free[self._num_free] = id_
        self._num_free += 1
        self.num_used -= 1
        self.budget.give_back(self.name, self.bytes_per_id)
        return 1

    def _allocate_one(self) -> int:
        self.budget.take(self.name, self.bytes_per_id)
        self.num_used += 1
        if self._num_free:
            self._num_free -= 1
            if self._num_free < self._num_seen:
                self._num_seen = self._num_free
            id_ = int(self._free[self._num_free])
        else:
            id_ = self.num_ids
            self.num_ids += 1
            if id_ == len(self._refs):
                self._refs = grown(self._refs, self.num_ids)
        self._refs[id_] = 1
        return id_

    def drain_freed(self) -> Ids:
        """Ids that became free since the last call, at first ever, and still are. Freed ids are reused last
        in, first out: what lies below the lowest level since then was free all the time.
        """
        ids = self._free[self._num_seen : self._num_free].copy()
        self._num_seen = self._num_free
        return ids

    def refs(self, id_: int) -> int:
        """How many hold ``id_``; 0 when it is free."""
        return int(self._refs[id_])

    def check(self, holders: NDArray[np.int64]) -> None:
        """Compare every count with ``holders`` [num_ids], the references counted by walking their holders."""
        assert (self._refs[: self.num_ids] == holders).all(), f"{self.name}: reference counts differ"
        free = self._free[: self._num_free]
        assert len(np.unique(free)) == len(free), f"{self.name}: an id is free twice"
        assert (self._refs[free] == 0).all(), f"{self.name}: a held id is free"
        assert self.num_used + len(free) == self.num_ids, f"{self.name}: ids were lost"
        assert self.num_used * self.bytes_per_id == self.budget.used[self.name], f"{self.name}: bytes differ"


class BlockPool(IdPool):
    """KV blocks: ``block_size`` consecutive tokens' K and V of all attention layers.

    A block that straddles a split is held by both nodes. A model without attention has none:
    ``blocks_for`` is 0 for any number of tokens.
    """

    __slots__ = ("block_size",)

    def __init__(self, block_size: int, kv_bytes_per_token: int, budget: MemoryBudget) -> None:
        if block_size < 1 or block_size % 1:
            raise ValueError(f"block_size={block_size}: give the tokens of a block, a whole number from 1")
        super().__init__("kv", block_size * kv_bytes_per_token, budget)
        self.block_size = block_size

    def index(self, position: int) -> int:
        """The index in a sequence of the block that holds the token at ``position``."""
        return position // self.block_size if self.bytes_per_id else 0

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that ``num_tokens`` tokens from position 0 fill, the last one perhaps in part."""
        return -(-num_tokens // self.block_size) if self.bytes_per_id else 0

    def tail(self, position: int) -> int:
        """Tokens before ``position`` in the block that ``position`` lies in; 0 at a block boundary."""
        return position % self.block_size if self.bytes_per_id else 0


class SlotPool(IdPool):
    """State slots: one copy of every recurrent layer's state. Never shared: one reference or none."""

    __slots__ = ()

    def __init__(self, checkpoint_bytes: int, budget: MemoryBudget) -> None:
        super().__init__("state", checkpoint_bytes, budget)

    def take(self) -> int:
        """One slot; the budget must have room for it."""
        return self._allocate_one()

    def free(self, slot: int) -> None:
        """Give a slot back. Raises ValueError when it is not held."""
        self._release_one(slot)


def grown(array: NDArray[T], at_least: int) -> NDArray[T]:
    """A copy of ``array`` with room for ``at_least`` elements, zeros behind the old ones."""
    bigger = np.zeros(max(at_least, 2 * len(array)), dtype=array.dtype)
    bigger[: len(array)] = array
    return bigger
