"""One row per replayed request: totals as they come, and requests.parquet."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hybridcache.experiments.replay_totals import ReplayTotals
from hybridcache.loss import LOSS_REASONS

COLUMNS: dict[str, str] = {
    "index": "int64",  # place in the trace, from 0
    "arrival_seconds": "float64",  # after the trace's first request
    "session": "int64",
    "turn": "int64",
    "prompt_tokens": "int64",
    "output_tokens": "int64",
    "refused": "bool",  # could never fit the budget
    "hit_tokens": "int64",
    "matched_tokens": "int64",
    "flops_total": "float64",  # of the whole prompt, nothing reused
    "flops_saved": "float64",  # of the hit tokens
    "checkpoints_admitted": "int64",
    "evictions": "int64",  # tree nodes or checkpoints evicted meanwhile
    **{f"lost_{reason}": "int64" for reason in LOSS_REASONS},  # tokens
}
"""Column -> dtype, in the order of a row; prompt_tokens = hit_tokens + the sum of the lost columns."""

TIMED_COLUMNS: dict[str, str] = {
    **COLUMNS,
    "queue_seconds": "float64",  # from the arrival to the first step; not a number for refused requests
    "ttft_seconds": "float64",  # from the arrival to the first token
    "e2e_seconds": "float64",  # from the arrival to the end
    "preemptions": "int64",  # times that it lost its place and acquired again
}
"""Those of a replay in which time passes."""

Row = tuple[float, ...]
Columns = dict[str, NDArray[Any]]

FOLD_ROWS = 512  # rows kept as Python tuples at most
GROUP_ROWS = 16_384  # rows of one Parquet row group, the most that are kept in memory


class RequestRows:
    """Collects rows; memory does not grow with their number.

    Args:
        path: the Parquet file to write, or None to keep the totals only.
        on_fold: called with each batch of columns ([k], k <= FOLD_ROWS), after the totals have taken it in.
        columns: what a row consists of, COLUMNS or TIMED_COLUMNS.
        on_row: called with each row.
    """

    def __init__(
        self,
        path: Path | None,
        on_fold: Callable[[Columns], None] | None = None,
        columns: Mapping[str, str] = COLUMNS,
        on_row: Callable[[Row], None] | None = None,
    ) -> None:
        self.totals = ReplayTotals()
        self._columns = columns
        self._on_fold = on_fold
        self._on_row = on_row
        self._pending: list[Row] = []
        self._folded: list[Columns] = []
        self._num_folded = 0  # rows in _folded
        self._path = path
        self._writer: pq.ParquetWriter | None = None
        if path is not None:
            schema = pa.schema(
                [(name, pa.from_numpy_dtype(np.dtype(dtype))) for name, dtype in columns.items()]
            )
            self._writer = pq.ParquetWriter(_draft(path), schema)

    def append(self, row: Row) -> None:
        """Add one request's values, in the order of the columns."""
        self._pending.append(row)
        if self._on_row is not None:
            self._on_row(row)
        if len(self._pending) == FOLD_ROWS:
            self._fold()

    def close(self) -> None:
        """Write what is left; the file appears under its own name only now."""
        self._fold()
        if self._writer is not None and self._path is not None:
            self._write_group()
            self._writer.close()
            self._writer = None
            _draft(self._path).replace(self._path)

    def abandon(self) -> None:
        """Forget the file of a replay that failed."""
        if self._writer is not None and self._path is not None:
            self._writer.close()
            self._writer = None
            _draft(self._path).unlink(missing_ok=True)

    def _fold(self) -> None:
        if not self._pending:
            return
        values = zip(*self._pending, strict=True)
        columns: Columns = {
            name: np.array(value, dtype=dtype)
            for (name, dtype), value in zip(self._columns.items(), values, strict=True)
        }
        self._pending.clear()
        lost = {reason: columns[f"lost_{reason}"] for reason in LOSS_REASONS}
        accounted = columns["hit_tokens"] + sum(lost.values())
        wrong = np.flatnonzero(accounted != columns["prompt_tokens"])
        assert not len(wrong), f"request {columns['index'][wrong[0]]}: hit + lost differ from the prompt"
        totals = self.totals
        totals.requests += len(accounted)
        totals.requests_refused += int(columns["refused"].sum())
        totals.requests_hit += int((columns["hit_tokens"] > 0).sum())
        totals.input_tokens += int(columns["prompt_tokens"].sum())
        totals.output_tokens += int(columns["output_tokens"].sum())
        totals.hit_tokens += int(columns["hit_tokens"].sum())
        totals.matched_tokens += int(columns["matched_tokens"].sum())
        totals.flops_total += math.fsum(columns["flops_total"])
        totals.flops_saved += math.fsum(columns["flops_saved"])
        for reason, tokens in lost.items():
            totals.lost_tokens[reason] += int(tokens.sum())
        if self._on_fold is not None:
            self._on_fold(columns)
        if self._writer is not None:
            self._folded.append(columns)
            self._num_folded += len(accounted)
            if self._num_folded >= GROUP_ROWS:
                self._write_group()

    def _write_group(self) -> None:
        if not self._folded:
            return
        assert self._writer is not None
        names = list(self._columns)
        arrays = [pa.array(np.concatenate([columns[name] for columns in self._folded])) for name in names]
        self._writer.write_table(pa.table(arrays, names=names))
        self._folded.clear()
        self._num_folded = 0


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.draft")
