"""Sweeps by Hydra's launchers: here, as submitit's jobs, on Slurm, on Ray."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher

PLUGINS = {"submitit": "hydra_submitit_launcher", "ray": "hydra_ray_launcher"}


def needs(plugin: str) -> None:
    pytest.importorskip(
        f"hydra_plugins.{PLUGINS[plugin]}", reason=f"install hybridcache[{plugin}] to run this test"
    )


@pytest.mark.parametrize(
    ("launcher", "more", "made"),
    [
        ("basic", (), "BasicLauncher"),
        ("joblib", ("hydra.launcher.n_jobs=2",), "JoblibLauncher"),
        ("submitit_local", (), "LocalLauncher"),
        (
            "submitit_slurm",
            ("hydra.launcher.partition=cpu", "hydra.launcher.timeout_min=30"),
            "SlurmLauncher",
        ),
        ("ray", ("hydra.launcher.ray.init.address=auto",), "RayLauncher"),
    ],
)
def test_a_launcher_is_one_setting(launcher: str, more: tuple[str, ...], made: str) -> None:
    plugin = launcher.partition("_")[0]
    if plugin in PLUGINS:
        needs(plugin)
    assert any(found.__name__ == made for found in Plugins.instance().discover(Launcher))
    GlobalHydra.instance().clear()
    with initialize_config_module("hybridcache.conf", version_base="1.3"):
        config = compose("replay", [f"hydra/launcher={launcher}", *more], return_hydra_config=True)
    assert config.hydra.launcher._target_.endswith(f".{made}")
    for setting in more:
        key, _, value = setting.removeprefix("hydra.launcher.").partition("=")
        node = config.hydra.launcher
        for name in key.split("."):
            node = node[name]
        assert str(node) == value


@pytest.mark.full
@pytest.mark.parametrize("launcher", ["submitit_local", "ray"])
def test_two_runs_by_a_launcher(launcher: str, tmp_path: Path) -> None:
    needs(launcher.partition("_")[0])
    here = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-m", "hybridcache.experiments.replay", "-m", f"hydra/launcher={launcher}"]
    settings = ["trace.limit=40", "budget_gb=1,2", "hydra.sweep.dir=sweep"]
    done = subprocess.run(
        [*command, *settings],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(here)}, timeout=300,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    summaries = [json.loads((tmp_path / "sweep" / str(run) / "summary.json").read_text()) for run in range(2)]
    assert [summary["config"]["budget_gb"] for summary in summaries] == [1, 2]
    assert summaries[1]["hit_tokens"] >= summaries[0]["hit_tokens"] > 0
