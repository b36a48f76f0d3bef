"""The table of admission policies over workloads."""

import pytest

from hybridcache.experiments import admission_table
from hybridcache.experiments.admission_table import COLUMNS, hit_rates, line
from hybridcache.experiments.policy_table import Cell

CELL = Cell("few_shot", 1.0, 1.0, 6.0)


def test_a_row_holds_every_policy_and_what_it_gains() -> None:
    rates = hit_rates(CELL, 0, "nvidia_hybrid_7b", "lru", 150, False)
    assert list(rates) == list(COLUMNS)
    assert rates["first_sight"] > rates["branch_and_final"] + 3
    unmarked = hit_rates(CELL, 0, "nvidia_hybrid_7b", "lru", 150, True)
    assert unmarked["branch_and_final"] == rates["branch_and_final"]
    assert unmarked["first_sight"] < unmarked["interior"]
    gain = rates["first_sight"] - rates["branch_and_final"]
    assert f"{gain:+.1f} (" in line(CELL, [rates])


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    admission_table.main(["--workloads", "scan", "--budget-gb", "2", "--requests", "60", "--seeds", "0", "1"])
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["workload", "pace", "GB"] and row.split()[0] == "scan"
