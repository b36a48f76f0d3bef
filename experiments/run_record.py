"""A finished run as reports see it, and how they are found."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridcache.experiments.engine_settings import ENGINE_KEYS
from hybridcache.experiments.replay_settings import DEFAULT_STEP_TOKENS
from hybridcache.experiments.run_folder import CLAIM, CONFIG, LOG, SUMMARY
from hybridcache.experiments.summary import SCHEMA

_NEEDED = {
    "config", "seed", "trace", "outputs_in_trace", "requests_refused", "input_tokens", "hit_tokens",
    "lost_tokens", "token_hit_rate", "flops_saved_ratio",
}  # fmt: skip
"""Keys of a summary without which a run cannot be compared."""

_UNFINISHED = {
    CLAIM: "is still running, or was killed",
    CONFIG: "did not finish",
    LOG: "failed before it began",
}
"""What a folder without a summary has, and what that says."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run: its folder, its summary, and when that was written."""

    folder: Path
    summary: Mapping[str, Any]
    written: float  # seconds since the epoch

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved configuration."""
        config: Mapping[str, Any] = self.summary["config"]
        return config

    def number(self, key: str) -> float:
        """A number of the summary; ``a.b`` is the b of a. Raises KeyError where there is none."""
        value: Any = self.summary
        for name in key.split("."):
            value = value[name]
        return float(value)

    @property
    def timed(self) -> bool:
        """Whether time passed: the summary then has seconds, and the engine's settings matter."""
        return bool(self.config["mode"] != "cache")

    @property
    def policy(self) -> str:
        """The eviction policy with its settings, for example ``marconi alpha=1``."""
        settings = self.config["eviction"]
        return " ".join([settings["name"], *(f"{k}={_short(v)}" for k, v in settings.items() if k != "name")])

    @property
    def admission(self) -> str:
        """The admission policy with its settings."""
        settings = self.config["admission"]
        return " ".join([settings["name"], *(f"{k}={_short(v)}" for k, v in settings.items() if k != "name")])

    @property
    def budget_gb(self) -> float:
        """The budget in 1e9 bytes; infinite where nothing is ever evicted."""
        return float(self.config["budget_gb"])

    @property
    def panel_key(self) -> str:
        """Equal for runs that belong in one comparison: all but eviction, budget and seed is the same."""
        shared = ("trace", "model", "admission", "mode", "block_size", "memory", "kv_fraction", "ttl_seconds")
        values = {key: self.config[key] for key in shared}
        # Added later than the first runs.
        values["max_num_batched_tokens"] = self.config.get("max_num_batched_tokens", DEFAULT_STEP_TOKENS)
        if self.timed:
            values |= {key: self.config[key] for key in ENGINE_KEYS}
        values["trace"] = {key: value for key, value in values["trace"].items() if key != "seed"}
        return json.dumps(values, sort_keys=True)


def collect_runs(folders: Iterable[Path]) -> tuple[list[RunRecord], list[str]]:
    """All finished runs in and below ``folders``, and one line for each that cannot be used.

    Raises:
        ValueError: a folder does not exist.
    """
    runs: dict[Path, RunRecord] = {}
    problems: dict[Path, str] = {}
    for top in folders:
        if not top.is_dir():
            raise ValueError(f"{top} is not a folder; name run folders or folders that hold some")
        for path in sorted(top.rglob(SUMMARY)):
            folder = path.parent.resolve()
            try:
                summary = json.loads(path.read_text(encoding="utf-8"))
                found = summary.get("schema") if isinstance(summary, dict) else None
                if found != SCHEMA:
                    raise ValueError(f"its schema is {found}, not {SCHEMA}")
                if missing := sorted(_NEEDED - summary.keys()):
                    raise ValueError(f"it has no {', '.join(missing)}: cut short or edited; run it again")
                runs[folder] = RunRecord(folder, summary, path.stat().st_mtime)
            except (OSError, ValueError) as error:
                problems[folder] = f"{path}: left out, cannot be read ({error})"
        for name, what in _UNFINISHED.items():
            for path in sorted(top.rglob(name)):
                folder = path.parent.resolve()
                if folder not in runs and path.is_file():
                    problems.setdefault(folder, f"{path.parent}: left out, the run {what} (no {SUMMARY})")
    return list(runs.values()), list(problems.values())


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
