"""One comparison: the policies on one trace, model and admission, at one or more budgets."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from hybridcache.experiments.bounds import Bounds
from hybridcache.experiments.engine_settings import ENGINE_KEYS
from hybridcache.experiments.replay_settings import DEFAULT_STEP_TOKENS
from hybridcache.experiments.run_record import RunRecord

TRACE_KEYS = tuple(f"trace.{key}" for key in ("path", "limit", "stitch", "every_kth_session", "min_blocks"))
"""Settings of the trace that tables repeat; those of a generator are in the summaries."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy at one budget: its runs, which differ in nothing but the seed."""

    policy: str
    budget_gb: float  # 1e9 bytes
    runs: tuple[RunRecord, ...]

    def mean(self, key: str) -> float:
        """The mean over the seeds of a number in the summaries; ``a.b`` is the b of a."""
        return fmean(run.number(key) for run in self.runs)

    def range(self, key: str) -> tuple[float, float]:
        """The smallest and the largest of it."""
        values = [float(run.summary[key]) for run in self.runs]
        return min(values), max(values)


@dataclass(frozen=True, slots=True)
class Panel:
    """Cells that may be compared, and what an infinite cache reaches (None: unknown)."""

    title: str
    setting: str  # trace, model, admission, block size and memory in words
    cells: tuple[Cell, ...]  # by budget, then policy
    bounds: Bounds | None
    lower_bound: bool  # the trace lacks outputs: all reuse measured on it is a lower bound

    @property
    def budgets(self) -> list[float]:
        """All budgets, ascending, in 1e9 bytes."""
        return sorted({cell.budget_gb for cell in self.cells})

    @property
    def timed(self) -> bool:
        """Whether time passed in the replays."""
        return all(run.timed for cell in self.cells for run in cell.runs)

    @property
    def policies(self) -> list[str]:
        """All policies, by name."""
        return sorted({cell.policy for cell in self.cells})

    def cell(self, policy: str, budget_gb: float) -> Cell | None:
        """The cell of a policy at a budget, if it was run."""
        return next((c for c in self.cells if c.policy == policy and c.budget_gb == budget_gb), None)


def group_runs(runs: Iterable[RunRecord]) -> tuple[list[list[Cell]], list[str]]:
    """Cells of each comparison, and warnings about runs of one configuration that disagree."""
    latest: dict[str, dict[tuple[str, float, int], RunRecord]] = defaultdict(dict)
    warnings: list[str] = []
    for run in sorted(runs, key=lambda run: (run.written, str(run.folder))):
        panel = latest[run.panel_key]
        key = (run.policy, run.budget_gb, int(run.summary["seed"]))
        before = panel.get(key)
        if before is not None and before.summary["hit_tokens"] != run.summary["hit_tokens"]:
            both = f"{before.folder} and {run.folder}"
            warnings.append(f"{both}: the same configuration, different results; using the latter")
        panel[key] = run
    comparisons = []
    for _, panel in sorted(latest.items()):
        cells: dict[tuple[float, str], list[RunRecord]] = defaultdict(list)
        for (policy, budget_gb, _), run in sorted(panel.items()):
            cells[budget_gb, policy].append(run)
        comparisons.append([Cell(policy, gb, tuple(same)) for (gb, policy), same in sorted(cells.items())])
    return comparisons, warnings


def describe(cells: Sequence[Cell], others: Sequence[Sequence[Cell]]) -> tuple[str, str]:
    """A short title, and the whole setting, of a comparison among ``others``.

    The title names trace, model and admission, and whatever else tells it from another of the same title.
    """
    title, rest = _words(cells)
    twins = [_words(other)[1] for other in others if other is not cells and _words(other)[0] == title]
    telling = [
        f"{key}={value}" for key, value in rest.items() if any(twin.get(key) != value for twin in twins)
    ]
    short = ", ".join([title, *telling])
    shown = [
        f"{key}={value}" for key, value in rest.items() if not key.startswith("trace.") or key in TRACE_KEYS
    ]
    return short, ", ".join([title, *shown])


def _words(cells: Sequence[Cell]) -> tuple[str, dict[str, str]]:
    run = cells[0].runs[0]
    config = run.config
    plain = {"every_kth_session": 1, "stitch": False}  # nothing thinned, nothing inferred
    rest = {
        f"trace.{key}": str(value)
        for key, value in config["trace"].items()
        if value is not None and key not in ("kind", "seed") and plain.get(key) != value
    }
    rest |= {key: str(config[key]) for key in ("block_size", "memory", "ttl_seconds", "mode")}
    rest["max_num_batched_tokens"] = str(config.get("max_num_batched_tokens", DEFAULT_STEP_TOKENS))
    if run.timed:
        rest |= {key: str(config[key]) for key in ENGINE_KEYS if key != "hardware"}
    if config["mode"] == "engine":  # mode=worker has the device it runs on
        rest["hardware"] = config["hardware"]["name"]
    if config["memory"] == "split":
        rest["kv_fraction"] = str(config["kv_fraction"])
    return f"{run.summary['trace']}, {config['model']['name']}, admission {run.admission}", rest
