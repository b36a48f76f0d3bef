"""Comparison tables as text, Markdown and CSV."""

import csv
import io
from collections.abc import Sequence

from hybridcache.experiments.panel import Panel

METRICS = {"token_hit_rate": "token hit rate, %", "flops_saved_ratio": "FLOPs saved, %"}

CSV_NUMBERS = (
    "requests", "requests_refused", "input_tokens", "hit_tokens", "token_hit_rate", "matched_tokens",
    "request_hit_rate", "flops_total", "flops_saved", "flops_saved_ratio", "evictions",
    "checkpoints_admitted", "checkpoints_used", "budget_bytes", "peak_bytes", "wall_seconds",
    "requests_per_second",
)  # fmt: skip
"""Keys of the summary that the CSV repeats."""

BOUND_NAMES = {"hybrid": "infinite cache, hybrid", "kv": "infinite cache, KV only"}


def pivot(panel: Panel, metric: str) -> list[list[str]]:
    """Rows of text: a header of budgets, a row per policy, a row per bound; values in percent."""
    rows = [["eviction", *(f"{budget:g} GB" for budget in panel.budgets)]]
    for policy in panel.policies:
        cells = [panel.cell(policy, budget) for budget in panel.budgets]
        rows.append([policy, *("" if cell is None else f"{100 * cell.mean(metric):.1f}" for cell in cells)])
    if panel.bounds is not None:
        for kind, name in BOUND_NAMES.items():
            value = f"{100 * getattr(panel.bounds, f'{kind}_{metric}'):.1f}"
            rows.append([name, *[value] * len(panel.budgets)])
    return rows


def as_text(panel: Panel) -> str:
    """Tables for a terminal."""
    parts = [panel.setting, *_notes(panel)]
    for metric, name in METRICS.items():
        rows = pivot(panel, metric)
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = []
        for row in rows:
            numbers = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            lines.append("  ".join([row[0].ljust(widths[0]), *numbers]))
        lines.insert(1, "-" * len(lines[0]))
        parts += ["", name, *lines]
    return "\n".join(parts) + "\n"


def as_markdown(panels: Sequence[Panel]) -> str:
    """The same tables for a document."""
    parts = ["# Replay results"]
    for panel in panels:
        parts += [f"## {panel.title}", panel.setting, *_notes(panel)]
        for metric, name in METRICS.items():
            header, *body = pivot(panel, metric)
            lines = [header, ["---", *["---:"] * (len(header) - 1)], *body]
            table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
            parts.append(f"{name[0].upper()}{name[1:]}:\n\n{table}")
    return "\n\n".join(parts) + "\n"


def as_csv(panels: Sequence[Panel]) -> str:
    """One line per run, every number of its summary with it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    lost = sorted(panels[0].cells[0].runs[0].summary["lost_tokens"])
    bounds = [f"{kind}_{metric}_bound" for metric in METRICS for kind in BOUND_NAMES]
    settings = ["trace", "model", "admission", "eviction", "budget_gb", "block_size", "memory", "seed"]
    writer.writerow([*settings, *CSV_NUMBERS, *(f"lost_{reason}" for reason in lost), *bounds, "folder"])
    for panel in panels:
        limits = [
            "" if panel.bounds is None else getattr(panel.bounds, f"{kind}_{metric}")
            for metric in METRICS
            for kind in BOUND_NAMES
        ]
        for cell in panel.cells:
            for run in cell.runs:
                config, summary = run.config, run.summary
                writer.writerow(
                    [summary["trace"], config["model"]["name"], run.admission, run.policy, cell.budget_gb]
                    + [config["block_size"], config["memory"], summary["seed"]]
                    + [summary[key] for key in CSV_NUMBERS]
                    + [summary["lost_tokens"].get(reason, 0) for reason in lost]
                    + [*limits, run.folder]
                )
    return text.getvalue()


def _notes(panel: Panel) -> list[str]:
    notes = []
    seeds = {len(cell.runs) for cell in panel.cells}
    if seeds != {1}:
        notes.append(f"Means over up to {max(seeds)} seeds.")
    if panel.lower_bound:
        notes.append("The trace holds no output tokens, so that reuse is a lower bound.")
    if any(run.summary["requests_refused"] for cell in panel.cells for run in cell.runs):
        notes.append("Some requests were refused, being larger than the budget; their tokens count as lost.")
    return notes
