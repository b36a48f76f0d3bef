"""Asking a command for help starts nothing."""

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "experiments"
COMMANDS = sorted(
    path.stem for path in FOLDER.glob("*.py") if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_starts_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    module = f"hybridcache.experiments.{name}"
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(SystemExit) as end:
        runpy.run_module(module, run_name="__main__")
    assert not end.value.code
    said = capsys.readouterr().out
    assert name in said
    assert not list(tmp_path.iterdir())
