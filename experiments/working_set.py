"""The live working set: bytes that will be used again, over the time of a trace."""

from array import array
from typing import NamedTuple

import numpy as np

from hybridcache.prefix_hash import Digest, PrefixHash
from hybridcache.spec import ModelSpec
from hybridcache.tokens import TOKEN_BYTES


class WorkingSetBytes(NamedTuple):
    """Bytes; percentiles weigh each moment alike."""

    mean: float
    p95: float
    peak: float


class WorkingSet:
    """Blocks and checkpoints of one namespace, each live from when it is there until its last use.

    A cache of that size that knew the future would hit what an infinite one hits. 24 bytes a distinct block.
    """

    def __init__(self, spec: ModelSpec, block_size: int) -> None:
        self._spec = spec
        self._block_size = block_size
        self._numbers: dict[Digest, int] = {}  # digest of a prefix -> its last block's number
        self._above = array("q")  # by block: the one before it; -1 for the first
        self._there = array("d")  # by block: seconds
        self._used = array("d")  # by block: seconds of the last use of it or of one that comes after it
        self._last = 0.0
        self._checkpoints = array("d")  # (from, until) seconds of each checkpoint's wait for a resumption

    def add(self, tokens: bytes, hit: int, now: float, resumed_from: float | None) -> None:
        """A request that leaves `tokens` (native uint32) behind, `hit` of which were there already.

        `resumed_from`: since when the checkpoint that it resumed at has waited, seconds; None for none.
        """
        self._last = now
        if resumed_from is not None:
            self._checkpoints.extend((resumed_from, now))
        size = self._block_size
        step, prefix = size * TOKEN_BYTES, PrefixHash()
        above = -1
        hit_blocks = -(-hit // size)
        for place in range(1, len(tokens) // step + 1):
            prefix.update(tokens[(place - 1) * step : place * step])
            number = self._numbers.setdefault(prefix.intdigest(), len(self._above))
            if number == len(self._above):
                self._above.append(above)
                self._there.append(now)
                self._used.append(now)
            elif place == hit_blocks:
                self._used[number] = now
            above = number

    def total(self) -> WorkingSetBytes:
        """Over the time from the first request to the last."""
        there, used = np.frombuffer(self._there), np.frombuffer(self._used).copy()
        above = np.frombuffer(self._above, np.int64)
        for block in range(len(above) - 1, -1, -1):  # one comes after those it continues
            if above[block] >= 0 and used[above[block]] < used[block]:
                used[above[block]] = used[block]
        waits = np.frombuffer(self._checkpoints).reshape(-1, 2)
        block_bytes = self._block_size * self._spec.kv_bytes_per_token
        times = np.concatenate([there, used, waits[:, 0], waits[:, 1], [self._last]])
        steps = np.concatenate(
            [
                np.full(len(there), block_bytes),
                np.full(len(used), -block_bytes),
                np.full(len(waits), self._spec.checkpoint_bytes),
                np.full(len(waits), -self._spec.checkpoint_bytes),
                [0],
            ]
        ).astype(np.float64)
        order = np.argsort(times, kind="stable")
        moments, first = np.unique(times[order], return_index=True)
        held = np.cumsum(np.add.reduceat(steps[order], first))[:-1]
        seconds = np.diff(moments)
        if not seconds.sum():
            return WorkingSetBytes(0.0, 0.0, 0.0)
        by_size = np.argsort(held)
        share = np.cumsum(seconds[by_size]) / seconds.sum()
        p95 = held[by_size][np.searchsorted(share, 0.95)]
        return WorkingSetBytes(float((held * seconds).sum() / seconds.sum()), float(p95), float(held.max()))
