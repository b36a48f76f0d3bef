"""How the timelines of runs are drawn: where bytes sat, and what they returned."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hybridcache.experiments.figure_frame import dress, legend_below, new_figure
from hybridcache.experiments.policy_style import policy_styles
from hybridcache.experiments.timeline import LEARNT
from hybridcache.policies.columns import KIND_NAMES

KIND_LOOKS = {
    "final": ("#0072B2", "//", "o"), "branch": ("#E69F00", "..", "s"), "prompt_end": ("#009E73", "\\\\", "^"),
    "interval": ("#CC79A7", "xx", "D"), "message_end": ("#D55E00", "++", "v"),
    "follow_up": ("#56B4E9", "--", "P"),
}  # fmt: skip
"""Colour, hatching and marker of checkpoints by kind, so that colour alone tells nothing apart."""

WINDOWS = 12
"""Parts of the time that returns are taken over."""

Samples = Mapping[str, NDArray[np.float64]]


class Course(NamedTuple):
    """One run over its time."""

    panel: str
    policy: str
    """The eviction policy's name."""
    budget_gb: float
    samples: Samples
    """The columns of its timeline.parquet, [samples] each."""


def draw_bytes(courses: Sequence[Course], drawn: Mapping[str, Any], title: str) -> Figure:
    """A column for each run: bytes held, FLOPs saved so far, and these for each byte and second held."""
    figure = new_figure(len(courses), 3, title, height=2.6)
    kinds = [kind for kind in KIND_NAMES if any(course.samples[f"{kind}_bytes"].any() for course in courses)]
    for column, course in enumerate(courses):
        minutes = course.samples["seconds"] / 60
        places = [row * len(courses) + column + 1 for row in range(3)]
        held, saved, returned = (figure.add_subplot(3, len(courses), place) for place in places)
        layers = {"KV": course.samples["kv_bytes"], "running states": course.samples["running_state_bytes"]}
        layers = {name: values for name, values in layers.items() if values.any()}
        looks = {"KV": ("#d9d9d9", ""), "running states": ("#888888", "||")}
        held.stackplot(
            minutes,
            *(values / 1e9 for values in layers.values()),
            *(course.samples[f"{kind}_bytes"] / 1e9 for kind in kinds),
            labels=[*layers, *(f"{kind} checkpoints" for kind in kinds)],
            colors=[*(looks[name][0] for name in layers), *(KIND_LOOKS[kind][0] for kind in kinds)],
            hatch=[*(looks[name][1] for name in layers), *(KIND_LOOKS[kind][1] for kind in kinds)],
            edgecolor="white", linewidth=0,
        )  # fmt: skip
        if np.isfinite(course.budget_gb):
            held.axhline(course.budget_gb, color="black", linestyle="--", linewidth=1, label="budget")
        dress(held, course.panel, "")
        saved.stackplot(
            minutes,
            *(course.samples[f"{kind}_flops_saved"] / 1e15 for kind in kinds),
            colors=[KIND_LOOKS[kind][0] for kind in kinds],
            hatch=[KIND_LOOKS[kind][1] for kind in kinds],
            edgecolor="white", linewidth=0,
        )  # fmt: skip
        dress(saved, "", "")
        for kind in kinds:
            middles, rates = returns(course.samples, kind)
            color, _, marker = KIND_LOOKS[kind]
            returned.plot(middles / 60, rates, color=color, marker=marker, linewidth=1.6, markersize=5)
        dress(returned, "", "minutes of the trace")
        if not column:
            held.set_ylabel("held (GB)")
            saved.set_ylabel("saved so far (PFLOP)")
            returned.set_ylabel("saved per GB of checkpoints\nand minute (PFLOP)")
        for axes in (held, saved, returned):
            axes.set_xlim(0, minutes[-1])
            axes.set_ylim(bottom=0)
    for row in range(3):
        top = max(axes.get_ylim()[1] for axes in figure.axes[row::3])
        for axes in figure.axes[row::3]:
            axes.set_ylim(top=top)
    legend_below(figure)
    return figure


def draw_learnt(courses: Sequence[Course], drawn: Mapping[str, Any], title: str) -> Figure:
    """A panel for each run: what its policy had learnt, a line for each number.

    ``drawn``: by policy, ``labels`` of the vertical axis and ``scales`` that the numbers are multiplied with.
    """
    columns = min(len(courses), 2)
    rows = -(-len(courses) // columns)
    figure = new_figure(columns, rows, title, width=5.0, height=2.8)
    names = list(dict.fromkeys(name for course in courses for name in learnt_names(course.samples)))
    styles = policy_styles(names)
    for place, course in enumerate(courses):
        axes = figure.add_subplot(rows, columns, place + 1)
        minutes = course.samples["seconds"] / 60
        for name in learnt_names(course.samples):
            style = styles[name]
            axes.plot(
                minutes, course.samples[name] * drawn["scales"].get(course.policy, 1),
                color=style.color, linestyle=style.line, marker=style.marker, markersize=5, linewidth=1.6,
                markevery=max(1, len(minutes) // 12), drawstyle="steps-post", clip_on=False, zorder=3,
                label=name.removeprefix(LEARNT),
            )  # fmt: skip
        dress(axes, course.panel, "minutes of the trace" if place >= len(courses) - columns else "")
        axes.set_ylabel(drawn["labels"].get(course.policy, "learnt") if not place % columns else "")
        axes.set_xlim(0, minutes[-1])
        axes.set_ylim(bottom=0)
    legend_below(figure)
    return figure


def learnt_names(samples: Samples) -> list[str]:
    """The columns of what the policy has learnt."""
    return [name for name in samples if name.startswith(LEARNT)]


def returns(samples: Samples, kind: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What checkpoints of ``kind`` returned in each of WINDOWS equal parts of the time.

    The middles of the parts, seconds, and PFLOP of hits that resumed there for each GB and minute that they
    were held; NaN where there were none.
    """
    seconds, held, saved = samples["seconds"], samples[f"{kind}_bytes"], samples[f"{kind}_flops_saved"]
    edges = np.linspace(seconds[0], seconds[-1], WINDOWS + 1)
    # The integral of the bytes held, as of a line through the samples.
    areas = np.concatenate(([0.0], np.cumsum(np.diff(seconds) * (held[1:] + held[:-1]) / 2)))
    gb_minutes = np.diff(np.interp(edges, seconds, areas)) / 1e9 / 60
    pflop = np.diff(np.interp(edges, seconds, saved)) / 1e15
    middles = np.array([(left + right) / 2 for left, right in pairwise(edges)])
    return middles, np.divide(pflop, gb_minutes, out=np.full(WINDOWS, np.nan), where=gb_minutes > 1e-3)
