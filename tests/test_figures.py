"""Figures of experiments: what each file of conf/experiment/ sweeps and draws, and what is logged."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra

from hybridcache.experiments.figures import (
    EXPERIMENTS,
    OVER_TIME,
    bounds_of,
    draw_runs,
    main,
    point_of,
    short_names,
    title_of,
)
from hybridcache.experiments.run import replay, resolved
from hybridcache.experiments.run_record import RunRecord
from hybridcache.experiments.sweep_figure import Point, draw_bars, draw_lines
from hybridcache.experiments.tracker import log_figure
from tests.test_replay_wandb import records

Values = dict[str, Any]
NAMES = sorted(file.stem for file in EXPERIMENTS.glob("*.yaml"))


def first_values(name: str, *overrides: str) -> Values:
    """The resolved configuration of the sweep's first run; the last value of each setting composes too."""
    GlobalHydra.instance().clear()
    with initialize_config_module("hybridcache.conf", version_base="1.3"):
        swept = yaml.safe_load((EXPERIMENTS / f"{name}.yaml").read_text())["hydra"]["sweeper"]["params"]
        choices = {}
        for key, given in swept.items():
            parts = re.split(r",(?![^\[\]{}]*[\]}])", str(given)) if key != "model.pattern" else []
            for value in parts[-1:]:
                compose("replay", [f"+experiment={name}", f"{key}={value}"])
            if parts:
                choices[key] = parts[0]
        settings = [f"{key}={value}" for key, value in choices.items()]
        return resolved(compose("replay", [f"+experiment={name}", *settings, *overrides]))


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_can_be_run_and_drawn(name: str, tmp_path: Path) -> None:
    values = first_values(name, "trace.limit=20")
    replay(values, tmp_path / "run")
    files = draw_runs(name, tmp_path)
    assert [path.name for path in files] == [f"{name}.png", f"{name}.csv", f"{name}.yaml"]
    assert files[0].read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader(files[1].open()))
    drawn, row = values["figure"], rows[0]
    bounded = any(metric in ("token_hit_rate", "flops_saved_ratio") for metric in drawn.get("metrics", ()))
    assert len(rows) == 21 if drawn["kind"] in OVER_TIME else len(rows) == 1 + bounded
    if drawn["kind"] in OVER_TIME:
        assert row["panel"]
        assert float(rows[-1]["input_tokens"]) > float(row["input_tokens"]) == 0.0
    elif drawn["kind"] == "bars":
        metrics = [key for key in row if key not in ("panel", "line", drawn["x"])]
        assert sum(float(row[key]) for key in metrics) == pytest.approx(100)
    else:
        assert set(drawn["metrics"]) <= row.keys()
        assert set(drawn["labels"]) == set(drawn["metrics"])
        if bounded:
            assert rows[1]["line"] == "infinite cache" and rows[1][drawn["x"]] == row[drawn["x"]]
            assert float(rows[1][drawn["metrics"][0]]) >= float(row[drawn["metrics"][0]])
    kept = yaml.safe_load(files[2].read_text())
    assert kept["runs"][0]["eviction"] == values["eviction"]
    assert kept["experiment"]["figure"] == drawn


def test_seeds_are_averaged_and_settings_that_are_not_shown_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = []
    for seed in (0, 1):
        summary = replay(first_values("budget", "trace.limit=20", f"seed={seed}"), tmp_path / f"seed{seed}")
        rates.append(summary["token_hit_rate"])
    rows = list(csv.DictReader(draw_runs("budget", tmp_path)[1].open()))
    assert not capsys.readouterr().err
    assert [row["line"] for row in rows] == ["lru", "infinite cache"]
    assert rates[0] != rates[1]
    assert float(rows[0]["token_hit_rate"]) == pytest.approx(50 * sum(rates))
    assert float(rows[1]["token_hit_rate"]) >= float(rows[0]["token_hit_rate"])
    replay(first_values("budget", "trace.limit=20", "block_size=32"), tmp_path / "other")
    draw_runs("budget", tmp_path)
    assert "warning: chat, lru, 1.0: a mean of runs that differ in more than" in capsys.readouterr().err


def test_lines_are_what_the_runs_found(small_replay: Callable[..., Values]) -> None:
    drawn = yaml.safe_load((EXPERIMENTS / "budget.yaml").read_text())["figure"]
    found = [small_replay(f"eviction={name}", f"budget_gb={gb}") for name in ("lru", "gdsf") for gb in (1, 2)]
    runs = [RunRecord(Path("x"), summary, 0.0) for summary in found]
    names = short_names({run.policy for run in runs})
    points = [point_of(run, drawn, names) for run in runs]
    figure = draw_lines(points, drawn)
    assert len(figure.axes) == 2
    rates = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].lines}  # type: ignore[arg-type]
    assert rates["lru"] == pytest.approx([100 * summary["token_hit_rate"] for summary in found[:2]])
    assert rates["gdsf"] == pytest.approx([100 * summary["token_hit_rate"] for summary in found[2:]])


