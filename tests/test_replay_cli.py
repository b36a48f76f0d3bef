"""The command line of a replay: folders, sweeps, and what it says when something is wrong."""

import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridcache.experiments import replay as command
from hybridcache.experiments.code_version import CodeVersion
from hybridcache.experiments.command import THREAD_LIMITS
from hybridcache.experiments.replay_settings import ReplaySettings
from hybridcache.experiments.run_claim import RunClaim
from hybridcache.experiments.run_folder import CLAIM, RunFolder, holds_run

Values = dict[str, Any]
SMALL = ("trace.limit=40", "budget_gb=1", "hydra/job_logging=disabled")


def run_here(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of the command, run in this process."""
    for name in (*THREAD_LIMITS, "HYDRA_FULL_ERROR"):
        monkeypatch.setenv(name, "")  # the command sets them; the test puts them back
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "argv", ["replay", *SMALL, *arguments])
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    try:
        command.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_command_leaves_its_process_as_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = warnings.formatwarning
    assert run_here(monkeypatch, "budget_gb=-1") == 2
    assert "budget_gb" in capsys.readouterr().err
    assert not {*THREAD_LIMITS, "HYDRA_FULL_ERROR"} & os.environ.keys()
    assert warnings.formatwarning is before


def run_process(folder: Path, *arguments: str, flags: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    here = Path(__file__).resolve().parents[1]
    return subprocess.Popen(
        [sys.executable, "-m", "hybridcache.experiments.replay", *flags, *SMALL[:-1], *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(here)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["mode=worker", "budget_gb=inf"], "budget_gb=inf: mode=worker holds real memory"),
        (["mode=worker", "worker.model=7"], "worker.model=7: give a preset or a folder"),
        (["mode=worker", "worker.model=no/such"], "neither a folder nor a preset"),
        (["mode=engine", "max_running=0"], "max_running=0: give a whole number, 1 or more"),
        (["mode=engine", "max_num_batched_tokens=8"], "max_num_batched_tokens=8 is below max_running=256"),
        (["mode=engine", "order=random"], "order=random is unknown; choose one of fcfs, longest_hit"),
        (["mode=engine", "speed=0"], "speed=0.0: give a positive number"),
        (["mode=engine", "max_wait_seconds=-1"], "max_wait_seconds=-1.0: give seconds"),
        (["mode=engine", "hardware.dtype=int4"], "int4"),
        (["trace=npz", "trace.path=käse.npz"], """quotes of its own, 'trace.path="käse.npz"'"""),
        (["trace=npz", 'trace.path="käse (1), é.npz"'], "käse (1), é.npz"),
        (["hardware=abacus"], "Could not find 'hardware/abacus'"),
        (["mode=turbo"], "mode=turbo is unknown; choose one of cache, engine, worker"),
        (["memory=shared"], "memory=shared is unknown; choose one of unified, split"),
        (["budget_gb=0"], "budget_gb=0.0: give a positive number"),
        (["budget_gb=much"], "budget_gb=much is not a number"),
        (["block_size=0"], "block_size=0: give a whole number, 1 or more"),
        (["kv_fraction=1.5"], "kv_fraction=1.5"),
        (["ttl_seconds=-1"], "ttl_seconds=-1.0"),
        (["wandb.mode=maybe"], "wandb.mode=maybe is unknown; choose one of disabled, offline, online"),
        (["eviction=fifo"], "Could not find 'eviction/fifo' Available options in 'eviction': age_density"),
        (
            ["eviction=lru", "eviction.alpha=1"],
            "eviction.alpha: no setting of the eviction chosen here; it belongs to eviction=marconi, marconi",
        ),
        (["overwrite=maybe"], "overwrite=maybe: give true or false"),
        (["eviction=marconi", "eviction.alpha=-1"], "alpha"),
        (["admission=every_n", "admission.n=0"], "admission.n"),
        (["trace=npz"], "trace.path"),
        (["trace=npz", "trace.path=no/such/file.npz"], "no/such/file.npz"),
        (["trace=npz", "trace.path=."], "directory"),
        (["trace.turns=0"], "turns"),
        (["no_such_key=1"], "no_such_key: no such setting; README.md lists them"),
        (["evicton=lru"], "evicton: no such setting; did you mean eviction"),
        (["admision=grid"], "admision: no such setting; did you mean admission"),
        (["capacity.group=3"], "capacity.group: a setting of python -m hybridcache.experiments.capacity"),
        (["experiment=lost"], "experiment: an experiment is added: +experiment=NAME"),
        (["worker={modle: tiny}"], "worker: the value names a setting that is not in it; +worker.NAME=VALUE"),
        (["trace.limt=3"], "trace.limt: no such setting; did you mean trace.limit"),
        (["trace=npz", "trace.think_seconds=3"], "trace.think_seconds: no setting of the trace chosen here"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_runs(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_here(monkeypatch, *arguments) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert says in errors[0]
    assert not list(tmp_path.rglob("summary.json"))
    assert not list(tmp_path.rglob("requests.parquet"))


def test_ignored_settings_are_named(values: Callable[..., Values]) -> None:
    with pytest.warns(UserWarning, match=r"kv_fraction=0.25 is ignored: it needs memory=split"):
        ReplaySettings.from_config(values("kv_fraction=0.25"))


def test_an_added_setting_that_nobody_reads_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match="budget is ignored: no such setting; did you mean budget_gb"):
        assert run_here(monkeypatch, "+budget=2") == 0
    with pytest.warns(
        UserWarning, match=r"wandb\.grup is ignored: no such setting; did you mean wandb\.group"
    ):
        assert run_here(monkeypatch, "+wandb.grup=mine") == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run_here(monkeypatch, "+experiment=lost", "trace=chat", "eviction=lru") == 0


def test_relative_trace_path_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(
        tmp_path / "mine.npz",
        format=np.array("hybridcache-trace-1"),
        tokens=np.arange(60, dtype=np.uint32),
        segment_offsets=np.array([0, 50, 60]),
        arrival=np.array([0.0]),
        session=np.array([0]),
        turn=np.array([0]),
        input_offsets=np.array([0, 1]),
        input_segments=np.array([0]),
        output_segment=np.array([1]),
    )
    monkeypatch.chdir(tmp_path)
    assert run_here(monkeypatch, "trace=npz", "trace.path=mine.npz", "hydra.run.dir=elsewhere") == 0
    summary = json.loads((tmp_path / "elsewhere" / "summary.json").read_text())
    assert summary["input_tokens"] == 50
    assert summary["config"]["trace"]["path"] == str(tmp_path / "mine.npz")


def test_a_folder_with_results_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_here(monkeypatch, "hydra.run.dir=fixed") == 0
    before = (tmp_path / "fixed" / "summary.json").read_text()
    assert run_here(monkeypatch, "hydra.run.dir=fixed", "budget_gb=2") == 2
    assert "already holds the results of a run" in capsys.readouterr().err
    assert (tmp_path / "fixed" / "summary.json").read_text() == before
    assert run_here(monkeypatch, "hydra.run.dir=fixed", "budget_gb=2", "overwrite=true") == 0
    assert json.loads((tmp_path / "fixed" / "summary.json").read_text())["budget_bytes"] == 2 * 10**9
    assert not (tmp_path / "fixed" / CLAIM).exists()


def test_a_sweep_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sweep() -> int:
        given = ("hydra.mode=MULTIRUN", "hydra/launcher=basic", "hydra.sweep.dir=s", "trace.limit=9")
        return run_here(monkeypatch, *given, "eviction=lru,gdsf")

    def written() -> list[int]:
        return [(tmp_path / "s" / name / "summary.json").stat().st_mtime_ns for name in "01"]

    monkeypatch.chdir(tmp_path)
    code = [CodeVersion("1", "c" * 40, False)]
    for module in ("run", "run_folder"):
        monkeypatch.setattr(f"hybridcache.experiments.{module}.code_version", lambda: code[-1])
    first_folder, second_folder = (tmp_path / "s" / name for name in "01")
    assert sweep() == 0
    first = written()
    # As if the second had been killed.
    (second_folder / "summary.json").unlink()
    with RunFolder(tmp_path / "other"):
        (second_folder / CLAIM).write_bytes((tmp_path / "other" / CLAIM).read_bytes())
    assert sweep() == 0
    assert written()[0] == first[0] and written()[1] > first[1]
    # Another setting, other code, or code that nobody can name again: that is another run.
    config = json.loads((first_folder / "summary.json").read_text())["config"]
    assert holds_run(first_folder, config)
    assert not holds_run(first_folder, config | {"block_size": 32})
    for other in (CodeVersion("1", "d" * 40, False), CodeVersion("1", "c" * 40, True)):
        code.append(other)
        assert not holds_run(first_folder, config)
        with pytest.raises(ValueError, match="already holds the results of a run"), RunFolder(first_folder):
            pass
    assert written()[0] == first[0]


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with RunFolder(tmp_path), pytest.raises(ValueError, match="in use by another run"), RunFolder(tmp_path):
        pass
    with RunFolder(tmp_path):
        pass
    assert not (tmp_path / CLAIM).exists()


def test_a_folder_is_free_once_its_run_was_killed(tmp_path: Path) -> None:
    script = f"""
import pathlib, time
from hybridcache.experiments.run_folder import RunFolder
with RunFolder(pathlib.Path({str(tmp_path)!r})) as folder:
    folder.write_json("config.json", {{}})
    print("claimed", flush=True)
    time.sleep(1_000)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        try:
            assert owner.stdout.readline() == "claimed\n"
            for signal_ in (signal.SIGSTOP, signal.SIGCONT):
                os.kill(owner.pid, signal_)
                with pytest.raises(ValueError, match="in use by another run"), RunFolder(tmp_path):
                    pass
            assert (tmp_path / "config.json").exists() and (tmp_path / CLAIM).exists()
        finally:
            owner.kill()
    assert (tmp_path / CLAIM).exists()
    with RunFolder(tmp_path) as folder:
        assert not (tmp_path / "config.json").exists()
        with pytest.raises(ValueError, match="in use by another run"), RunFolder(tmp_path):
            pass
        folder.write_json("summary.json", {})
    assert not (tmp_path / CLAIM).exists()


@pytest.mark.parametrize("claimed", [b"", b"another machine\n"])
def test_what_cannot_be_told_to_be_dead_is_left(tmp_path: Path, claimed: bytes) -> None:
    """The run may live on another machine, or on a file system without locks."""
    (tmp_path / CLAIM).write_bytes(claimed)
    with pytest.raises(ValueError, match=f"remove .*{CLAIM} if that run was killed"), RunFolder(tmp_path):
        pass
    assert (tmp_path / CLAIM).read_bytes() == claimed


def test_one_of_many_takes_a_dead_runs_folder(tmp_path: Path) -> None:
    with RunFolder(tmp_path):
        mark = (tmp_path / CLAIM).read_bytes()
    for _ in range(20):
        (tmp_path / CLAIM).write_bytes(mark)
        claims = [RunClaim(tmp_path / CLAIM) for _ in range(8)]
        with ThreadPoolExecutor(8) as pool:
            taken = list(pool.map(RunClaim.take, claims))
        assert sum(taken) == 1
        claims[taken.index(True)].end()


def test_a_failed_replay_leaves_no_results(
    tmp_path: Path, values: Callable[..., Values], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hybridcache.experiments import run

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("disk full")

    monkeypatch.setattr(run, "replay_cache", fail)
    with pytest.raises(RuntimeError, match="disk full"):
        run.replay(values(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_sweep_gives_each_run_its_own_folder(tmp_path: Path) -> None:
    sweep = run_process(
        tmp_path, "eviction=lru,marconi", "budget_gb=0.6,1", "hydra.launcher.n_jobs=2", flags=("-m",)
    )
    said, _ = sweep.communicate(timeout=120)
    assert sweep.returncode == 0, said
    summaries = [json.loads(path.read_text()) for path in tmp_path.rglob("summary.json")]
    found = {(s["config"]["eviction"]["name"], s["config"]["budget_gb"]) for s in summaries}
    assert found == {("lru", 0.6), ("lru", 1), ("marconi", 0.6), ("marconi", 1)}
    assert all(s["code_version"]["package"] and s["seed"] == 0 for s in summaries)
    assert all(s["budget_bytes"] == round(1e9 * s["config"]["budget_gb"]) for s in summaries)


@pytest.mark.full
def test_runs_at_the_same_time_never_share_a_folder(tmp_path: Path) -> None:
    runs = [run_process(tmp_path) for _ in range(8)]
    said = [run.communicate(timeout=300)[0] for run in runs]
    assert [run.returncode for run in runs] == [0] * 8, said
    assert len(list(tmp_path.rglob("summary.json"))) == 8
    fixed = [run_process(tmp_path, "hydra.run.dir=fixed") for _ in range(8)]
    said = [run.communicate(timeout=300)[0] for run in fixed]
    assert sorted(run.returncode for run in fixed) == [0] + [2] * 7, said
    assert all("error: " in text for run, text in zip(fixed, said, strict=True) if run.returncode)
    assert len(list((tmp_path / "fixed").glob("summary.json"))) == 1
