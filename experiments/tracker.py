"""Reports a run's progress: a bar on a terminal, and Weights & Biases when asked for."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from hybridcache.experiments.replay_totals import ReplayTotals

LOG_EVERY_REQUESTS = 1_024


def log_figure(settings: Mapping[str, Any], name: str, picture: Path, table: Path, folder: Path) -> None:
    """A figure and the table behind it as a wandb run of their own; nothing when wandb is disabled."""
    if settings["mode"] == "disabled":
        return
    import csv

    import wandb

    with table.open(newline="", encoding="utf-8") as lines:
        header, *rows = csv.reader(lines)
    columns: list[str | int] = list(header)
    run = wandb.init(
        mode=settings["mode"],
        project=settings["project"],
        group=settings["group"],
        job_type="figure",
        name=name,
        dir=folder,
        reinit="create_new",
        settings=wandb.Settings(silent=True, console="off"),
    )
    run.log({f"{name}/figure": wandb.Image(str(picture)), f"{name}/table": wandb.Table(columns, rows)})
    run.finish()


class Tracker:
    """Shows totals while they grow.

    Args:
        num_requests: of the whole trace.
        name: what the bar is called.
        bar: whether a bar may be drawn; it is drawn on a terminal only.
        wandb_settings: ``mode`` (disabled, offline, online), ``project``, ``group``. Nothing of wandb is
            imported when disabled.
        config: the resolved configuration, for wandb.
        folder: where wandb keeps its files.
    """

    def __init__(
        self,
        num_requests: int,
        name: str,
        *,
        bar: bool,
        wandb_settings: Mapping[str, Any],
        config: Mapping[str, Any],
        folder: Path,
    ) -> None:
        self._bar = tqdm(
            total=num_requests,
            desc=name,
            unit=" requests",
            disable=not (bar and sys.stderr.isatty()),
            leave=False,
        )
        self._logged = 0
        self._run: Any = None  # wandb is untyped in part
        if wandb_settings["mode"] != "disabled":
            import wandb

            self._run = wandb.init(
                mode=wandb_settings["mode"],
                project=wandb_settings["project"],
                group=wandb_settings["group"],
                config=dict(config),
                dir=folder,
                reinit="create_new",
                settings=wandb.Settings(silent=True, console="off"),
            )

    def update(self, totals: ReplayTotals) -> None:
        """Show the totals after some more requests."""
        self._bar.update(totals.requests - self._bar.n)
        if self._run is not None and totals.requests - self._logged >= LOG_EVERY_REQUESTS:
            self._log(totals)

    def finish(self, totals: ReplayTotals, summary: Mapping[str, Any]) -> None:
        """Record the result."""
        if self._run is not None:
            if totals.requests > self._logged:
                self._log(totals)
            self._run.summary.update({key: value for key, value in summary.items() if key != "config"})

    def close(self, *, failed: bool = False) -> None:
        """End the bar and the wandb run."""
        self._bar.close()
        if self._run is not None:
            self._run.finish(exit_code=int(failed))

    def _log(self, totals: ReplayTotals) -> None:
        self._logged = totals.requests
        self._run.log(
            {
                "token_hit_rate": totals.token_hit_rate,
                "request_hit_rate": totals.request_hit_rate,
                "flops_saved_ratio": totals.flops_saved_ratio,
            },
            step=totals.requests,
        )
