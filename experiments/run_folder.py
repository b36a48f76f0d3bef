"""The folder that one run writes its results to, and nobody else."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hybridcache.experiments.code_version import code_version
from hybridcache.experiments.run_claim import RunClaim
from hybridcache.experiments.setting import flag

SUMMARY = "summary.json"
ROWS = "requests.parquet"
TIMELINE = "timeline.parquet"
CONFIG = "config.json"
CLAIM = "running"
LOG = "replay.log"
"""Hydra's, by the job's name in conf/replay.yaml."""


def check_free(path: Path, *, overwrite: object) -> None:
    """Raises ValueError when the results file ``path`` is there already and ``overwrite`` is not true."""
    if not flag("overwrite", overwrite) and path.exists():
        raise ValueError(
            f"{path} is there already; choose another hydra.run.dir, or set overwrite=true to replace it"
        )


def holds_run(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether ``folder`` has the whole results of a run of ``config`` (JSON-ready) by this code.

    False where that cannot be told: uncommitted changes, a trace file that is newer, a real model.
    """
    if config["overwrite"] is not False or config["mode"] == "worker":
        return False
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        path = config["trace"].get("path")
        if path is not None and Path(path).stat().st_mtime > (folder / SUMMARY).stat().st_mtime:
            return False
    except (OSError, ValueError):
        return False
    version = code_version()
    same = summary.get("config") == config and summary.get("code_version") == version._asdict()
    return bool(same and not version.modified)


class RunFolder:
    """A claimed run folder; leaving the ``with`` block ends the claim, and so does the end of the process.

    Raises:
        ValueError: on entering, when the folder holds results and ``overwrite`` is False, or when another run
            has claimed it.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self.path = path
        self._overwrite = overwrite
        self._claim = RunClaim(path / CLAIM)

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True)
        if not self._claim.take():
            raise ValueError(
                f"{self.path} is in use by another run; choose another hydra.run.dir "
                f"(or remove {self.path / CLAIM} if that run was killed on another machine)"
            )
        if (self.path / SUMMARY).exists() and not self._overwrite:
            self._claim.end()
            raise ValueError(
                f"{self.path} already holds the results of a run; choose another hydra.run.dir, "
                "or set overwrite=true to replace them"
            )
        for name in (SUMMARY, ROWS, TIMELINE, CONFIG):
            (self.path / name).unlink(missing_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._claim.end()

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a JSON file that is either whole or absent."""
        draft = self.path / f".{name}.draft"
        draft.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        draft.replace(self.path / name)
