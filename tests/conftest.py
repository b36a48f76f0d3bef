"""What several test files need."""

import json
import logging
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Triton reads it when it is imported: without a GPU its kernels run in the interpreter.
os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra

from hybridcache.experiments.run import replay, resolved

if TYPE_CHECKING:
    from hybridcache.models.load import LoadedModel

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


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Calling it with a family gives its tiny checkpoint, written once."""
    from hybridcache.models.presets import write_checkpoint

    return cache(lambda family: write_checkpoint(family, tmp_path_factory.mktemp(family), seed=1))


@pytest.fixture(scope="session")
def loaded(checkpoint: Callable[[str], Path]) -> "Callable[..., LoadedModel]":
    """Calling it with a family and a backend (default: cpu) gives the family's tiny model, loaded once."""
    from hybridcache.kernels.dispatch import build_ops
    from hybridcache.models.load import load_model

    return cache(lambda family, backend="cpu": load_model(checkpoint(family), ops=build_ops(backend)))


@pytest.fixture(scope="session")
def oracle(checkpoint: Callable[[str], Path]) -> Callable[[str], Any]:
    """Calling it with a family gives the tiny model as transformers' class, loaded once."""
    from transformers import AutoModelForCausalLM

    return cache(lambda family: AutoModelForCausalLM.from_pretrained(checkpoint(family)).eval())


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A command that runs in this process configures logging: levels, and loggers that it silences."""
    level = logging.root.level
    yield
    logging.root.setLevel(level)
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("hybridcache") and isinstance(logger, logging.Logger):
            logger.disabled = False
