"""Reports: what they collect, the tables, the figures, the bounds."""

import csv
import json
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from hybridcache.experiments import report
from hybridcache.experiments.bounds import Bounds, find_bounds, replay_bounds
from hybridcache.experiments.figure import draw_figure
from hybridcache.experiments.panel import Panel, describe, group_runs
from hybridcache.experiments.policy_style import policy_styles
from hybridcache.experiments.run import replay
from hybridcache.experiments.run_record import RunRecord, collect_runs
from hybridcache.experiments.table import as_markdown, pivot
from hybridcache.policies.build import ASSISTED, EVICTION

Values = dict[str, Any]
BOUNDS = Bounds(0.9, 0.95, 0.88, 0.93)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Values:
    """The summary of a real run, to make others from."""
    from hydra import compose, initialize_config_module

    from hybridcache.experiments.run import resolved

    with initialize_config_module("hybridcache.conf", version_base="1.3"):
        values = resolved(compose("replay", ["trace.limit=30", "budget_gb=1"]))
    return replay(values, tmp_path_factory.mktemp("template"))


def record(template: Values, eviction: str, budget_gb: float | str, rate: float, seed: int = 0) -> RunRecord:
    config = {**template["config"], "eviction": {"name": eviction}, "budget_gb": budget_gb}
    summary = {
        **template,
        "config": config,
        "token_hit_rate": rate,
        "flops_saved_ratio": rate / 2,
        "seed": seed,
    }
    summary["hit_tokens"] = round(rate * template["input_tokens"])
    return RunRecord(Path(f"/runs/{eviction}-{budget_gb}-{seed}"), summary, 0.0)


def panel(runs: list[RunRecord], bounds: Bounds | None = BOUNDS) -> Panel:
    comparisons, _ = group_runs(runs)
    assert len(comparisons) == 1
    return Panel(
        "chat, a model, admission branch_and_final", "all of it", tuple(comparisons[0]), bounds, False
    )


def texts(figure: Figure) -> list[str]:
    axes = figure.axes[0]
    labels = [axes.get_xlabel(), axes.get_ylabel(), *(label.get_text() for label in axes.get_yticklabels())]
    return [*labels, *(text.get_text() for text in axes.texts)]


