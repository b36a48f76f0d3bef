"""Token hit rates on recorded traces against the figures of the design's prototype.

The traces lie beside the project, in the folder named by HYBRIDCACHE_TRACES or in ../shared/traces; without
them the tests are skipped.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from math import inf
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from omegaconf import OmegaConf

from hybridcache.experiments.replay_cache import replay_cache
from hybridcache.experiments.request_rows import RequestRows
from hybridcache.experiments.traces.open import open_trace
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.prefix_cache import PrefixCache
from hybridcache.spec import ModelSpec

ROOT = Path(__file__).resolve().parent.parent
TRACES = Path(os.environ.get("HYBRIDCACHE_TRACES", ROOT.parent / "shared" / "traces"))


@dataclass(frozen=True, slots=True)
class Row:
    """One trace, its budgets in GB, and the prototype's token hit rates in percent."""

    file: str
    settings: dict[str, Any]
    budgets: tuple[float, float, float]
    infinite: float
    lru: tuple[float, float, float]
    age_density: tuple[float, float, float]
    hit_density: tuple[float, float, float]


ROWS = (
    Row("agent_100.npz", {"kind": "npz"}, (20, 40, 80), 97.4,
        (15.3, 35.4, 82.4), (15.7, 36.8, 88.9), (36.1, 61.3, 94.2)),
    Row("tools_airline.npz", {"kind": "npz"}, (2, 4, 8), 95.1,
        (47.1, 62.7, 87.6), (54.9, 76.0, 91.9), (59.5, 79.8, 95.1)),
    Row("chat_5turns.npz", {"kind": "npz"}, (2, 4, 8), 95.1,
        (37.6, 67.2, 87.9), (45.0, 74.1, 89.4), (49.7, 84.3, 92.3)),
    Row("conversation_trace.jsonl.gz", {"kind": "mooncake", "min_blocks": 2, "every_kth_session": 8},
        (60, 120, 240), 36.0, (22.5, 30.9, 35.4), (22.2, 30.3, 35.2), (20.5, 30.2, 35.0)),
    Row("synthetic_trace.jsonl.gz", {"kind": "mooncake", "min_blocks": 1, "every_kth_session": 4},
        (60, 120, 240), 53.4, (21.0, 35.7, 51.0), (22.9, 36.8, 51.2), (23.0, 37.1, 52.3)),
)  # fmt: skip
POLICIES = ("lru", "age_density", "hit_density", "reuse_rate")
TOURNAMENT = (37.2, 61.8, 93.9, 56.2, 80.2, 94.6, 51.4, 83.8, 92.7, 22.8, 30.3, 35.2, 28.5, 39.4, 51.8)
"""What the prototype's tournament of three shadow caches reached, in the order of ROWS and their budgets."""
Cell = tuple[str, float, str]


def hit_rate(row: Row, budget_gb: float, eviction: str) -> float:
    """Percent of the input tokens hit; every sum and bound of the run is checked on the way."""
    geometry = OmegaConf.to_container(OmegaConf.load(ROOT / "conf" / "model" / "nvidia_hybrid_7b.yaml"))
    assert isinstance(geometry, dict)
    cache = PrefixCache(
        ModelSpec.from_config({str(key): value for key, value in geometry.items()}),
        budget_bytes=budget_gb * 1e9,
        eviction=build_eviction(eviction),
        admission=build_admission("branch_and_final"),
    )
    rows = RequestRows(None)
    replay_cache(open_trace(path=str(TRACES / row.file), **row.settings), cache, cache.spec, rows)
    rows.close()
    cache.check()
    totals = rows.totals
    assert totals.hit_tokens + sum(totals.lost_tokens.values()) == totals.input_tokens
    assert cache.peak_bytes <= budget_gb * 1e9
    return 100 * totals.hit_tokens / totals.input_tokens


@pytest.fixture(scope="module")
def rates() -> dict[Cell, float]:
    """Token hit rate in percent by trace, budget in GB and policy."""
    missing = [row.file for row in ROWS if not (TRACES / row.file).is_file()]
    if missing:
        pytest.skip(f"{TRACES} lacks {', '.join(missing)}; set HYBRIDCACHE_TRACES to the traces' folder")
    cells = [
        *((row, budget, policy) for row in ROWS for budget, policy in product(row.budgets, POLICIES)),
        *((row, inf, "lru") for row in ROWS),
    ]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        found = list(pool.map(hit_rate, *zip(*cells, strict=True)))
    names = ((row.file, budget, policy) for row, budget, policy in cells)
    return dict(zip(names, found, strict=True))


@pytest.mark.full
def test_infinite_cache(rates: dict[Cell, float]) -> None:
    for row in ROWS:
        assert rates[row.file, inf, "lru"] == pytest.approx(row.infinite, abs=0.5), row.file


@pytest.mark.full
@pytest.mark.parametrize("policy", ["lru", "age_density"])
def test_simple_policies(rates: dict[Cell, float], policy: str) -> None:
    for row in ROWS:
        for budget, figure in zip(row.budgets, getattr(row, policy), strict=True):
            assert rates[row.file, budget, policy] == pytest.approx(figure, abs=1.5), (row.file, budget)


@pytest.mark.full
def test_hit_density(rates: dict[Cell, float]) -> None:
    gains = {
        (row.file, budget): rates[row.file, budget, "hit_density"] - figure
        for row in ROWS
        for budget, figure in zip(row.budgets, row.hit_density, strict=True)
    }
    assert min(gains.values()) >= -2.5, gains
    assert mean(gains.values()) >= 0.0, gains


@pytest.mark.full
def test_reuse_rate(rates: dict[Cell, float]) -> None:
    cells = [(row.file, budget) for row in ROWS for budget in row.budgets]
    reached = {cell: rates[*cell, "reuse_rate"] for cell in cells}
    best = {cell: max(rates[*cell, other] for other in POLICIES[:-1]) for cell in cells}
    behind = {cell: reached[cell] - best[cell] for cell in cells}
    assert min(behind.values()) >= -1.0, behind
    assert mean(behind.values()) > 0.0, behind
    assert mean(reached.values()) >= mean(TOURNAMENT), reached
