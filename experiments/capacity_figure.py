"""The figure of the capacity planner."""

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from hybridcache.experiments.capacity_curve import Plan


def draw_curve(plan: Plan, target: float) -> Figure:
    """Hit rate against budget, the bound, the target, and full replays where they were made."""
    figure = Figure(figsize=(7.2, 4.4), dpi=144, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    curve = plan.curve
    budgets = [budget / 1e9 for budget in curve.budgets]
    axes.plot(
        budgets, [100 * rate for rate in curve.rates], color="#0072B2", marker="o", linewidth=2, zorder=3,
        label=f"estimate from {plan.num_sampled:,} of {plan.num_sessions:,} sessions",
    )  # fmt: skip
    if plan.checked is not None:
        axes.plot(
            budgets, [100 * rate for rate in plan.checked.rates], color="#D55E00", marker="s", linestyle="--",
            linewidth=1.4, zorder=2, label="full replays",
        )  # fmt: skip
    axes.axhline(100 * curve.bound, color="#555555", linestyle=(0, (7, 3)), linewidth=1.2)
    axes.annotate(
        f"infinite cache {100 * curve.bound:.1f}", (0, 100 * curve.bound), xycoords=("axes fraction", "data"),
        xytext=(4, 3), textcoords="offset points", fontsize=9, color="#555555",
    )  # fmt: skip
    needed = curve.budget_for(target * curve.bound) if curve.bound else None
    if needed is not None:
        level = 100 * target * curve.bound
        axes.plot([needed / 1e9] * 2, [0, level], color="#009E73", linestyle=":", linewidth=1.6)
        axes.annotate(
            f"{100 * target:.0f}% of it takes\n{needed / 1e9:,.4g} GB", (needed / 1e9, level / 3),
            xytext=(6, 0), textcoords="offset points", fontsize=9, color="#009E73",
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("cache budget (GB = 1e9 bytes, log scale)")
    axes.set_ylabel("token hit rate (% of input tokens)")
    axes.set_ylim(0, min(110 * curve.bound + 2, 108))
    axes.set_title(f"{plan.trace}, {plan.model}", loc="left", fontsize=10)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=2)
    return figure
