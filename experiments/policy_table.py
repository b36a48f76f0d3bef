"""Every eviction policy on every built-in workload: ``python -m hybridcache.experiments.policy_table``.

Prints token hit rates in percent and, last, how far a policy is above or below the best of the others.
``--pace`` stretches the time between arrivals, so that policies which learn have few events a minute.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from omegaconf import OmegaConf

from hybridcache.experiments.replay_cache import replay_cache
from hybridcache.experiments.request_rows import RequestRows
from hybridcache.experiments.traces.open import open_trace
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.prefix_cache import PrefixCache
from hybridcache.spec import ModelSpec

CONF = Path(__file__).resolve().parent.parent / "conf"
POLICIES: dict[str, tuple[str, dict[str, float]]] = {
    "lru": ("lru", {}),
    "gdsf": ("gdsf", {}),
    "marconi 0": ("marconi", {"alpha": 0.0}),
    "marconi 1": ("marconi", {"alpha": 1.0}),
    "age_density": ("age_density", {"tau_seconds": 30.0}),
    "hit_density": ("hit_density", {}),
    "reuse_rate": ("reuse_rate", {}),
}
"""Name and settings by the head of a column."""
WORKLOADS = ("chat", "agent", "few_shot", "rag", "tree_search", "scan")
JUDGED = "reuse_rate"


class Cell(NamedTuple):
    """One row of the table."""

    workload: str
    pace: float
    """Arrivals are so many times as far apart."""
    budget_gb: float
    """1e9 bytes."""
    seed: int


def hit_rates(cell: Cell, model: str, num_requests: int) -> dict[str, float]:
    """Token hit rate in percent of each policy, with ``admission=branch_and_final``."""
    geometry = OmegaConf.to_container(OmegaConf.load(CONF / "model" / f"{model}.yaml"))
    assert isinstance(geometry, dict)
    spec = ModelSpec.from_config({str(key): value for key, value in geometry.items()})
    trace = open_trace(cell.workload, requests=num_requests, seed=cell.seed)
    requests = [request._replace(arrival=request.arrival * cell.pace) for request in trace]
    found = {}
    for head, (name, settings) in POLICIES.items():
        cache = PrefixCache(
            spec,
            budget_bytes=cell.budget_gb * 1e9,
            eviction=build_eviction(name, **settings),
            admission=build_admission("branch_and_final"),
        )
        rows = RequestRows(None)
        replay_cache(requests, cache, spec, rows)
        rows.close()
        cache.check()
        found[head] = 100 * rows.totals.hit_tokens / rows.totals.input_tokens
    return found


def line(cell: Cell, rates: dict[str, float]) -> str:
    """A row of the table."""
    ahead = rates[JUDGED] - max(rate for head, rate in rates.items() if head != JUDGED)
    figures = "".join(f"{rate:12.1f}" for rate in rates.values())
    return f"{cell.workload:12}{cell.pace:6g}{cell.budget_gb:6g}{cell.seed:6}{figures}{ahead:+10.1f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--model", default="nvidia_hybrid_7b", choices=sorted(p.stem for p in (CONF / "model").glob("*.yaml"))
    )
    parser.add_argument("--workloads", nargs="+", default=WORKLOADS, choices=WORKLOADS)
    parser.add_argument(
        "--pace", nargs="+", type=float, default=[1.0, 30.0, 300.0], help="times the usual gaps"
    )
    parser.add_argument("--budget-gb", nargs="+", type=float, default=[2.0, 6.0], help="1e9 bytes")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--requests", type=int, default=1200, help="of each workload")
    options = parser.parse_args(arguments)
    cells = [
        Cell(*values) for values in product(options.workloads, options.pace, options.budget_gb, options.seeds)
    ]
    heads = "".join(f"{head:>12}" for head in POLICIES)
    print(f"{'workload':12}{'pace':>6}{'GB':>6}{'seed':>6}{heads}{'ahead':>10}")
    count = len(cells)
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        results = pool.map(hit_rates, cells, [options.model] * count, [options.requests] * count)
        for cell, rates in zip(cells, results, strict=True):
            print(line(cell, rates), flush=True)


if __name__ == "__main__":
    main()
