"""Figures of experiments: ``python -m hybridcache.experiments.figures NAME [KEY=VALUE ...]``.

NAME is a file of conf/experiment/: what is swept, and what is drawn against what. The replays run as any
sweep does (``hydra/launcher=...`` included); NAME.png, NAME.csv and NAME.yaml are left beside them.
"""

import argparse
import csv
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from matplotlib.figure import Figure

import hybridcache.conf
from hybridcache.experiments.bounds import Bounds, find_bounds
from hybridcache.experiments.run_folder import TIMELINE
from hybridcache.experiments.run_record import RunRecord, collect_runs
from hybridcache.experiments.sweep_figure import Point, draw_bars, draw_lines
from hybridcache.experiments.timeline import read_timeline
from hybridcache.experiments.timeline_figure import Course, draw_bytes, draw_learnt
from hybridcache.experiments.tracker import log_figure

Table = list[list[Any]]

OVER_TIME: dict[str, Callable[[Sequence[Course], Mapping[str, Any], str], Figure]] = {
    "bytes": draw_bytes,
    "learnt": draw_learnt,
}
"""Kinds of figures that are drawn from timeline.parquet; the others are from summary.json."""

EXPERIMENTS = Path(hybridcache.conf.__file__).parent / "experiment"


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line; exit status 2 and one line on stderr for what the user can mend."""
    names = sorted(file.stem for file in EXPERIMENTS.glob("*.yaml"))
    parser = argparse.ArgumentParser(prog="python -m hybridcache.experiments.figures", description=__doc__)
    parser.add_argument("name", choices=names, help="the experiment")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the replays and of Hydra")
    parser.add_argument("--out", type=Path, help="folder (default: outputs/figures/NAME/ by time)")
    options = parser.parse_intermixed_args(arguments)
    now = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = options.out or Path("outputs") / "figures" / options.name / now
    try:
        for path in make_figure(options.name, options.overrides, folder):
            print(f"wrote {path}")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def make_figure(name: str, overrides: Sequence[str], folder: Path) -> list[Path]:
    """Run an experiment's sweep into ``folder`` and draw it; the files written.

    Raises ValueError when the sweep fails; it has said why by then.
    """
    command = [sys.executable, "-m", "hybridcache.experiments.replay", "-m", f"+experiment={name}"]
    done = subprocess.run([*command, *overrides, f"hydra.sweep.dir={folder}"], check=False)
    if done.returncode:
        raise ValueError(f"the sweep of {name} failed; see above")
    return draw_runs(name, folder)


def draw_runs(name: str, folder: Path) -> list[Path]:
    """Draw the finished runs in ``folder`` as the experiment says. Raises ValueError when there are none."""
    runs, problems = collect_runs([folder])
    if problems or not runs:
        raise ValueError(f"{folder}: {'; '.join(problems) or 'no finished run'}")
    experiment = yaml.safe_load((EXPERIMENTS / f"{name}.yaml").read_text(encoding="utf-8"))
    drawn, title = experiment["figure"], title_of([run.config for run in runs])
    if drawn["kind"] in OVER_TIME:
        figure, table = _over_time(runs, drawn, title)
    else:
        figure, table = _over_settings(runs, drawn, title, folder / "bounds.json")
    files = [folder / f"{name}{suffix}" for suffix in (".png", ".csv", ".yaml")]
    figure.savefig(files[0])
    with files[1].open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows(table)
    shared = {"experiment": experiment, "runs": [run.config for run in runs]}
    files[2].write_text(yaml.safe_dump(shared, sort_keys=False), encoding="utf-8")
    log_figure(runs[0].config["wandb"], name, files[0], files[1], folder)
    return files


def _over_settings(
    runs: Sequence[RunRecord], drawn: Mapping[str, Any], title: str, store: Path
) -> tuple[Figure, Table]:
    """A point for each run, and bounds where there are lines; ``store`` keeps these."""
    names = short_names({run.policy for run in runs})
    points = mean_points(runs, drawn, names)
    seeds = {run.summary["seed"] for run in runs}
    title += f", means over {len(seeds)} seeds" if len(seeds) > 1 else ""
    bounds = [] if drawn["kind"] == "bars" else bounds_of(runs, drawn, store)
    metrics = list(points[0].values)
    table: Table = [["panel", "line", drawn["x"], *metrics]]
    table += [
        [p.panel, p.line, p.x, *(p.values.get(metric, "") for metric in metrics)] for p in (*points, *bounds)
    ]
    if drawn["kind"] == "bars":
        return draw_bars(points, drawn, title), table
    return draw_lines(points, drawn, title, bounds), table


def mean_points(runs: Sequence[RunRecord], drawn: Mapping[str, Any], names: Mapping[str, str]) -> list[Point]:
    """A point for each place in the figure, a mean over its seeds; ``names`` as ``short_names`` gives them.

    Warns where runs share a place that differ in more than the seed: the figure does not show that setting.
    """
    shared: dict[tuple[str, str, float | str], list[tuple[RunRecord, Point]]] = {}
    for run in runs:
        point = point_of(run, drawn, names)
        shared.setdefault((point.panel, point.line, point.x), []).append((run, point))
    points = []
    for (panel, line, x), found in sorted(shared.items()):
        if len({(run.panel_key, run.policy, run.budget_gb) for run, _ in found}) > 1:
            where = f"{panel}, {line}, {x}"
            print(
                f"warning: {where}: a mean of runs that differ in more than the seed; draw them one by one",
                file=sys.stderr,
            )
        values = {name: fmean(point.values[name] for _, point in found) for name in found[0][1].values}
        points.append(Point(panel, line, x, values))
    return points


def bounds_of(runs: Sequence[RunRecord], drawn: Mapping[str, Any], store: Path) -> list[Point]:
    """What an infinite cache reaches at each panel and x, the most under any admission there is among them,
    a mean over the seeds.

    Raises ValueError and OSError when a trace can no longer be read.
    """
    bounded = [metric for metric in drawn["metrics"] if f"hybrid_{metric}" in Bounds._fields]
    if not bounded:
        return []
    best: dict[tuple[str, float | str, int], dict[str, float]] = {}
    for run in runs:
        point = point_of(run, drawn, {run.policy: run.policy})
        reached = find_bounds(run.config, store)._asdict()
        place = point.panel, point.x, int(run.summary["seed"])
        here = best.setdefault(place, dict.fromkeys(bounded, 0.0))
        for metric in bounded:
            here[metric] = max(here[metric], 100 * reached[f"hybrid_{metric}"])
    by_place: dict[tuple[str, float | str], list[dict[str, float]]] = {}
    for (panel, x, _), values in sorted(best.items()):
        by_place.setdefault((panel, x), []).append(values)
    return [
        Point(
            panel,
            "infinite cache",
            x,
            {metric: fmean(values[metric] for values in seeds) for metric in bounded},
        )
        for (panel, x), seeds in by_place.items()
    ]


def _over_time(runs: Sequence[RunRecord], drawn: Mapping[str, Any], title: str) -> tuple[Figure, Table]:
    """A panel for each run, or a column of them."""
    policies = short_names({run.policy for run in runs})
    courses = [course_of(run, drawn, policies) for run in runs]
    names = list(dict.fromkeys(name for course in courses for name in course.samples))
    table: Table = [["panel", *names]]
    for course in courses:
        columns = [course.samples.get(name, [""] * len(course.samples["seconds"])) for name in names]
        table += [[course.panel, *values] for values in zip(*columns, strict=True)]
    title = ", ".join([title, *(f"eviction {policy}" for policy in policies.values() if len(policies) == 1)])
    return OVER_TIME[drawn["kind"]](courses, drawn, title), table


def short_names(policies: Collection[str]) -> dict[str, str]:
    """By policy with its settings: its name alone, where no other of ``policies`` has the same name."""
    names = Counter(policy.partition(" ")[0] for policy in policies)
    return {
        policy: policy if names[policy.partition(" ")[0]] > 1 else policy.partition(" ")[0]
        for policy in policies
    }


def course_of(run: RunRecord, drawn: Mapping[str, Any], policies: Mapping[str, str]) -> Course:
    """A run's timeline. Raises OSError where it has none."""
    named = {"policy": policies[run.policy], "admission": run.admission}
    panel = ", ".join(named.get(key) or str(_setting(run.config, key)) for key in drawn["panels"])
    return Course(panel, run.config["eviction"]["name"], run.budget_gb, read_timeline(run.folder / TIMELINE))


