"""A policy class of one's own, named by its import path."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hybridcache.experiments.run import replay
from hybridcache.policies.build import build_admission, build_eviction

OWN = """
import numpy as np
from hybridcache.policies.admission import AdmissionPolicy
from hybridcache.policies.eviction import EvictionPolicy

class Newest(EvictionPolicy):
    name = "newest"
    def __init__(self, sign=-1.0):
        self.sign = sign
    def score(self, columns, now):
        return self.sign * columns.accessed

class Nothing(AdmissionPolicy):
    name = "nothing"
    final = False

class Nameless(Newest):
    pass

class Broken(EvictionPolicy):
    name = "broken"
    def score(self, columns, now):
        return columns.no_such_column

class Late(EvictionPolicy):
    name = "late"
    def score(self, columns, now):
        return columns.accessed if now < 20 else columns.accessed * np.nan

class LateAdmission(AdmissionPolicy):
    name = "late_admission"
    def plan(self, prompt):
        raise RuntimeError("no plan")

number = 7
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with the classes above, which can be imported."""
    (tmp_path / "own_policies_of_a_test.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_policies_of_a_test", raising=False)
    return "own_policies_of_a_test"


def test_a_class_is_found_by_its_import_path(module: str) -> None:
    policy = build_eviction(f"{module}:Newest", sign=2.0)
    assert (policy.name, getattr(policy, "sign")) == ("newest", 2.0)  # noqa: B009
    assert build_admission(f"{module}:Nothing").final is False
    packaged = build_eviction("hybridcache.policies.age_density:AgeDensity", tau_seconds=7.0)
    assert packaged.name == "age_density"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_module:Policy", "cannot be imported .*no_such_module.* installed or on PYTHONPATH"),
        ("{}:Policy", "cannot be imported .*Policy"),
        (":Policy", "cannot be imported"),
        ("{}:", "cannot be imported"),
        ("{}:number", "is no subclass of hybridcache.policies.eviction.EvictionPolicy"),
        ("{}:Nothing", "is no subclass of hybridcache.policies.eviction.EvictionPolicy"),
        ("{}:Nameless", "has no name of its own"),
        ("nameless", "is unknown; choose one of age_density.*, or a class, module:Class"),
    ],
)
def test_what_is_no_policy_is_told(module: str, name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        build_eviction(name.format(module))


@pytest.mark.parametrize("text", ["def f(:", "import no_such_module", "1 / 0"])
def test_a_module_that_cannot_be_imported_is_told(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no_module_of_a_test.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=r"cannot be imported \((Syntax|ModuleNotFound|ZeroDivision)Error: "):
        build_eviction("no_module_of_a_test:Policy")


@pytest.mark.parametrize("mode", ["cache", "engine"])
@pytest.mark.parametrize("setting", ["eviction.name={}:Late", "admission.name={}:LateAdmission"])
def test_a_policy_that_fails_on_the_way_ends_the_replay(
    module: str, mode: str, setting: str, values: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """Its figures would be those of the policy that stands in for it."""
    with pytest.raises(ValueError, match=r"policy 'late.* failed .traceback above.: .* mend it"):
        replay(values(setting.format(module), f"mode={mode}", "budget_gb=0.6"), tmp_path / "run")
    assert not (tmp_path / "run" / "summary.json").exists()


def test_settings_that_a_class_does_not_take_are_told(module: str) -> None:
    with pytest.raises(ValueError, match=r"does not take these settings: \{'alpha': 1\.0\}"):
        build_eviction(f"{module}:Newest", alpha=1.0)


def replays(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    here = Path(__file__).resolve().parents[1]
    return subprocess.run(
        [sys.executable, "-m", "hybridcache.experiments.replay", *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(here)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_sweep_runs_the_policies_of_the_folder_it_is_started_in(tmp_path: Path) -> None:
    readme = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
    _, _, rest = readme.partition("Save this as `my_policies.py`:\n\n```python\n")
    (tmp_path / "my_policies.py").write_text(rest.partition("```")[0])
    (tmp_path / "mine.py").write_text(OWN)
    names = ["mine:Newest", "my_policies:FrequentValue"]
    arguments = ("-m", f"eviction.name={','.join(names)}", "trace.limit=120", "budget_gb=1")
    done = replays(tmp_path, *arguments, "hydra.sweep.dir=s")
    assert done.returncode == 0, done.stderr
    found = [json.loads((tmp_path / "s" / str(run) / "summary.json").read_text()) for run in range(2)]
    assert [run["config"]["eviction"]["name"] for run in found] == names
    assert found[1]["hit_tokens"] > found[0]["hit_tokens"] > 0  # whose newest goes first


def test_a_policy_that_cannot_score_stops_the_command(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    done = replays(tmp_path, "eviction.name=mine:Broken", "trace.limit=20")
    assert done.returncode == 2
    assert "error: eviction policy 'broken' cannot score new nodes" in done.stderr
    assert "no_such_column" in done.stderr
