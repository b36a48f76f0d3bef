"""The figure of a comparison: one panel per trace, model and admission."""

import math
import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from hybridcache.experiments.panel import Panel
from hybridcache.experiments.policy_style import PolicyStyle, policy_styles
from hybridcache.experiments.table import BOUND_NAMES

AXIS_LABELS = {
    "token_hit_rate": "token hit rate (% of input tokens)",
    "flops_saved_ratio": "FLOPs saved (% of all prefill FLOPs)",
}

_PANEL_INCHES = (6.4, 4.4)  # width, height
_BOUND_COLOR = "#555555"
_BOUND_LINES = {"hybrid": (0.0, (7.0, 3.0)), "kv": (0.0, (1.0, 2.0))}
_ON_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
"""Behind a text that a line may cross."""
_LABEL_POINTS = 13.0  # least distance between two labels at the line ends


def draw_figure(panels: Sequence[Panel], metric: str) -> Figure:
    """Draw ``metric`` (a key of AXIS_LABELS) against the budget, or as bars where there is one budget only.

    An infinite budget has no place on the axis: the bounds stand for it.
    """
    columns = min(len(panels), 3)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(
        figsize=(_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * rows), dpi=144, layout="constrained"
    )
    FigureCanvasAgg(figure)
    styles = policy_styles(sorted({policy for panel in panels for policy in panel.policies}))
    labelled: list[tuple[Axes, list[tuple[str, float, float, str]]]] = []
    for place, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, place + 1)
        axes.set_title("\n".join(textwrap.wrap(panel.title, 64)), loc="left", fontsize=10)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        budgets = [budget for budget in panel.budgets if math.isfinite(budget)]
        if len(budgets) > 1:
            labelled.append((axes, _draw_lines(axes, panel, metric, budgets, styles)))
        else:
            _draw_bars(axes, panel, metric, styles)
    figure.draw_without_rendering()  # fixes the scales that the labels are placed by
    for axes, ends in labelled:
        _label_ends(axes, ends)
    if any(panel.lower_bound for panel in panels):
        figure.supxlabel("A trace here holds no output tokens: reuse on it is a lower bound.", fontsize=8)
    return figure


def _draw_lines(
    axes: Axes, panel: Panel, metric: str, budgets: list[float], styles: dict[str, PolicyStyle]
) -> list[tuple[str, float, float, str]]:
    """Lines over the budgets; returns their ends (label, budget, percent, colour)."""
    ends = []
    for policy in panel.policies:
        cells = [cell for budget in budgets if (cell := panel.cell(policy, budget)) is not None]
        if not cells:
            continue
        style = styles[policy]
        x = [cell.budget_gb for cell in cells]
        y = [100 * cell.mean(metric) for cell in cells]
        ranges = [cell.range(metric) for cell in cells]
        axes.plot(
            x, y, color=style.color, marker=style.marker, linestyle=style.line, markersize=6, linewidth=1.8,
            markeredgecolor="white", markeredgewidth=0.8, clip_on=False, zorder=3,
        )  # fmt: skip
        if any(low != high for low, high in ranges):
            axes.vlines(
                x, [100 * low for low, _ in ranges], [100 * high for _, high in ranges],
                color=style.color, linewidth=1.0,
            )  # fmt: skip
        ends.append((f"{style.glyph} {policy}", x[-1], y[-1], style.color))
    axes.set_xscale("log", base=2)
    axes.set_xlim(budgets[0], budgets[-1])
    axes.set_xticks(budgets)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("cache budget (GB = 1e9 bytes, log scale)")
    axes.set_ylabel(AXIS_LABELS[metric])
    top = max(end[2] for end in ends)
    for kind, value in _bound_values(panel, metric).items():
        axes.axhline(value, color=_BOUND_COLOR, linestyle=_BOUND_LINES[kind], linewidth=1.2, zorder=1)
        top = max(top, value)
    _label_bounds(axes, _bound_values(panel, metric))
    axes.set_ylim(0, min(110, 1.1 * top) if top > 0 else 1)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)
    return ends


