"""Policies on loads that nobody chose: ``python -m hybridcache.experiments.random_loads [--loads 60]``.

A load is drawn from its number: one to three of the built-in workloads, each over a part of the time and with
its own bursts, at some pace, budget and geometry. A line a load, the worst for `reuse_rate` first: how far it
is above or below the best of the others, means over the seeds; then how many of the loads are within a point.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from random import Random
from statistics import fmean
from typing import NamedTuple

from hybridcache.experiments.argument import count, seed
from hybridcache.experiments.policy_columns import JUDGED, USUAL
from hybridcache.experiments.policy_table import Rates, ahead, rates_of, spec_of
from hybridcache.experiments.traces.open import open_trace
from hybridcache.experiments.traces.request import TraceRequest

WORKLOADS = ("chat", "agent", "few_shot", "rag", "tree_search", "scan")
MODELS = ("nvidia_hybrid_7b", "nemotron_h_8b", "qwen3_next_80b", "jamba_1_5_mini", "granite_4_h_small")
BUDGETS_GB = (1.0, 2.0, 4.0, 8.0, 16.0)
SPAN_EXPONENTS = (2.5, 6.0)
"""A load lasts from 10 to this to 10 to that, seconds."""
BURSTS = (1.0, 1.0, 10.0, 40.0)
BEGINS = (0.0, 0.0, 0.2, 0.5)


class Part(NamedTuple):
    """One workload of a load."""

    workload: str
    burst: float
    """Sessions a burst; 1: Poisson."""
    begin: float
    """Share of the load's time after which it begins."""
    share: float
    """Of the load's time that it lasts."""


class RandomLoad(NamedTuple):
    """What is replayed, through what."""

    parts: tuple[Part, ...]
    span: float
    """Seconds."""
    budget_gb: float
    """1e9 bytes."""
    model: str

    @staticmethod
    def drawn(number: int) -> "RandomLoad":
        """The load of this number."""
        random = Random(number)
        parts = []
        for workload in random.sample(WORKLOADS, random.choice((1, 1, 2, 2, 3))):
            begin = random.choice(BEGINS)
            parts.append(Part(workload, random.choice(BURSTS), begin, random.uniform(0.3, 1.0 - begin)))
        span = 10.0 ** random.uniform(*SPAN_EXPONENTS)
        return RandomLoad(tuple(parts), span, random.choice(BUDGETS_GB), random.choice(MODELS))

    def requests(self, num_requests: int, seed: int) -> list[TraceRequest]:
        """About ``num_requests`` in order of arrival, as many of each part."""
        found: list[TraceRequest] = []
        sessions = 0
        for place, part in enumerate(self.parts):
            trace = list(
                open_trace(
                    part.workload,
                    requests=num_requests // len(self.parts),
                    seed=len(self.parts) * seed + place,
                    sessions_per_burst=part.burst,
                )
            )
            begin, scale = self.span * part.begin, self.span * part.share / max(trace[-1].arrival, 1e-9)
            found += [
                request._replace(
                    arrival=begin + scale * request.arrival, session=sessions + request.session
                )
                for request in trace
            ]
            sessions += 1 + max(request.session for request in trace)
        return sorted(found, key=lambda request: request.arrival)

    def __str__(self) -> str:
        parts = " + ".join(
            f"{part.workload} ({part.begin:.0%} to {part.begin + part.share:.0%}"
            f"{f', bursts of {part.burst:.0f}' if part.burst > 1 else ''})"
            for part in self.parts
        )
        return f"{parts}; {self.span:.0f} s, {self.budget_gb:g} GB, {self.model}"


def hit_rates(number: int, seed: int, num_requests: int, heads: Sequence[str] = USUAL) -> Rates:
    """Token hit rate in percent by column, on the load of this number."""
    load = RandomLoad.drawn(number)
    return rates_of(load.requests(num_requests, seed), spec_of(load.model), load.budget_gb, heads)


def line(number: int, rates: Rates) -> str:
    """Of one load: the lead, the judged policy's rate, the best other one's, and what the load is."""
    best = max((head for head in rates if head != JUDGED), key=lambda head: rates[head])
    figures = f"{ahead(rates):+6.1f} {rates[JUDGED]:6.1f} {rates[best]:6.1f} {best:12}"
    return f"{figures} {number:4}  {RandomLoad.drawn(number)}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the lines, and how many are within a point of the best."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--loads", type=count, default=60, help="how many")
    parser.add_argument("--first", type=seed, default=0, help="number of the first")
    parser.add_argument("--seeds", nargs="+", type=seed, default=[0])
    parser.add_argument("--requests", type=count, default=1600, help="of each load")
    options = parser.parse_args(arguments)
    if options.requests < 100:
        parser.error(f"--requests {options.requests}: at least 100")
    numbers = range(options.first, options.first + options.loads)
    tasks = [(number, seed) for number in numbers for seed in options.seeds]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        rates = pool.map(hit_rates, *zip(*tasks, strict=True), [options.requests] * len(tasks))
        found = dict(zip(tasks, rates, strict=True))
    means = {
        number: {head: fmean(found[number, seed][head] for seed in options.seeds) for head in USUAL}
        for number in numbers
    }
    print(f"{'ahead':>6} {JUDGED[:6]:>6} {'best':>6} {'of the others':12} load")
    for number in sorted(numbers, key=lambda number: ahead(means[number])):
        print(line(number, means[number]))
    leads = [ahead(mean) for mean in means.values()]
    within = sum(lead >= -1.0 for lead in leads)
    print(f"{within} of {len(leads)} within a point of the best or above; mean lead {fmean(leads):+.1f}")


if __name__ == "__main__":
    main()
