"""Eviction policies on built-in and recorded workloads: ``python -m hybridcache.experiments.policy_table``.

Prints token hit rates in percent, means over the seeds, and the largest spread (standard deviation over the
seeds) of a policy; then how far `reuse_rate` is above or below the best mean of the others, and the spread of
its lead. ``--pace`` stretches the time between arrivals, ``--burst`` lets sessions start in bursts,
``--traces DIR`` adds the recorded traces of the design. ``--parts`` shows what its parts give,
``--baselines`` other engines' rules, each with its own admission and memory, as lines above the table state.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from hybridcache.experiments.argument import count, mean_count, positive, seed
from hybridcache.experiments.assisted_cache import assisted_cache
from hybridcache.experiments.policy_columns import BASELINES, COLUMNS, JUDGED, OTHERS, PARTS, USUAL
from hybridcache.experiments.replay_cache import replay_cache
from hybridcache.experiments.request_rows import RequestRows
from hybridcache.experiments.traces.open import open_trace
from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.prefix_cache import PrefixCache
from hybridcache.spec import ModelSpec

CONF = Path(__file__).resolve().parent.parent / "conf"
MIXED = "mixed"
WORKLOADS = ("chat", "agent", "few_shot", "rag", "tree_search", "scan", MIXED)
RECORDED: dict[str, tuple[tuple[float, ...], dict[str, Any]]] = {
    "agent_100.npz": ((20.0, 40.0, 80.0), {"kind": "npz"}),
    "tools_airline.npz": ((2.0, 4.0, 8.0), {"kind": "npz"}),
    "chat_5turns.npz": ((2.0, 4.0, 8.0), {"kind": "npz"}),
    "conversation_trace.jsonl.gz": (
        (60.0, 120.0, 240.0),
        {"kind": "mooncake", "min_blocks": 2, "every_kth_session": 8},
    ),
    "synthetic_trace.jsonl.gz": (
        (60.0, 120.0, 240.0),
        {"kind": "mooncake", "min_blocks": 1, "every_kth_session": 4},
    ),
}
"""Budgets in GB and settings of the trace, by file."""
Rates = dict[str, float]


class Cell(NamedTuple):
    """One row of the table."""

    workload: str
    """A built-in one, or the path of a recorded trace."""
    pace: float
    """Arrivals are so many times as far apart."""
    burst: float
    """Sessions a burst."""
    budget_gb: float
    """1e9 bytes."""


def requests_of(cell: Cell, seed: int, num_requests: int) -> list[TraceRequest]:
    """What is replayed; ``num_requests`` and ``seed`` are of no account to a recorded trace."""
    path = Path(cell.workload)
    if path.name in RECORDED:
        return list(open_trace(path=cell.workload, **RECORDED[path.name][1]))
    if cell.workload == MIXED:
        trace: Iterable[TraceRequest] = mixed_requests(num_requests, seed, cell.burst)
    else:
        trace = open_trace(cell.workload, requests=num_requests, seed=seed, sessions_per_burst=cell.burst)
    return [request._replace(arrival=request.arrival * cell.pace) for request in trace]


def mixed_requests(num_requests: int, seed: int, burst: float) -> list[TraceRequest]:
    """Single questions on many documents, all alike; after a quarter of them long, slow chats beside them."""
    num_chat = num_requests * 2 // 5
    questions = list(
        open_trace(
            "scan", requests=num_requests - num_chat, seed=seed, sessions_per_burst=burst,
            sessions_per_second=0.2, documents=200, popularity_exponent=0.0, scan_fraction=0.0,
        )
    )  # fmt: skip
    start = questions[len(questions) // 4].arrival
    chats = open_trace(
        "chat", requests=num_chat, seed=seed + 1, sessions_per_burst=burst,
        sessions_per_second=0.01, think_seconds=120.0, turns=30.0,
    )  # fmt: skip
    shifted = (
        request._replace(arrival=request.arrival + start, session=request.session + len(questions))
        for request in chats
    )
    return sorted([*questions, *shifted], key=lambda request: request.arrival)


def hit_rates(cell: Cell, seed: int, model: str, num_requests: int, heads: Sequence[str] = USUAL) -> Rates:
    """Token hit rate in percent by column; ``admission=branch_and_final`` where it has no other."""
    return rates_of(requests_of(cell, seed, num_requests), spec_of(model), cell.budget_gb, heads)


def rates_of(
    requests: Sequence[TraceRequest], spec: ModelSpec, budget_gb: float, heads: Sequence[str]
) -> Rates:
    """The same for any requests, each column with a cache of its own."""
    found = {}
    for head in heads:
        cache = assisted_cache(
            spec,
            requests,
            budget_bytes=budget_gb * 1e9,
            eviction=COLUMNS[head].build(),
            admission=COLUMNS[head].build_admission(),
            **COLUMNS[head].cache,
        )
        found[head] = hit_rate(requests, cache, spec)
    return found


def spec_of(model: str) -> ModelSpec:
    """The geometry of a file of conf/model/."""
    geometry = OmegaConf.to_container(OmegaConf.load(CONF / "model" / f"{model}.yaml"))
    assert isinstance(geometry, dict)
    return ModelSpec.from_config({str(key): value for key, value in geometry.items()})


def hit_rate(requests: Sequence[TraceRequest], cache: PrefixCache, spec: ModelSpec) -> float:
    """Token hit rate in percent of a replay through an empty ``cache``, which is checked at its end."""
    rows = RequestRows(None)
    replay_cache(requests, cache, spec, rows)
    rows.close()
    cache.check()
    return 100 * rows.totals.hit_tokens / rows.totals.input_tokens


def ahead(rates: Rates) -> float:
    """Points by which the judged policy is above the best of the others."""
    return rates[JUDGED] - max(rate for head, rate in rates.items() if head in OTHERS)


def line(cell: Cell, by_seed: Sequence[Rates]) -> str:
    """A row of the table: means over the seeds."""
    means = {head: fmean(rates[head] for rates in by_seed) for head in by_seed[0]}
    figures = "".join(f"{rate:12.1f}" for rate in means.values())
    facts = f"{Path(cell.workload).name[:16]:17}{cell.pace:6g}{cell.burst:6g}{cell.budget_gb:6g}"
    largest = max(_spread([rates[head] for rates in by_seed]) for head in means)
    return f"{facts}{figures}{largest:8.1f}{ahead(means):+8.1f}{_spread(list(map(ahead, by_seed))):8.1f}"


def _spread(values: Sequence[float]) -> float:
    """The standard deviation over the seeds; 0 with one seed."""
    return stdev(values) if len(values) > 1 else 0.0


def rows_of(
    cells: Sequence[Cell], seeds: Sequence[int], model: str, num_requests: int, heads: Sequence[str]
) -> Iterator[list[Rates]]:
    """For each cell the rates of each seed (a recorded trace has one), computed on all CPUs."""
    tasks = [
        (cell, seed)
        for cell in cells
        for seed in (seeds[:1] if Path(cell.workload).name in RECORDED else seeds)
    ]
    count = len(tasks)
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        found = pool.map(
            hit_rates, *zip(*tasks, strict=True), [model] * count, [num_requests] * count, [heads] * count
        )
        row: list[Rates] = []
        for (cell, _), after, rates in zip(tasks, [*tasks[1:], (None, 0)], found, strict=True):
            row.append(rates)
            if after[0] != cell:
                yield row
                row = []


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one table for each model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    models = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))
    parser.add_argument("--models", "--model", nargs="+", default=["nvidia_hybrid_7b"], choices=models)
    parser.add_argument("--workloads", nargs="*", default=WORKLOADS, choices=WORKLOADS)
    parser.add_argument(
        "--pace", nargs="+", type=positive, default=[1.0, 30.0, 300.0], help="times the usual gaps"
    )
    parser.add_argument(
        "--burst", nargs="+", type=mean_count, default=[1.0], help="sessions a burst; 1: Poisson"
    )
    parser.add_argument("--budget-gb", nargs="+", type=positive, default=[2.0, 6.0], help="1e9 bytes")
    parser.add_argument("--seeds", nargs="+", type=seed, default=[0])
    parser.add_argument("--requests", type=count, default=1200, help="of each workload")
    parser.add_argument("--traces", type=Path, help="folder with recorded traces, which are added")
    parser.add_argument("--columns", nargs="+", default=USUAL, choices=list(COLUMNS), help="what to compare")
    parser.add_argument("--parts", action="store_true", help="compare reuse_rate with what its parts give")
    parser.add_argument("--baselines", action="store_true", help="compare it with other engines' rules")
    options = parser.parse_args(arguments)
    cells = [
        Cell(*values) for values in product(options.workloads, options.pace, options.burst, options.budget_gb)
    ]
    if options.traces is not None:
        found = [options.traces / name for name in RECORDED if (options.traces / name).is_file()]
        if not found:
            parser.error(f"--traces {options.traces}: none of {', '.join(RECORDED)} is there")
        cells += [Cell(str(path), 1.0, 1.0, budget) for path in found for budget in RECORDED[path.name][0]]
    heads = PARTS if options.parts else BASELINES if options.baselines else options.columns
    if JUDGED not in heads or not set(heads) & set(OTHERS):
        parser.error(f"--columns {' '.join(heads)}: name {JUDGED}, and one of {', '.join(OTHERS)}")
    facts = f"{'workload':17}{'pace':>6}{'burst':>6}{'GB':>6}"
    titles = "".join(f"{head:>12}" for head in heads)
    for head in heads:
        if COLUMNS[head].own_rules:
            print(f"{head}: {COLUMNS[head].own_rules}")
    for model in options.models:
        print(f"{model}\n{facts}{titles}{'spread':>8}{'ahead':>8}{'spread':>8}")
        rows = rows_of(cells, options.seeds, model, options.requests, heads)
        for cell, by_seed in zip(cells, rows, strict=True):
            print(line(cell, by_seed), flush=True)


if __name__ == "__main__":
    main()
