"""Notebooks: each runs from top to bottom, and is the same in both of its files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "experiments" / "notebooks"
NAMES = sorted(file.stem for file in FOLDER.glob("*.py"))


def cells(text: str) -> list[str]:
    """The cells of a script in the percent format, its header left out; text without comment marks."""
    found = []
    for part in text.split("\n# %%")[1:]:
        kind, _, body = part.partition("\n")
        lines = body.strip("\n").splitlines()
        if "[markdown]" in kind:
            lines = [line.removeprefix("#").removeprefix(" ") for line in lines]
        found.append("\n".join(lines).strip())
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": str(FOLDER.parents[1])}
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py")],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "%" in done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_both_files_hold_the_same_cells(name: str) -> None:
    script = cells((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    stored = ["".join(cell["source"]).strip() for cell in notebook["cells"]]
    assert stored == script
    assert len(script) >= 6
