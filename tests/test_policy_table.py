"""The table of policies over workloads."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hybridcache.experiments import admission_table, policy_table
from hybridcache.experiments.policy_columns import BASELINES, COLUMNS, JUDGED, OTHERS, PARTS, USUAL
from hybridcache.experiments.policy_table import Cell, hit_rates, line, requests_of
from hybridcache.experiments.traces.npz_writer import write_npz
from hybridcache.experiments.traces.open import open_trace
from hybridcache.policies.build import build_admission

CELL = Cell("few_shot", 30.0, 1.0, 2.0)


def test_every_column_can_be_replayed() -> None:
    rates = hit_rates(Cell("scan", 1.0, 1.0, 2.0), 0, "nvidia_hybrid_7b", 150, list(COLUMNS))
    assert list(rates) == list(COLUMNS)
    assert all(0 < rate < 100 for rate in rates.values()) and len(set(rates.values())) > 3
    assert rates["clairvoyant"] > max(rates["lru"], rates["hit_density"])
    assert rates["lru, rev."] != rates["lru"] and rates["no revival"] != rates[JUDGED]


def test_a_row_holds_means_spreads_and_the_lead_of_the_judged_policy() -> None:
    first, second = {"lru": 40.0, JUDGED: 51.0, "clairvoyant": 90.0}, {"lru": 50.0, JUDGED: 51.0}
    second["clairvoyant"] = 90.0
    cells = line(CELL, [first, second]).split()
    assert cells[:4] == ["few_shot", "30", "1", "2"] and cells[4:7] == ["45.0", "51.0", "90.0"]
    assert cells[7:] == ["7.1", "+6.0", "7.1"]
    assert line(CELL, [first]).split()[-3:] == ["0.0", "+11.0", "0.0"]


def test_what_is_compared_is_there() -> None:
    assert {JUDGED, *OTHERS, *USUAL, *PARTS, *BASELINES} <= COLUMNS.keys()
    assert "clairvoyant" not in OTHERS and {JUDGED, *OTHERS} & {*BASELINES} > {JUDGED}
    assert set(OTHERS) & set(USUAL) and set(OTHERS) & set(PARTS)


def test_pace_bursts_and_seeds() -> None:
    usual, slow, bursts, other = (
        [request.arrival for request in requests_of(cell, seed, 50)]
        for cell, seed in [
            (CELL._replace(pace=1.0), 0),
            (CELL._replace(pace=300.0), 0),
            (CELL._replace(pace=1.0, burst=20.0), 0),
            (CELL._replace(pace=1.0), 1),
        ]
    )
    assert slow == [300.0 * arrival for arrival in usual]
    assert bursts != usual != other and len(bursts) == 50


def test_a_mixed_load_is_questions_and_then_chats_beside_them() -> None:
    cell = CELL._replace(workload="mixed", pace=1.0)
    requests = requests_of(cell, 0, 100)
    arrivals = [request.arrival for request in requests]
    assert len(requests) == 100 and arrivals == sorted(arrivals)
    turns = Counter(request.session for request in requests)
    chats = {session for session, count in turns.items() if count > 1}
    assert sum(turns[session] == 1 for session in turns) >= 60 and chats
    first = next(place for place, request in enumerate(requests) if request.session in chats)
    assert first >= 15 and requests[-1].arrival > requests[first].arrival
    assert arrivals == [request.arrival for request in requests_of(cell, 0, 100)]
    assert arrivals != [request.arrival for request in requests_of(cell, 1, 100)]


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_npz(open_trace("chat", requests=30), tmp_path / "chat_5turns.npz")
    settings = "--workloads scan --pace 1 --budget-gb 2 --requests 40 --seeds 0 1 --traces"
    policy_table.main([*settings.split(), str(tmp_path)])
    model, head, built_in, *recorded = capsys.readouterr().out.splitlines()
    assert model == "nvidia_hybrid_7b"
    assert head.split()[0] == "workload" and built_in.split()[:4] == ["scan", "1", "1", "2"]
    assert [row.split()[:4] for row in recorded] == [["chat_5turns.npz", "1", "1", gb] for gb in "248"]
    assert all(len(row.split()) == 4 + len(USUAL) + 3 for row in [built_in, *recorded])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--traces", "nowhere"], "none of agent_100.npz"),
        (["--columns", "lru"], "name reuse_rate, and one of"),
    ],
)
def test_what_cannot_be_compared(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        policy_table.main(arguments)
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_engines_have_the_rules_of_their_baselines(values: Callable[..., dict[str, Any]], name: str) -> None:
    column, config = COLUMNS[name], values(f"baseline={name}")
    assert column.name == config["eviction"]["name"]
    assert vars(column.build_admission()) == vars(build_admission(**config["admission"]))
    usual = {"memory": "unified", "kv_fraction": 0.5, "block_size": 16}
    assert {**usual, **column.cache} == {key: config[key] for key in usual}


def test_own_rules_are_stated(capsys: pytest.CaptureFixture[str]) -> None:
    policy_table.main(
        ["--workloads", "scan", "--pace", "1", "--budget-gb", "2", "--requests", "30", "--baselines"]
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "sglang: admission=grid memory=split kv_fraction=0.526"
    assert lines[3] == "vllm last: admission=block_ends admission.boundaries=last block_size=528"
    assert lines[4] == "nvidia_hybrid_7b" and len(lines) == 7


@pytest.mark.parametrize(
    ("command", "arguments", "says"),
    [
        (policy_table.main, ["--requests", "0"], "--requests: 0: give a whole number, 1 or more"),
        (policy_table.main, ["--requests", "1.5"], "--requests: 1.5: give a whole number"),
        (policy_table.main, ["--pace", "1", "-3"], "--pace: -3: give a number above 0"),
        (policy_table.main, ["--budget-gb", "nan"], "--budget-gb: 'nan' is not a number"),
        (policy_table.main, ["--burst", "0.5"], "--burst: 0.5: give a number, 1 or more"),
        (policy_table.main, ["--seeds", "-1"], "--seeds: -1: give a whole number, 0 or more"),
        (admission_table.main, ["--eviction", "lur"], "--eviction: invalid choice: 'lur'"),
        (admission_table.main, ["--requests", "many"], "--requests: 'many' is not a number"),
    ],
)
def test_arguments_that_cannot_be_meant(
    command: Callable[[list[str]], None], arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command(arguments)
    assert says in capsys.readouterr().err
