"""What a cache holds while a replay goes on, what came of it, and what its policy has learnt by then."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hybridcache.experiments.request_rows import Row
from hybridcache.policies.columns import KIND_NAMES
from hybridcache.prefix_cache import PrefixCache

MOST_SAMPLES = 400
"""Besides the first and the last."""

COLUMNS = (
    "requests",  # so far
    "seconds",  # arrival of the last of them
    "kv_bytes",  # of all blocks, running requests included
    "running_state_bytes",  # of states that are no checkpoints
    *(f"{kind}_bytes" for kind in KIND_NAMES),  # of checkpoints, by the kind of their position
    "input_tokens",  # this and the rest: sums so far
    "hit_tokens",
    "flops_saved",
    *(f"{kind}_admitted" for kind in KIND_NAMES),  # checkpoints
    *(f"{kind}_hits" for kind in KIND_NAMES),  # requests that resumed at one
    *(f"{kind}_flops_saved" for kind in KIND_NAMES),
)
"""Columns of timeline.parquet; then come those of the policy, which begin with LEARNT."""

LEARNT = "learnt "


class Timeline:
    """Samples of one replay at even distances, in requests; a longer trace has no more of them.

    With mode=engine and mode=worker a request counts when all before it have ended too, while the sums hold
    whatever has begun.
    """

    def __init__(self, cache: PrefixCache, num_requests: int) -> None:
        """``cache``: empty; ``num_requests``: of the whole trace."""
        self._cache = cache
        self._every = max(1, -(-num_requests // MOST_SAMPLES))
        self._requests = 0
        self._samples: list[tuple[float, ...]] = []
        self._learnt: list[Mapping[str, float]] = []
        self._last: Row = (0, 0.0)
        self._sample()

    def after(self, row: Row) -> None:
        """One more request, of this row of requests.parquet."""
        self._requests += 1
        self._last = row
        if self._requests % self._every == 0:
            self._sample()

    def write(self, path: Path) -> None:
        """Sample the end too, and write everything."""
        if self._requests % self._every:
            self._sample()
        values = dict(zip(COLUMNS, np.array(self._samples).T, strict=True))
        for name in dict.fromkeys(name for learnt in self._learnt for name in learnt):
            values[LEARNT + name] = np.array([learnt.get(name, np.nan) for learnt in self._learnt])
        pq.write_table(pa.table({name: pa.array(column) for name, column in values.items()}), path)

    def _sample(self) -> None:
        store, stats = self._cache.store, self._cache.stats
        used, slot_bytes = store.budget.used, store.slots.bytes_per_id
        checkpoints = store.table.resumable_by_kind() * slot_bytes
        self._learnt.append(store.evictor.policy.learnt())
        self._samples.append(
            (
                self._requests,
                self._last[1],
                used["kv"],
                used["state"] - int(checkpoints.sum()),
                *checkpoints.tolist(),
                stats.input_tokens,
                stats.hit_tokens,
                stats.flops_saved,
                *stats.admitted_by_kind,
                *stats.hits_by_kind,
                *stats.flops_saved_by_kind,
            )
        )


def read_timeline(path: Path) -> dict[str, NDArray[np.float64]]:
    """By column, each [samples]. Raises OSError where there is none."""
    table = pq.read_table(path)
    return {name: table.column(name).to_numpy() for name in table.column_names}