def _draw_bars(axes: Axes, panel: Panel, metric: str, styles: dict[str, PolicyStyle]) -> None:
    """Bars for one budget, the best on top, their values beside them."""
    cells = sorted(panel.cells, key=lambda cell: cell.mean(metric))
    values = [100 * cell.mean(metric) for cell in cells]
    axes.barh(range(len(cells)), values, color=[styles[cell.policy].color for cell in cells], height=0.6)
    axes.set_yticks(range(len(cells)), [cell.policy for cell in cells])
    for place, value in enumerate(values):
        axes.annotate(
            f"{value:.1f}", (value, place), xytext=(4, 0), textcoords="offset points", va="center",
            fontsize=9, bbox=_ON_WHITE,
        )  # fmt: skip
    bounds = _bound_values(panel, metric)
    for kind, value in bounds.items():
        axes.axvline(value, color=_BOUND_COLOR, linestyle=_BOUND_LINES[kind], linewidth=1.2)
    axes.set_ylim(-0.6, len(cells) - 0.4 + 0.55 * len(bounds))
    for line, (kind, value) in enumerate(sorted(bounds.items())):
        axes.annotate(
            f"{BOUND_NAMES[kind]} {value:.1f}", (value, len(cells) - 0.25 + 0.55 * line), xytext=(-4, 0),
            textcoords="offset points", ha="right", va="center", fontsize=8, color=_BOUND_COLOR,
            bbox=_ON_WHITE,
        )  # fmt: skip
    budget = panel.budgets[0]
    where = f"{budget:g} GB budget (1e9 bytes)" if math.isfinite(budget) else "no budget"
    axes.set_xlabel(f"{AXIS_LABELS[metric]}, {where}")
    axes.set_xlim(0, min(108, 1.12 * max([*values, *bounds.values(), 1e-9])))
    axes.tick_params(axis="y", length=0)


def _bound_values(panel: Panel, metric: str) -> dict[str, float]:
    """Percent by kind of bound; empty where they are unknown."""
    if panel.bounds is None:
        return {}
    return {kind: 100 * getattr(panel.bounds, f"{kind}_{metric}") for kind in BOUND_NAMES}


def _label_bounds(axes: Axes, bounds: dict[str, float]) -> None:
    """Name the bounds at the left: the higher one above its line, the lower one below."""
    for place, (kind, value) in enumerate(sorted(bounds.items(), key=lambda item: -item[1])):
        axes.annotate(
            f"{BOUND_NAMES[kind]} {value:.1f}", (0.0, value), xycoords=("axes fraction", "data"),
            xytext=(4, 3 if place == 0 else -3), textcoords="offset points", ha="left",
            va="bottom" if place == 0 else "top", fontsize=8, color=_BOUND_COLOR,
            bbox=_ON_WHITE, zorder=2,
        )  # fmt: skip


def _label_ends(axes: Axes, ends: list[tuple[str, float, float, str]]) -> None:
    """Write each line's name beside its end, moved apart where they would overlap."""
    points = 72 / axes.figure.dpi  # points per pixel
    leader = {"arrowstyle": "-", "linewidth": 0.6, "shrinkA": 1, "shrinkB": 4, "relpos": (0.0, 0.5)}
    placed = math.inf
    spots = []
    for label, x, y, color in sorted(ends, key=lambda end: -end[2]):
        natural = float(axes.transData.transform((x, y))[1]) * points
        placed = min(natural, placed - _LABEL_POINTS)
        spots.append((label, x, y, color, placed - natural))
    for label, x, y, color, shift in spots:
        axes.annotate(
            label, (x, y), xytext=(16, shift), textcoords="offset points", ha="left", va="center", fontsize=9,
            color=color, annotation_clip=False,
            arrowprops=leader | {"color": color},
        )  # fmt: skip
