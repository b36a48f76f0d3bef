"""How much memory a cache needs: ``python -m hybridcache.experiments.capacity trace=... model=...``."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from hybridcache.experiments.capacity_curve import Checked, Curve, Plan, Policies, estimate_curve
from hybridcache.experiments.capacity_figure import draw_curve
from hybridcache.experiments.capacity_settings import CapacitySettings
from hybridcache.experiments.command import run_command
from hybridcache.experiments.replay_cache import replay_cache
from hybridcache.experiments.replay_settings import ReplaySettings
from hybridcache.experiments.request_rows import RequestRows
from hybridcache.experiments.run import build_parts, plain_json, resolved
from hybridcache.experiments.run_folder import check_free
from hybridcache.experiments.trace_sample import sample_trace
from hybridcache.experiments.traces.open import open_trace
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.prefix_cache import PrefixCache
from hybridcache.spec import ModelSpec
from hybridcache.weight_counts import WeightCounts

GPU_COUNTS = (1, 2, 4, 8)


def main() -> None:
    """Run with Hydra; exit status 2 and one line on stderr for what the user can mend."""
    run_command("capacity", plan_and_write)


def plan_and_write(config: DictConfig) -> None:
    """The job: print the answer; write capacity.csv, capacity.json and capacity.png into the run's folder."""
    values = resolved(config)
    settings = CapacitySettings.from_config(values)
    folder = Path(HydraConfig.get().runtime.output_dir)
    check_free(folder / "capacity.json", overwrite=values["overwrite"])
    target, plan = settings.target, make_plan(values)
    devices = gpu_rows(plan.curve, ModelSpec.from_config(values["model"]), settings)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "capacity.csv").open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows(curve_rows(plan))
    found = {**plan._asdict(), "curve": plan.curve._asdict(), "devices": devices}
    found["checked"] = None if plan.checked is None else plan.checked._asdict()
    found["budget_for_target_bytes"] = plan.curve.budget_for(target * plan.curve.bound)
    found["config"] = plain_json(values)
    (folder / "capacity.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    draw_curve(plan, target).savefig(folder / "capacity.png")
    # Only now: a reader that goes away early, as `head` does, takes no file with it.
    print(as_text(plan, target, devices))
    print(f"wrote {folder}/capacity.csv, .json and .png")


def make_plan(values: Mapping[str, Any]) -> Plan:
    """Estimate the curve of a resolved configuration; with ``capacity.check`` replay all of it too.

    Raises ValueError and OSError naming the setting or the file.
    """
    asked = CapacitySettings.from_config(values)
    settings = ReplaySettings.from_config({**values, "mode": "cache"})
    spec, _, _ = build_parts(settings)

    def make_policies() -> Policies:
        return Policies(build_eviction(**settings.eviction), build_admission(**settings.admission))

    def make_cache(budget_bytes: float, policies: Policies) -> PrefixCache:
        return PrefixCache(
            spec,
            budget_bytes=int(budget_bytes),
            eviction=policies.eviction,
            admission=policies.admission,
            block_size=settings.block_size,
            memory=settings.memory,
            kv_fraction=settings.kv_fraction,
            ttl_seconds=settings.ttl_seconds,
        )

    start = process_time()
    trace = open_trace(**settings.trace)
    sample = sample_trace(trace, spec, asked.group, settings.seed)
    curve = estimate_curve(sample, spec, make_policies, make_cache, asked.budgets)
    seconds = process_time() - start
    checked = None
    if asked.check:
        start, rates = process_time(), []
        for budget in curve.budgets:
            rows = RequestRows(None)
            replay_cache(open_trace(**settings.trace), make_cache(budget, make_policies()), spec, rows)
            rows.close()
            rates.append(rows.totals.token_hit_rate)
        checked = Checked(rates, process_time() - start)
    counts = sample.num_sampled, sample.num_sessions
    return Plan(trace.name, spec.name, curve, sample.rate, *counts, seconds, checked)


def gpu_rows(curve: Curve, spec: ModelSpec, settings: CapacitySettings) -> list[dict[str, Any]]:
    """For each device and number of them: bytes left for the cache, and the hit rate that gives."""
    weights = WeightCounts.of(spec).total * settings.weight_bytes
    rows = []
    for name, memory in settings.gpus.items():
        for count in GPU_COUNTS:
            free = count * memory * (1.0 - settings.reserve) - weights
            rate = curve.rate_at(free) if free >= curve.budgets[0] else None
            rows.append({"gpu": name, "count": count, "free_bytes": free, "token_hit_rate": rate})
    return rows


def curve_rows(plan: Plan) -> list[list[object]]:
    """A header, and a row for each budget."""
    rows: list[list[object]] = [["budget_gb", "token_hit_rate", "of_bound", "full_replay"]]
    for place, (budget, rate) in enumerate(zip(plan.curve.budgets, plan.curve.rates, strict=True)):
        full = "" if plan.checked is None else plan.checked.rates[place]
        rows.append([budget / 1e9, rate, rate / plan.curve.bound if plan.curve.bound else 0.0, full])
    return rows


def as_text(plan: Plan, target: float, devices: Sequence[Mapping[str, Any]]) -> str:
    """For a terminal."""
    curve, checked = plan.curve, plan.checked
    lines = [
        f"{plan.trace}, {plan.model}: {plan.num_sampled:,} of {plan.num_sessions:,} sessions "
        f"({100 * plan.rate:.1f}% of the tokens) replayed in {plan.seconds:.1f} s",
        f"an infinite cache hits {100 * curve.bound:.1f}% of them and holds {curve.stored / 1e9:,.4g} GB",
        "",
        "budget GB   hit %   of the bound %" + ("   full replay %   error" if checked else ""),
    ]
    for budget, rate, of_bound, full in curve_rows(plan)[1:]:
        assert isinstance(budget, float) and isinstance(rate, float) and isinstance(of_bound, float)
        line = f"{budget:9,.4g} {100 * rate:7.1f} {100 * of_bound:16.1f}"
        if isinstance(full, float):
            line += f"{100 * full:16.1f} {100 * (rate - full):+7.1f}"
        lines.append(line)
    if checked is not None:
        worst = max(abs(a - b) for a, b in zip(curve.rates, checked.rates, strict=True))
        lines.append(
            f"largest error {100 * worst:.1f} points; full replays took {checked.seconds:.1f} s, "
            f"the estimate {100 * plan.seconds / max(checked.seconds, 1e-9):.0f}% of that"
        )
    lines += ["", _answer(curve, target), ""]
    lines.append("free for the cache, GB, and hit %, with so many of a device:")
    lines.append("            " + "".join(f"{count:>16}" for count in GPU_COUNTS))
    for name in dict.fromkeys(row["gpu"] for row in devices):
        cells = [_device_cell(row) for row in devices if row["gpu"] == name]
        lines.append(f"{name:<12}" + "".join(f"{cell:>16}" for cell in cells))
    return "\n".join(lines)


def _answer(curve: Curve, target: float) -> str:
    """How much the target takes, as far as the budgets that were tried tell."""
    if not curve.bound:
        return "nothing in this trace is used again: no budget gives a hit"
    needed = curve.budget_for(target * curve.bound)
    if needed is None:
        amount = f"more than the largest budget here, and at most {curve.stored / 1e9:,.4g} GB"
    elif needed == curve.budgets[0]:
        amount = f"at most {needed / 1e9:,.4g} GB, the smallest budget here"
    else:
        amount = f"{needed / 1e9:,.4g} GB"
    return f"{100 * target:g}% of the bound ({100 * target * curve.bound:.1f}% hits) takes {amount}"


def _device_cell(row: Mapping[str, Any]) -> str:
    if row["free_bytes"] <= 0:
        return "too small"
    rate = "-" if row["token_hit_rate"] is None else f"{100 * row['token_hit_rate']:.1f}"
    return f"{row['free_bytes'] / 1e9:,.0f}: {rate}"


if __name__ == "__main__":
    main()