def test_report_of_real_runs(
    values: Callable[..., Values], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("lru", "marconi"):
        for budget in ("0.6", "1"):
            replay(values(f"eviction={name}", f"budget_gb={budget}"), tmp_path / name / budget)
    written = report.write_report([tmp_path], tmp_path / "report")
    said = capsys.readouterr()
    assert not said.err
    assert "admission branch_and_final" in said.out
    assert "marconi alpha=1" in said.out
    assert "infinite cache, hybrid" in said.out
    assert [path.name for path in written] == [
        "table.csv",
        "table.md",
        "token_hit_rate.png",
        "flops_saved_ratio.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written[2:])
    lines = list(csv.DictReader((tmp_path / "report" / "table.csv").open()))
    assert len(lines) == 4
    assert {line["admission"] for line in lines} == {"branch_and_final"}
    for line in lines:
        stored = json.loads((Path(line["folder"]) / "summary.json").read_text())
        assert float(line["token_hit_rate"]) == stored["token_hit_rate"]
        lost = sum(int(value) for key, value in line.items() if key.startswith("lost_"))
        assert int(line["hit_tokens"]) + lost == int(line["input_tokens"])
        assert float(line["token_hit_rate"]) <= float(line["hybrid_token_hit_rate_bound"])
        assert float(line["hybrid_token_hit_rate_bound"]) <= float(line["kv_token_hit_rate_bound"]) < 1


def test_bounds_are_the_infinite_replay_and_are_kept(
    values: Callable[..., Values], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = values("eviction=hit_density")
    endless = replay(values("budget_gb=inf"), tmp_path / "endless")
    bounds = find_bounds(config, tmp_path / "bounds.json")
    assert bounds.hybrid_token_hit_rate == endless["token_hit_rate"]
    assert bounds.hybrid_flops_saved_ratio == endless["flops_saved_ratio"]
    assert (
        endless["token_hit_rate"]
        < bounds.kv_token_hit_rate
        <= endless["matched_tokens"] / endless["input_tokens"]
    )
    monkeypatch.setattr("hybridcache.experiments.bounds.replay_bounds", None)
    assert find_bounds(config, tmp_path / "bounds.json") == bounds
    with pytest.raises(TypeError):  # another trace is replayed anew
        find_bounds(values("seed=1"), tmp_path / "bounds.json")
    monkeypatch.undo()
    (tmp_path / "bounds.json").write_text("{")
    assert find_bounds(config, tmp_path / "bounds.json") == bounds == replay_bounds(config)


def test_bounds_of_a_real_model_are_of_the_tokens_that_it_was_given(values: Callable[..., Values]) -> None:
    config = {**values("mode=worker", "trace.limit=4"), "model": {"name": "tiny", "checkpoint": "tiny"}}
    with pytest.warns(UserWarning, match="taken modulo the model's vocabulary"):
        replay_bounds(config)


def test_a_trace_that_is_gone_is_named_and_draws_no_bounds(
    template: Values, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = {"kind": "npz", "path": str(tmp_path / "gone.npz"), "seed": 0}
    summary = {**template, "config": {**template["config"], "trace": trace}}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    report.write_report([tmp_path], tmp_path / "out")
    said = capsys.readouterr()
    assert "no bounds, since the trace cannot be replayed" in said.err
    assert "gone.npz" in said.err
    assert "infinite" not in said.out


def test_unusable_folders_are_named(
    template: Values, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        report.main([str(tmp_path / "missing")])
    with pytest.raises(SystemExit, match="2"):
        report.main([str(tmp_path)])
    said = capsys.readouterr().err
    assert "missing is not a folder" in said
    assert "no finished run in" in said
    for name in ("whole", "torn", "foreign", "half"):
        (tmp_path / name).mkdir()
    (tmp_path / "whole" / "summary.json").write_text(json.dumps(template))
    (tmp_path / "torn" / "summary.json").write_text(json.dumps(template)[:99])
    (tmp_path / "foreign" / "summary.json").write_text('{"accuracy": 1}')
    (tmp_path / "half" / "config.json").write_text("{}")
    for name in ("edited", "refused"):
        (tmp_path / name).mkdir()
    edited = {key: value for key, value in template.items() if key != "config"}
    (tmp_path / "edited" / "summary.json").write_text(json.dumps(edited))
    (tmp_path / "refused" / "replay.log").write_text("")
    runs, problems = collect_runs([tmp_path])
    assert [run.folder.name for run in runs] == ["whole"]
    assert len(problems) == 5
    assert any("half: left out, the run did not finish" in problem for problem in problems)
    assert any("edited" in problem and "it has no config: cut short" in problem for problem in problems)
    assert any("refused: left out, the run failed before it began" in problem for problem in problems)


def test_overlapping_folders_count_each_run_once(template: Values, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "summary.json").write_text(json.dumps(template))
    runs, problems = collect_runs([tmp_path, tmp_path / "a"])
    assert len(runs) == 1
    assert not problems


def test_runs_that_differ_in_more_than_policy_and_budget_are_not_compared(template: Values) -> None:
    first = record(template, "lru", 1, 0.5)
    other = {**first.summary, "config": {**first.config, "admission": {"name": "final_only"}}}
    comparisons, warnings = group_runs([first, RunRecord(Path("/runs/other"), other, 0.0)])
    assert len(comparisons) == 2
    assert not warnings


@pytest.mark.parametrize("mode", ["engine", "worker"])
def test_runs_of_other_orders_are_told_apart_and_have_times(template: Values, mode: str) -> None:
    times = {"ttft_seconds": {"p50": 0.1, "p95": 0.2}, "output_tokens_per_second": 9.0}
    runs = []
    for order in ("fcfs", "longest_hit"):
        first = record(template, "lru", 1, 0.5)
        config = {**first.config, "mode": mode, "order": order}
        runs.append(RunRecord(Path(f"/runs/{order}"), {**first.summary, **times, "config": config}, 0.0))
    comparisons, warnings = group_runs(runs)
    assert len(comparisons) == 2 and not warnings
    title, setting = describe(comparisons[0], comparisons)
    assert "order=fcfs" in title and ("hardware" in setting) == (mode == "engine")
    shown = Panel(title, setting, tuple(comparisons[0]), None, False)
    assert shown.timed and "time to first token, median" in as_markdown([shown]).lower()


def test_seeds_are_averaged_and_contradictions_named(template: Values) -> None:
    runs = [record(template, "lru", 1, 0.4, seed=0), record(template, "lru", 1, 0.6, seed=1)]
    cell = panel(runs).cells[0]
    assert cell.mean("token_hit_rate") == pytest.approx(0.5)
    assert cell.range("token_hit_rate") == (0.4, 0.6)
    _, warnings = group_runs([record(template, "lru", 1, 0.4), record(template, "lru", 1, 0.6)])
    assert len(warnings) == 1
    assert "the same configuration, different results" in warnings[0]


def test_tables_state_admission_bounds_and_gaps(template: Values) -> None:
    runs = [
        record(template, "lru", 1, 0.4),
        record(template, "lru", 2, 0.5),
        record(template, "gdsf", 2, 0.55),
    ]
    table = pivot(panel(runs), "token_hit_rate")
    assert table == [
        ["eviction", "1 GB", "2 GB"],
        ["gdsf", "", "55.0"],
        ["lru", "40.0", "50.0"],
        ["infinite cache, hybrid", "90.0", "90.0"],
        ["infinite cache, KV only", "95.0", "95.0"],
    ]
    text = as_markdown([panel(runs)])
    assert "admission branch_and_final" in text
    assert "| lru | 40.0 | 50.0 |" in text


def test_figure_over_budgets_is_labelled(template: Values) -> None:
    runs = [record(template, name, gb, 0.2 * gb) for name in ("lru", "gdsf") for gb in (1, 2, 4)]
    figure = draw_figure([panel([*runs, record(template, "lru", "inf", 0.9)])], "token_hit_rate")
    found = texts(figure)
    assert "token hit rate (% of input tokens)" in found
    assert "cache budget (GB = 1e9 bytes, log scale)" in found
    assert {"infinite cache, hybrid 90.0", "infinite cache, KV only 95.0"} <= set(found)
    assert sum(text.endswith((" lru", " gdsf")) for text in found) == 2
    lines = [np.asarray(line.get_xydata()) for line in figure.axes[0].lines]
    lines = [points for points in lines if len(points) == 3]
    assert [points[:, 0].tolist() for points in lines] == [[1, 2, 4]] * 2
    assert lines[0][:, 1] == pytest.approx([20, 40, 80])
    no_bounds = draw_figure([panel(runs, None)], "flops_saved_ratio")
    assert not any("infinite" in text for text in texts(no_bounds))
    assert "FLOPs saved (% of all prefill FLOPs)" in texts(no_bounds)


def test_labels_at_the_line_ends_do_not_overlap(template: Values) -> None:
    names = ["lru", "gdsf", "lfu", "marconi", "hit_density"]
    runs = [record(template, name, gb, 0.5 + 0.001 * i) for i, name in enumerate(names) for gb in (1, 2)]
    figure = draw_figure([panel(runs)], "token_hit_rate")
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in figure.axes[0].texts if text.get_text()[2:] in names]
    assert len(boxes) == len(names)
    boxes.sort(key=lambda box: box.y0)
    assert all(low.y1 <= high.y0 + 1 for low, high in pairwise(boxes))


def test_one_budget_is_drawn_as_bars_with_values(template: Values) -> None:
    figure = draw_figure(
        [panel([record(template, "lru", 1, 0.4), record(template, "gdsf", 1, 0.6)])], "token_hit_rate"
    )
    found = texts(figure)
    bars = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    assert [bar.get_bbox().width for bar in bars] == pytest.approx([40, 60])
    assert {"lru", "gdsf", "40.0", "60.0"} <= set(found)
    # A bound's line may cross a number.
    assert all(text.get_bbox_patch() is not None for text in figure.axes[0].texts)
    assert "token hit rate (% of input tokens), 1 GB budget (1e9 bytes)" in found


def test_policies_differ_without_colour() -> None:
    styles = policy_styles([f"policy{i}" for i in range(7)]).values()
    for part in ("marker", "glyph", "line"):
        assert len({getattr(style, part) for style in styles}) == 7


def test_a_policy_looks_the_same_in_every_figure() -> None:
    names = ["lru", "marconi", "reuse_rate", "mine"]
    few, many = policy_styles(names[:3]), policy_styles([*names, "gdsf", "hit_density"])
    assert all(few[name] == many[name] for name in few)
    assert policy_styles(["marconi alpha=1"])["marconi alpha=1"] == few["marconi"]
    both = policy_styles([*names, "marconi alpha=0", "marconi alpha=1"])
    assert len(set(both.values())) == len(both)
    assert len(policy_styles([f"p{i}" for i in range(25)])) == 25
    built_in = [*EVICTION, *ASSISTED]
    assert len(set(policy_styles(built_in).values())) == len(built_in)


def test_a_trace_without_outputs_is_called_a_lower_bound(
    template: Values, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "summary.json").write_text(json.dumps({**template, "outputs_in_trace": False}))
    report.write_report([tmp_path], tmp_path / "report", bounds=False)
    assert "reuse is a lower bound" in capsys.readouterr().out
    assert os.path.getsize(tmp_path / "report" / "token_hit_rate.png") > 10_000
