"""Tables and figures of any set of runs: ``python -m hybridcache.experiments.report DIR...``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hybridcache.experiments.bounds import Bounds, find_bounds
from hybridcache.experiments.figure import AXIS_LABELS, draw_figure
from hybridcache.experiments.panel import Cell, Panel, describe, group_runs
from hybridcache.experiments.run_record import collect_runs
from hybridcache.experiments.table import as_csv, as_markdown, as_text


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line; exit status 2 and one line on stderr for what the user can mend."""
    parser = argparse.ArgumentParser(prog="python -m hybridcache.experiments.report", description=__doc__)
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="DIR", help="run folders, or folders of them"
    )
    parser.add_argument("--out", type=Path, help="where to write (default: report/ in the first DIR)")
    parser.add_argument("--no-bounds", action="store_true", help="do not replay the infinite cache")
    options = parser.parse_args(arguments)
    try:
        write_report(
            options.folders, options.out or options.folders[0] / "report", bounds=not options.no_bounds
        )
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def write_report(folders: Sequence[Path], out: Path, *, bounds: bool = True) -> list[Path]:
    """Print the tables; write table.csv, table.md and a PNG per metric into ``out``; return their paths.

    The bounds are kept in ``out``/bounds.json, so that they are replayed once.

    Raises:
        ValueError: a folder does not exist, or none holds a finished run.
    """
    runs, problems = collect_runs(folders)
    for problem in problems:
        _warn(problem)
    if not runs:
        raise ValueError(
            f"no finished run in {', '.join(map(str, folders))}; a run leaves a summary.json there"
        )
    comparisons, warnings = group_runs(runs)
    for warning in warnings:
        _warn(warning)
    out.mkdir(parents=True, exist_ok=True)
    panels = []
    for cells in comparisons:
        title, setting = describe(cells, comparisons)
        known = _mean_bounds(cells, out / "bounds.json", title) if bounds else None
        lower_bound = not all(run.summary["outputs_in_trace"] for cell in cells for run in cell.runs)
        panels.append(Panel(title, setting, tuple(cells), known, lower_bound))
    for panel in panels:
        print(as_text(panel))
    written = [out / "table.csv", out / "table.md", *(out / f"{metric}.png" for metric in AXIS_LABELS)]
    written[0].write_text(as_csv(panels), encoding="utf-8")
    written[1].write_text(as_markdown(panels), encoding="utf-8")
    for metric in AXIS_LABELS:
        draw_figure(panels, metric).savefig(out / f"{metric}.png")
    for path in written:
        print(f"wrote {path}")
    return written


def _mean_bounds(cells: Sequence[Cell], store: Path, title: str) -> Bounds | None:
    """The bounds of a comparison, a mean over its seeds; None, with a warning, if the trace is gone."""
    configs = {run.summary["seed"]: run.config for cell in cells for run in cell.runs}
    try:
        found = [find_bounds(config, store) for _, config in sorted(configs.items())]
    except (ValueError, OSError) as error:
        _warn(f"{title}: no bounds, since the trace cannot be replayed ({error})")
        return None
    return Bounds(*(sum(values) / len(found) for values in zip(*found, strict=True)))


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


if __name__ == "__main__":
    main()
