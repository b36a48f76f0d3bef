"""Comparison tables as text, Markdown and CSV."""

import csv
import io
from collections.abc import Sequence

from hybridcache.experiments.panel import Panel

METRICS = {"token_hit_rate": "token hit rate, %", "flops_saved_ratio": "FLOPs saved, %"}

TIME_METRICS = {
    "ttft_seconds.p50": "time to first token, median, s",
    "ttft_seconds.p95": "time to first token, 95th percentile, s",
    "output_tokens_per_second": "generated tokens a second",
}
"""Of replays in which time passes."""

CSV_NUMBERS = (
    "requests", "requests_refused", "input_tokens", "hit_tokens", "token_hit_rate", "matched_tokens",
    "request_hit_rate", "flops_total", "flops_saved", "flops_saved_ratio", "evictions",
    "checkpoints_admitted", "checkpoints_used", "budget_bytes", "peak_bytes", "wall_seconds",
    "requests_per_second",
)  # fmt: skip
"""Keys of the summary that the CSV repeats."""

CSV_TIMES = (
    "ttft_seconds.p50", "ttft_seconds.p95", "ttft_seconds.p99", "e2e_seconds.p50", "queue_seconds.p95",
    "output_tokens_per_second", "busy_fraction", "preemptions",
)  # fmt: skip
"""The same of replays in which time passes; empty for others."""

BOUND_NAMES = {"hybrid": "infinite cache, hybrid", "kv": "infinite cache, KV only"}


def pivot(panel: Panel, metric: str) -> list[list[str]]:
    """Rows of text: a header of budgets, a row per policy, a row per bound; ratios in percent."""
    ratio = metric in METRICS
    cell_text = "{:.1f}" if ratio else "{:.3g}"
    rows = [["eviction", *(f"{budget:g} GB" for budget in panel.budgets)]]
    for policy in panel.policies:
        cells = [panel.cell(policy, budget) for budget in panel.budgets]
        means = [None if cell is None else (100 if ratio else 1) * cell.mean(metric) for cell in cells]
        rows.append([policy, *("" if mean is None else cell_text.format(mean) for mean in means)])
    if panel.bounds is not None and ratio:
        for kind, name in BOUND_NAMES.items():
            value = f"{100 * getattr(panel.bounds, f'{kind}_{metric}'):.1f}"
            rows.append([name, *[value] * len(panel.budgets)])
    return rows


def as_text(panel: Panel) -> str:
    """Tables for a terminal."""
    parts = [panel.setting, *_notes(panel)]
    for metric, name in _metrics(panel).items():
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
        for metric, name in _metrics(panel).items():
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
    reasons = [f"lost_{reason}" for reason in lost]
    writer.writerow([*settings, *CSV_NUMBERS, *CSV_TIMES, *reasons, *bounds, "folder"])
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
                    + [summary.get(key, "") for key in CSV_NUMBERS]
                    + [run.number(key) if panel.timed else "" for key in CSV_TIMES]
                    + [summary["lost_tokens"].get(reason, 0) for reason in lost]
                    + [*limits, run.folder]
                )
    return text.getvalue()


def _metrics(panel: Panel) -> dict[str, str]:
    return METRICS | (TIME_METRICS if panel.timed else {})


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
