"""What several test files need."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra

from hybridcache.experiments.run import replay, resolved

Values = dict[str, Any]
SMALL = ("trace=chat", "trace.limit=120", "budget_gb=1")


@pytest.fixture
def values() -> Iterator[Callable[..., Values]]:
    """Calling it with overrides gives a small replay's resolved configuration."""
    GlobalHydra.instance().clear()
    with initialize_config_module("hybridcache.conf", version_base="1.3"):
        yield lambda *overrides: resolved(compose("replay", [*SMALL, *overrides]))


@pytest.fixture
def small_replay(values: Callable[..., Values], tmp_path: Path) -> Callable[..., Values]:
    """Calling it with overrides runs a small replay in a folder of its own and gives the stored summary."""
    count = 0

    def run(*overrides: str) -> Values:
        nonlocal count
        count += 1
        folder = tmp_path / f"run{count}"
        replay(values(*overrides), folder)
        summary: Values = json.loads((folder / "summary.json").read_text())
        return summary

    return run
