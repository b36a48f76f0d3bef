"""Loads that are drawn, and policies on them."""

import pytest

from hybridcache.experiments import random_loads
from hybridcache.experiments.policy_columns import JUDGED, USUAL
from hybridcache.experiments.random_loads import BUDGETS_GB, MODELS, WORKLOADS, RandomLoad, hit_rates, line


def test_a_number_tells_the_load() -> None:
    loads = [RandomLoad.drawn(number) for number in range(100)]
    assert loads == [RandomLoad.drawn(number) for number in range(100)] and len(set(loads)) == 100
    assert {part.workload for load in loads for part in load.parts} == set(WORKLOADS)
    assert {load.model for load in loads} == set(MODELS)
    assert {load.budget_gb for load in loads} == set(BUDGETS_GB)
    assert {len(load.parts) for load in loads} == {1, 2, 3}
    spans = [load.span for load in loads]
    assert min(spans) < 1000.0 and max(spans) > 100_000.0


def test_each_part_has_its_time_and_its_own_sessions() -> None:
    load = next(load for load in map(RandomLoad.drawn, range(100)) if len(load.parts) == 3)
    requests = load.requests(120, 0)
    arrivals = [request.arrival for request in requests]
    assert arrivals == sorted(arrivals) and len(requests) == 120
    begins = [part.begin for part in load.parts]
    ends = [part.begin + part.share for part in load.parts]
    assert arrivals[0] >= min(begins) * load.span
    assert arrivals[-1] == pytest.approx(max(ends) * load.span)
    alone = [RandomLoad((part,), load.span, 1.0, load.model).requests(40, 0) for part in load.parts]
    sessions = [len({request.session for request in part}) for part in alone]
    assert len({request.session for request in requests}) > max(sessions)
    assert arrivals != [request.arrival for request in load.requests(120, 1)], "another seed, another draw"


def test_a_load_says_what_it_is() -> None:
    load = RandomLoad.drawn(0)
    for part in load.parts:
        assert part.workload in str(load)
    assert load.model in str(load) and f"{load.budget_gb:g} GB" in str(load)


def test_policies_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    random_loads.main(["--loads", "2", "--requests", "120", "--seeds", "0", "1"])
    head, *rows, total = capsys.readouterr().out.splitlines()
    assert "ahead" in head and len(rows) == 2
    leads = [float(row.split()[0]) for row in rows]
    assert leads == sorted(leads), "the worst first"
    assert total.startswith(f"{sum(lead >= -1.0 for lead in leads)} of 2 within a point")


def test_a_line_compares_with_the_best_of_the_others() -> None:
    rates = dict.fromkeys(USUAL, 40.0) | {JUDGED: 44.0, "gdsf": 42.5}
    assert line(3, rates).split()[:5] == ["+1.5", "44.0", "42.5", "gdsf", "3"]
    found = hit_rates(3, 0, 150, ["lru", JUDGED])
    assert list(found) == ["lru", JUDGED] and all(0.0 <= rate < 100.0 for rate in found.values())


def test_too_few_requests_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        random_loads.main(["--requests", "10"])
    assert "--requests 10: at least 100" in capsys.readouterr().err
