"""What figures of several panels have in common: their size, frame and legend."""

import math

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def new_figure(columns: int, rows: int, title: str, width: float = 4.2, height: float = 3.3) -> Figure:
    """Room for ``rows`` x ``columns`` panels, ``width`` x ``height`` inches each."""
    figure = Figure(figsize=(1.2 + width * columns, 0.6 + height * rows), dpi=144, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


def dress(axes: Axes, title: str, x_label: str) -> None:
    """Title, label and grid of one panel, its frame open above and to the right."""
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(x_label)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def legend_below(figure: Figure) -> None:
    """One entry for each name that any panel has, below them, where it hides nothing."""
    named: dict[str, Artist] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(str(label), handle)
    rows = math.ceil(len(named) / max(1, int(figure.get_figwidth() / 1.9)))  # inches an entry takes
    figure.legend(
        list(named.values()), list(named), loc="outside lower center", frameon=False, fontsize=9,
        handlelength=3.5, ncols=math.ceil(len(named) / max(rows, 1)),  # none stands alone in the last row
    )  # fmt: skip