def point_of(run: RunRecord, drawn: Mapping[str, Any], policies: Mapping[str, str]) -> Point:
    """A run's place in the figure; ``policies`` as ``short_names`` gives them."""
    metrics = drawn["metrics"]
    if metrics == "lost_tokens":
        total = float(run.summary["input_tokens"]) or 1.0
        values = {reason: 100 * tokens / total for reason, tokens in run.summary["lost_tokens"].items()}
        values = {"hit": 100 * run.number("token_hit_rate"), **values}
    else:
        values = {m: run.number(m) * (100 if m.endswith(("_rate", "_ratio")) else 1) for m in metrics}
    policy = policies[run.policy]
    line = policy if drawn["line"] == "eviction" else str(_setting(run.config, drawn["line"]))
    x = _setting(run.config, drawn["x"]) if drawn["x"] != "eviction" else policy
    x = x if isinstance(x, str) and drawn["kind"] == "bars" else float(x)
    panel = drawn.get("panel_label", "{}").format(_setting(run.config, drawn["panel"]))
    return Point(panel, line, x, values)


def title_of(configs: Sequence[Mapping[str, Any]]) -> str:
    """What all runs have in common, as far as a reader of the picture has to know it."""
    parts = {
        "trace": [config["trace"]["kind"] for config in configs],
        "model": [config["model"]["name"] for config in configs],
        "budget": [f"{float(config['budget_gb']):g} GB" for config in configs],
        "admission": [f"admission {config['admission']['name']}" for config in configs],
        "hardware": [config["hardware"]["name"] if config["mode"] == "engine" else "" for config in configs],
    }
    return ", ".join(values[0] for values in parts.values() if len(set(values)) == 1 and values[0])


def _setting(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value


if __name__ == "__main__":
    main()
