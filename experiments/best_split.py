"""The best fixed division of a budget: ``python -m hybridcache.experiments.best_split baseline=sglang ...``.

Replays the trace with the KV blocks' part of the budget at each of ``split.fractions``, then between the best
of them and its neighbours. Prints the token hit rates; best_split.csv in the run's folder has them too.
"""

import csv
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from hybridcache.experiments.command import run_command
from hybridcache.experiments.replay_cache import replay_cache
from hybridcache.experiments.replay_settings import ReplaySettings
from hybridcache.experiments.request_rows import RequestRows
from hybridcache.experiments.run import build_parts, resolved
from hybridcache.experiments.run_folder import check_free
from hybridcache.experiments.setting import choice, number, whole


class Split(NamedTuple):
    """What one division of the budget gave."""

    kv_fraction: float
    """The KV blocks' part of the budget."""
    token_hit_rate: float
    flops_saved_ratio: float


def main() -> None:
    """Run with Hydra; exit status 2 and one line on stderr for what the user can mend."""
    run_command("best_split", find_and_print)


def find_and_print(config: DictConfig) -> None:
    """The job: print the table and the best split; write best_split.csv into the run's folder."""
    values = resolved(config)
    folder = Path(HydraConfig.get().runtime.output_dir)
    check_free(folder / "best_split.csv", overwrite=values["overwrite"])
    found = find_best(values)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "best_split.csv").open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(Split._fields)
        writer.writerows(found)
    print(as_text(found))
    print(f"wrote {folder}/best_split.csv")


def find_best(values: Mapping[str, Any]) -> list[Split]:
    """All splits tried for a resolved configuration, by the blocks' part.

    Raises ValueError and OSError naming the setting or the file.
    """
    asked = values["split"]
    choice("memory", values["memory"], ("split",))
    choice("mode", values["mode"], ("cache",))
    halvings = whole("split.halvings", asked["halvings"], 0)
    parts = asked["fractions"] if isinstance(asked["fractions"], list) else [asked["fractions"]]
    to_try = sorted({number("split.fractions", part) for part in parts})
    if not to_try or not all(0.0 < part < 1.0 for part in to_try):
        raise ValueError(f"split.fractions={asked['fractions']}: give parts of the budget between 0 and 1")
    jobs = whole("split.jobs", asked["jobs"], 1)
    # Here, so that a mistake is found before processes are started.
    build_parts(ReplaySettings.from_config({**values, "kv_fraction": to_try[0]}))
    found: list[Split] = []
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for _ in range(halvings + 1):
            found = sorted([*found, *pool.map(replay_split, [values] * len(to_try), to_try)])
            to_try = between_neighbours([split.kv_fraction for split in found], best(found).kv_fraction)
    return found


def replay_split(values: Mapping[str, Any], kv_fraction: float) -> Split:
    """Replay a resolved configuration with this split."""
    settings = ReplaySettings.from_config({**values, "kv_fraction": kv_fraction})
    spec, cache, trace = build_parts(settings)
    rows = RequestRows(None)
    replay_cache(trace, cache, spec, rows, step_tokens=settings.max_num_batched_tokens)
    rows.close()
    cache.check()
    return Split(kv_fraction, rows.totals.token_hit_rate, rows.totals.flops_saved_ratio)


def best(found: Sequence[Split]) -> Split:
    """The split with the highest token hit rate; of equals the one with the smaller part of blocks."""
    return max(found, key=lambda split: split.token_hit_rate)


def between_neighbours(parts: Sequence[float], middle: float) -> list[float]:
    """Half-way from ``middle`` to the next smaller and the next greater one of the ascending ``parts``."""
    place = parts.index(middle)
    beside = [*parts[max(place - 1, 0) : place], *parts[place + 1 : place + 2]]
    return [(part + middle) / 2 for part in beside]


def as_text(found: Sequence[Split]) -> str:
    """For a terminal."""
    first = best(found)
    lines = ["kv_fraction   token hit %   FLOPs saved %"]
    for split in found:
        mark = "  best" if split is first else ""
        lines.append(
            f"{split.kv_fraction:11.4g}{100 * split.token_hit_rate:14.2f}"
            f"{100 * split.flops_saved_ratio:16.2f}{mark}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
