"""Ctrl-C ends a command with one line, whatever it is doing, and the process by the signal: status 130."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PRESSED = "import signal\nsignal.raise_signal(signal.SIGINT)\n"
SCRIPT = ["-c", "import sys; from hybridcache.cli import main; sys.exit(main())"]

pytestmark = pytest.mark.skipif(os.name != "posix", reason="ends by a signal")


def interrupted(folder: Path, *arguments: str) -> list[str]:
    """Lines on stderr of a command that is interrupted."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGINT, done.stderr
    return done.stderr.splitlines()


@pytest.mark.parametrize(
    ("command", "imports"),
    [
        (["-m", "hybridcache.experiments.replay"], "hydra"),
        (["-m", "hybridcache.experiments.figures", "lost"], "matplotlib"),
        (["-m", "hybridcache", "trace", "describe", "chat"], "numpy"),
        ([*SCRIPT, "trace", "describe", "chat"], "numpy"),
        ([*SCRIPT, "serve", "tiny"], "uvicorn"),
    ],
    ids=["replay", "figures", "module", "trace", "serve"],
)
def test_while_it_imports(command: list[str], imports: str, tmp_path: Path) -> None:
    (tmp_path / f"{imports}.py").write_text(PRESSED)
    assert interrupted(tmp_path, *command) == ["interrupted"]


def test_while_it_replays(tmp_path: Path) -> None:
    """The folder holds no results, and can be used again."""
    pressing = "\n        ".join(PRESSED.splitlines())
    (tmp_path / "mine.py").write_text(
        "from hybridcache.policies.eviction import EvictionPolicy\n"
        "class Pressing(EvictionPolicy):\n"
        "    name = 'pressing'\n"
        "    def score(self, columns, now):\n"
        "        if not now: return columns.accessed\n"
        f"        {pressing}\n"
    )
    replay = ("-m", "hybridcache.experiments.replay", "trace.limit=60", "budget_gb=0.3", "hydra.run.dir=run")
    said = interrupted(tmp_path, *replay, "eviction.name=mine:Pressing")
    assert said[-1] == "interrupted" and not any("Traceback" in line for line in said)
    assert not (tmp_path / "run" / "summary.json").exists()
    again = subprocess.run(
        [sys.executable, *replay], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr


def test_who_imports_it_keeps_what_is_said(tmp_path: Path) -> None:
    said = interrupted(tmp_path, "-c", f"import hybridcache.tree\n{PRESSED}")
    assert said[0].startswith("Traceback") and said[-1] == "KeyboardInterrupt"
