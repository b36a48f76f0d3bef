"""How the runs of a sweep are drawn: lines against a setting, or stacked bars."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from hybridcache.experiments.policy_style import policy_styles

_LOST_COLORS = {
    "hit": "#0072B2", "last_token": "#dddddd", "checkpoint_evicted": "#D55E00", "kv_evicted": "#E69F00",
    "no_checkpoint": "#CC79A7", "expired": "#009E73", "diverged": "#999999", "new": "#cccccc",
    "too_large": "#000000",
}  # fmt: skip


class Point(NamedTuple):
    """One run in the figure."""

    panel: str
    line: str
    x: float | str
    values: dict[str, float]
    """By metric: a key of the summary, percent where it is a rate."""


def draw_lines(points: Sequence[Point], drawn: Mapping[str, Any]) -> Figure:
    """A row of panels for each metric; a line for each policy (or whatever ``line`` names)."""
    panels, metrics = _panels(points), list(points[0].values)
    figure = _figure(len(panels), len(metrics))
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
            axes.set_ylim(bottom=0)
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure


def draw_bars(points: Sequence[Point], drawn: Mapping[str, Any]) -> Figure:
    """Stacked bars, one a policy: what became of all input tokens."""
    panels = _panels(points)
    figure = _figure(len(panels), 1)
    parts = [part for part in _LOST_COLORS if any(point.values[part] >= 0.05 for point in points)]
    for column, panel in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), column + 1)
        here = [point for point in points if point.panel == panel]
        left = [0.0] * len(here)
        for part in parts:
            widths = [point.values[part] for point in here]
            axes.barh(range(len(here)), widths, left=left, color=_LOST_COLORS[part], label=part, height=0.7)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        names = [str(point.x) for point in here]
        axes.set_yticks(range(len(here)), names if not column else [""] * len(here))
        axes.set_xlim(0, 100)
        _dress(axes, panel, drawn["x_label"])
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=8, loc="outside lower center", ncols=len(parts))
    return figure


def _panels(points: Sequence[Point]) -> list[str]:
    return sorted({point.panel for point in points})


def _figure(columns: int, rows: int) -> Figure:
    figure = Figure(figsize=(1.2 + 4.2 * columns, 0.6 + 3.3 * rows), dpi=144, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _dress(axes: Axes, title: str, x_label: str) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(x_label)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
