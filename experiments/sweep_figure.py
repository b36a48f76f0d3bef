"""How the runs of a sweep are drawn: lines against a setting, or stacked bars."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from hybridcache.experiments.policy_style import policy_styles

_PARTS = {
    "hit": ("#0072B2", ""), "last_token": ("#dddddd", "++"), "checkpoint_evicted": ("#D55E00", "//"),
    "kv_evicted": ("#E69F00", ".."), "no_checkpoint": ("#CC79A7", "xx"), "expired": ("#009E73", "--"),
    "diverged": ("#999999", "\\\\"), "new": ("#cccccc", ""), "too_large": ("#000000", ""),
}  # fmt: skip
"""Colour and hatching, so that colour alone tells nothing apart."""


class Point(NamedTuple):
    """One run in the figure."""

    panel: str
    line: str
    x: float | str
    values: dict[str, float]
    """By metric: a key of the summary, percent where it is a rate."""


def draw_lines(points: Sequence[Point], drawn: Mapping[str, Any], title: str = "") -> Figure:
    """A row of panels for each metric; a line for each policy (or whatever ``line`` names)."""
    panels, metrics = _panels(points), list(points[0].values)
    figure = _figure(len(panels), len(metrics), title)
    styles = policy_styles(sorted({point.line for point in points}))
    for row, metric in enumerate(metrics):
        for column, panel in enumerate(panels):
            axes = figure.add_subplot(len(metrics), len(panels), row * len(panels) + column + 1)
            here = [point for point in points if point.panel == panel]
            for line in sorted({point.line for point in here}):
                mine = [point for point in here if point.line == line]
                style = styles[line]
                axes.plot(
                    [float(p.x) for p in mine], [p.values[metric] for p in mine], label=line,
                    color=style.color, marker=style.marker, linestyle=style.line, linewidth=1.8,
                    markeredgecolor="white", markeredgewidth=0.8,
                )  # fmt: skip
            ticks = sorted({float(point.x) for point in here})
            if drawn.get("log", True):
                axes.set_xscale("log", base=2)
            axes.set_xticks(ticks)
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            _dress(axes, panel if not row else "", drawn["x_label"] if row == len(metrics) - 1 else "")
            axes.set_ylabel(drawn["labels"][metric] if not column else "")
            if drawn.get("log_y", False):
                axes.set_yscale("log")
                axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
                axes.yaxis.set_minor_locator(NullLocator())
                axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            else:
                axes.set_ylim(bottom=0)
    _legend(figure)
    return figure


def draw_bars(points: Sequence[Point], drawn: Mapping[str, Any], title: str = "") -> Figure:
    """Stacked bars, one a policy: what became of all input tokens."""
    panels = _panels(points)
    rows = math.ceil(len(panels) / 3)
    columns = math.ceil(len(panels) / rows)
    figure = _figure(columns, rows, title)
    parts = [part for part in _PARTS if any(point.values[part] >= 0.05 for point in points)]
    for place, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, place + 1)
        here = [point for point in points if point.panel == panel]
        left = [0.0] * len(here)
        for part in parts:
            widths = [point.values[part] for point in here]
            color, hatch = _PARTS[part]
            axes.barh(
                range(len(here)), widths, left=left, height=0.7, label=part, facecolor=color, hatch=hatch,
                edgecolor="white", linewidth=0,
            )  # fmt: skip
            left = [start + width for start, width in zip(left, widths, strict=True)]
        names = [str(point.x) for point in here]
        axes.set_yticks(range(len(here)), names if not place % columns else [""] * len(here))
        axes.set_xlim(0, 100)
        _dress(axes, panel, drawn["x_label"] if place + columns >= len(panels) else "")
    _legend(figure)
    return figure


def _panels(points: Sequence[Point]) -> list[str]:
    return sorted({point.panel for point in points})


def _figure(columns: int, rows: int, title: str) -> Figure:
    figure = Figure(figsize=(1.2 + 4.2 * columns, 0.6 + 3.3 * rows), dpi=144, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


def _legend(figure: Figure) -> None:
    """Below the panels, where it hides nothing."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    width = max(1, int(figure.get_figwidth() / 1.9))  # inches an entry takes
    figure.legend(
        handles, labels, frameon=False, fontsize=9, loc="outside lower center", handlelength=3.5,
        ncols=min(len(labels), width),
    )  # fmt: skip


def _dress(axes: Axes, title: str, x_label: str) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(x_label)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
