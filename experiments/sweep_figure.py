"""How the runs of a sweep are drawn: lines against a setting, or stacked bars."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from hybridcache.experiments.figure_frame import dress, legend_below, new_figure
from hybridcache.experiments.policy_style import policy_styles

_PARTS = {
    "hit": ("#0072B2", ""), "last_token": ("#dddddd", "++"), "checkpoint_evicted": ("#D55E00", "//"),
    "kv_evicted": ("#E69F00", ".."), "no_checkpoint": ("#CC79A7", "xx"), "expired": ("#009E73", "--"),
    "diverged": ("#999999", "\\\\"), "new": ("#cccccc", ""), "too_large": ("#000000", ""),
}  # fmt: skip
"""Colour and hatching, so that colour alone tells nothing apart."""


MOST_COLUMNS = 3


class Point(NamedTuple):
    """One run in the figure."""

    panel: str
    line: str
    x: float | str
    values: dict[str, float]
    """By metric: a key of the summary, percent where it is a rate."""


def draw_lines(
    points: Sequence[Point], drawn: Mapping[str, Any], title: str = "", bounds: Sequence[Point] = ()
) -> Figure:
    """Panels for each metric, three a row; a line for each policy (or whatever ``line`` names).

    ``bounds``, thin lines without markers, are what no line can pass; a metric they lack has none.
    """
    panels, metrics = _panels(points), list(points[0].values)
    columns = min(len(panels), MOST_COLUMNS)
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(columns, rows * len(metrics), title)
    styles = policy_styles(sorted({point.line for point in points}))
    for (row, metric), (place, panel) in product(enumerate(metrics), enumerate(panels)):
        axes = figure.add_subplot(len(metrics) * rows, columns, row * rows * columns + place + 1)
        here = [point for point in points if point.panel == panel]
        for line in sorted({point.line for point in here}):
            mine = [point for point in here if point.line == line]
            style = styles[line]
            axes.plot(
                [float(p.x) for p in mine], [p.values[metric] for p in mine], label=line,
                color=style.color, marker=style.marker, linestyle=style.line, linewidth=1.6,
                markersize=7, markeredgecolor="white", markeredgewidth=0.5,
            )  # fmt: skip
        above = [point for point in bounds if point.panel == panel and metric in point.values]
        if above:
            axes.plot(
                [float(p.x) for p in above], [p.values[metric] for p in above], label=above[0].line,
                color="black", linewidth=0.8, zorder=1,
            )  # fmt: skip
        if drawn.get("log", True):
            axes.set_xscale("log", base=2)
        axes.set_xticks(sorted({float(point.x) for point in here}))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        lowest = row == len(metrics) - 1 and place + columns >= len(panels)
        dress(axes, panel, drawn["x_label"] if lowest else "")
        axes.set_ylabel(drawn["labels"][metric] if not place % columns else "")
        if drawn.get("log_y", False):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        else:
            low, high = axes.get_ylim()
            if low < 0.6 * high:  # from zero where that leaves the lines 0.4 of the height
                axes.set_ylim(bottom=0)
    legend_below(figure)
    return figure


def draw_bars(points: Sequence[Point], drawn: Mapping[str, Any], title: str = "") -> Figure:
    """Stacked bars, one a policy (and line, where there are several): what became of all input tokens."""
    panels = _panels(points)
    one_line = len({point.line for point in points}) == 1
    rows = math.ceil(len(panels) / MOST_COLUMNS)
    columns = math.ceil(len(panels) / rows)
    figure = new_figure(columns, rows, title)
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
        names = [str(point.x) if one_line else f"{point.x}, {point.line}" for point in here]
        axes.set_yticks(range(len(here)), names if not place % columns else [""] * len(here))
        axes.set_xlim(0, 100)
        dress(axes, panel, drawn["x_label"] if place + columns >= len(panels) else "")
    legend_below(figure)
    return figure


def _panels(points: Sequence[Point]) -> list[str]:
    return sorted({point.panel for point in points})
