"""What a replay in which time passes adds to summary.json."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridcache.experiments.request_rows import TIMED_COLUMNS, Columns
from hybridcache.experiments.simulation import TimedEngine

TIMES = ("ttft_seconds", "e2e_seconds", "queue_seconds")
PERCENTILES = (50, 95, 99)


class ReplayTimes:
    """The seconds of every request that was served; 24 bytes a request."""

    def __init__(self) -> None:
        self._parts: dict[str, list[NDArray[np.float64]]] = {name: [] for name in TIMES}

    def add(self, columns: Columns) -> None:
        """Take in rows, refused requests left out; rows without times add nothing."""
        if columns.keys() != TIMED_COLUMNS.keys():
            return
        served = ~columns["refused"]
        for name, parts in self._parts.items():
            parts.append(columns[name][served])

    def of(self, name: str) -> dict[str, float]:
        """Mean and percentiles, seconds; all 0 where nothing was served."""
        values = np.concatenate([np.zeros(0), *self._parts[name]])
        if not len(values):
            values = np.zeros(1)
        percentiles = np.percentile(values, PERCENTILES).tolist()
        return {"mean": float(values.mean())} | {
            f"p{p}": value for p, value in zip(PERCENTILES, percentiles, strict=True)
        }


def engine_summary(served: TimedEngine, times: ReplayTimes) -> dict[str, Any]:
    """JSON-ready; README.md explains every key."""
    engine = served.engine
    seconds = served.clock.now()
    stats, scheduler = engine.stats, engine.scheduler.stats

    def rate(count: float) -> float:
        return count / seconds if seconds else 0.0

    return {
        **{name: times.of(name) for name in TIMES},
        "simulated_seconds": seconds,
        "busy_fraction": rate(served.runner.busy_seconds),
        "output_tokens_per_second": rate(stats.generated_tokens),
        "steps": stats.steps,
        "computed_tokens": stats.computed_tokens,
        "preemptions": scheduler.num_preemptions,
        "waits": scheduler.num_waits,
    }
