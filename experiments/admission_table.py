"""Admission policies on workloads and traces: ``python -m hybridcache.experiments.admission_table``.

Prints the token hit rate in percent of the first column, and how many points each other one is above or below
it: means over the seeds, and the lowest of them in brackets. ``--traces DIR`` adds the recorded traces of
the design, ``--unmarked`` hides where messages end.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

from hybridcache.experiments.argument import count, positive, seed
from hybridcache.experiments.policy_table import CONF, RECORDED, Cell, Rates, hit_rate, requests_of, spec_of
from hybridcache.experiments.policy_table import WORKLOADS as PLAIN
from hybridcache.policies.build import EVICTION, build_admission, build_eviction
from hybridcache.prefix_cache import PrefixCache

COLUMNS: dict[str, tuple[str, dict[str, Any]]] = {
    "branch_and_final": ("branch_and_final", {}),
    "branch_final_prompt": ("branch_final_prompt", {}),
    "first_sight": ("first_sight", {}),
    "interior": ("first_sight", {"inside_tokens": 512}),
}
"""Name and settings by the head of a column; the first is what the others are compared with."""
WORKLOADS = (*PLAIN, "edited_agent")


def hit_rates(cell: Cell, seed: int, model: str, eviction: str, num_requests: int, unmarked: bool) -> Rates:
    """Token hit rate in percent by column."""
    spec, requests = spec_of(model), requests_of(cell, seed, num_requests)
    if unmarked:
        requests = [request._replace(boundaries=request.boundaries[-1:]) for request in requests]
    found = {}
    for head, (name, settings) in COLUMNS.items():
        cache = PrefixCache(
            spec,
            budget_bytes=cell.budget_gb * 1e9,
            eviction=build_eviction(eviction),
            admission=build_admission(name, **settings),
        )
        found[head] = hit_rate(requests, cache, spec)
    return found


def line(cell: Cell, by_seed: Sequence[Rates]) -> str:
    """A row of the table."""
    base, *others = COLUMNS
    text = f"{Path(cell.workload).name[:16]:17}{cell.pace:6g}{cell.budget_gb:6g}"
    text += f"{fmean(rates[base] for rates in by_seed):20.1f}"
    for head in others:
        gains = [rates[head] - rates[base] for rates in by_seed]
        text += f"{fmean(gains):+13.1f} ({min(gains):+5.1f})"
    return text


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    models = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))
    parser.add_argument("--model", default="nvidia_hybrid_7b", choices=models)
    parser.add_argument(
        "--eviction",
        default="reuse_rate",
        choices=list(EVICTION),
        help="the eviction policy under all of them",
    )
    parser.add_argument("--workloads", nargs="*", default=WORKLOADS, choices=WORKLOADS)
    parser.add_argument("--pace", nargs="+", type=positive, default=[1.0], help="times the usual gaps")
    parser.add_argument("--budget-gb", nargs="+", type=positive, default=[2.0, 6.0], help="1e9 bytes")
    parser.add_argument("--seeds", nargs="+", type=seed, default=[0, 1, 2])
    parser.add_argument("--requests", type=count, default=1200, help="of each workload")
    parser.add_argument("--traces", type=Path, help="folder with recorded traces, which are added")
    parser.add_argument("--unmarked", action="store_true", help="messages' ends are not known")
    options = parser.parse_args(arguments)
    cells = [
        Cell(workload, pace, 1.0, budget)
        for workload, pace, budget in product(options.workloads, options.pace, options.budget_gb)
    ]
    if options.traces is not None:
        found = [options.traces / name for name in RECORDED if (options.traces / name).is_file()]
        if not found:
            parser.error(f"--traces {options.traces}: none of {', '.join(RECORDED)} is there")
        cells += [Cell(str(path), 1.0, 1.0, budget) for path in found for budget in RECORDED[path.name][0]]
    heads = "".join(f"{head:>21}" for head in list(COLUMNS)[1:])
    print(f"{'workload':17}{'pace':>6}{'GB':>6}{next(iter(COLUMNS)):>20}{heads}")
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        tasks = [
            [
                pool.submit(
                    hit_rates, cell, seed, options.model, options.eviction, options.requests, options.unmarked
                )
                for seed in (options.seeds[:1] if Path(cell.workload).name in RECORDED else options.seeds)
            ]
            for cell in cells
        ]
        for cell, row in zip(cells, tasks, strict=True):
            print(line(cell, [task.result() for task in row]), flush=True)


if __name__ == "__main__":
    main()