def test_bounds_are_what_an_infinite_cache_finds(
    small_replay: Callable[..., Values], tmp_path: Path
) -> None:
    drawn = yaml.safe_load((EXPERIMENTS / "budget.yaml").read_text())["figure"]
    runs = [RunRecord(Path("x"), small_replay(f"budget_gb={gb}"), 0.0) for gb in (1, 2)]
    bounds = bounds_of(runs, drawn, tmp_path / "bounds.json")
    endless = small_replay("budget_gb=inf")
    assert [(bound.line, bound.x) for bound in bounds] == [("infinite cache", 1.0), ("infinite cache", 2.0)]
    for bound in bounds:
        assert bound.values == pytest.approx({metric: 100 * endless[metric] for metric in drawn["metrics"]})
    figure = draw_lines([point_of(run, drawn, {run.policy: "lru"}) for run in runs], drawn, "", bounds)
    limit = figure.axes[0].lines[-1]
    assert limit.get_label() == "infinite cache" and limit.get_marker() == "None"
    assert not bounds_of(runs, {**drawn, "metrics": ["ttft_seconds.p50"]}, tmp_path / "bounds.json")


def test_settings_are_named_where_they_tell_policies_apart() -> None:
    assert short_names({"lru", "marconi alpha=1"}) == {"lru": "lru", "marconi alpha=1": "marconi"}
    both = {"marconi alpha=0", "marconi alpha=1"}
    assert short_names(both) == {policy: policy for policy in both}


def test_six_panels_stand_in_rows_of_three() -> None:
    points = [Point(panel, "lru", x, {"a": 1.0, "b": 2.0}) for panel in "abcdef" for x in (1.0, 2.0)]
    figure = draw_lines(points, {"labels": {"a": "A", "b": "B"}, "x_label": "x"})
    places = [axes.get_subplotspec().get_geometry()[:3] for axes in figure.axes]  # type: ignore[union-attr]
    assert places == [(4, 3, place) for place in range(12)]
    assert [axes.get_ylabel() for axes in figure.axes] == [*["A", "", ""] * 2, *["B", "", ""] * 2]
    assert [bool(axes.get_xlabel()) for axes in figure.axes] == [False] * 9 + [True] * 3
    assert [axes.get_title(loc="left") for axes in figure.axes] == [*"abcdef"] * 2


def test_a_title_says_what_all_runs_share() -> None:
    one = first_values("ttft")
    more = {**one, "budget_gb": 4}
    assert title_of([one]) == "agent, nvidia_hybrid_7b, 2 GB, admission branch_and_final, h100"
    assert title_of([one, more]) == "agent, nvidia_hybrid_7b, admission branch_and_final, h100"
    assert title_of([{**one, "mode": "cache"}]).endswith("admission branch_and_final")


def test_parts_of_bars_differ_by_more_than_colour() -> None:
    values = dict.fromkeys(("hit", "kv_evicted", "no_checkpoint", "checkpoint_evicted", "expired"), 20.0)
    rest = dict.fromkeys(("last_token", "diverged", "new", "too_large"), 0.0)
    points = [Point(panel, "x", "lru", {**values, **rest}) for panel in "abcd"]
    figure = draw_bars(points, {"x_label": "%"})
    assert len({axes.get_position().y0 for axes in figure.axes}) == 2  # two rows of two
    hatches = [bar.get_hatch() for bar in figure.axes[0].patches]
    assert len(hatches) == len(set(hatches)) == len(values)
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == set(values)


def test_without_runs_there_is_no_figure(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no finished run"):
        draw_runs("budget", tmp_path)
    with pytest.raises(SystemExit):
        main(["no_such_experiment"])


def test_picture_and_table_are_logged_offline(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    from matplotlib.figure import Figure

    picture, table = tmp_path / "f.png", tmp_path / "f.csv"
    Figure(figsize=(1, 1)).savefig(picture)
    table.write_text("x,token_hit_rate\n1,50.0\n2,75.0\n")
    settings = {"mode": "offline", "project": "hybridcache", "group": None}
    log_figure({**settings, "mode": "disabled"}, "f", picture, table, tmp_path)
    assert not list(tmp_path.rglob("*.wandb"))
    log_figure(settings, "f", picture, table, tmp_path)
    (file,) = tmp_path.rglob("*.wandb")
    logged = {}
    for record in records(file):
        for item in record.history.item:
            logged[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    assert logged["f/figure/_type"] == "image-file"
    assert (logged["f/table/ncols"], logged["f/table/nrows"]) == (2, 2)
    (stored,) = tmp_path.rglob("*.table.json")
    kept = json.loads(stored.read_text())
    assert kept["columns"] == ["x", "token_hit_rate"]
    assert kept["data"] == [["1", "50.0"], ["2", "75.0"]]
    assert list(tmp_path.rglob("*.png"))
