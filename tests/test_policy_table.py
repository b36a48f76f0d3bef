"""The table of policies over workloads."""

import pytest

from hybridcache.experiments import policy_table
from hybridcache.experiments.policy_table import POLICIES, Cell, hit_rates, line
from hybridcache.policies.build import EVICTION


def test_a_row_holds_every_policy_and_the_lead_of_the_judged_one() -> None:
    rates = hit_rates(Cell("few_shot", 30.0, 2.0, 0), "nvidia_hybrid_7b", 150)
    assert list(rates) == list(POLICIES)
    assert all(0 < rate < 100 for rate in rates.values()) and len(set(rates.values())) > 2
    best = max(rate for head, rate in rates.items() if head != "reuse_rate")
    assert line(Cell("few_shot", 30.0, 2.0, 0), rates).endswith(f"{rates['reuse_rate'] - best:+.1f}")


def test_the_policies_of_the_table_exist() -> None:
    assert {name for name, _ in POLICIES.values()} <= EVICTION.keys()
    assert policy_table.JUDGED in POLICIES


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    policy_table.main(["--workloads", "scan", "--pace", "1", "--budget-gb", "2", "--requests", "60"])
    head, row = capsys.readouterr().out.splitlines()
    assert (
        head.split()[0] == "workload"
        and row.split()[0] == "scan"
        and len(row.split()) == 4 + len(POLICIES) + 1
    )
