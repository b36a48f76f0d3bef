"""The GPU check, tried with small dimensions in Triton's interpreter."""

import json
from pathlib import Path

import pytest
import torch

from hybridcache.experiments import gpu_check
from hybridcache.experiments.gpu_bench import Bench

pytest.importorskip("triton", reason="needs triton: pip install triton")

COMMAND = ("--device", "cpu", "--backend", "triton", "--tiny")


def run(out: Path, *arguments: str) -> tuple[int, dict[str, object]]:
    with torch.random.fork_rng():
        enabled = torch.is_grad_enabled()
        try:
            status = gpu_check.main([*COMMAND, "--out", str(out), *arguments])
        finally:
            torch.set_grad_enabled(enabled)
    found: dict[str, object] = json.loads(out.read_text())
    return status, found


def test_sections_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sections = ("ceilings", "numerics", "copies", "linear")
    status, found = run(tmp_path / "out.json", "--sections", *sections)
    shown = capsys.readouterr().out
    assert set(found["sections"].values()) == {"done"}, found["sections"]  # type: ignore[attr-defined]
    assert status == 0
    assert "mamba2" in shown
    assert "WRONG" not in shown


@pytest.mark.full
def test_all_sections_run(tmp_path: Path) -> None:
    """The interpreter's product is a BLAS, whose bits depend on rows: `exactness` may say so and no more."""
    _, found = run(tmp_path / "out.json")
    assert set(found["sections"].values()) == {"done"}, found["sections"]  # type: ignore[attr-defined]
    wrong = [row["name"] for row in found["rows"] if row["ok"] is False]  # type: ignore[attr-defined]
    assert all(name.startswith(("attention", "mamba2", "gated_delta")) for name in wrong), wrong


def test_a_section_that_fails_is_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(bench: Bench) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(gpu_check, "SECTIONS", {"first": fails, "ceilings": gpu_check.SECTIONS["ceilings"]})
    status, found = run(tmp_path / "out.json", "--sections", "first", "ceilings")
    assert status == 1
    assert "no luck" in found["sections"]["first"]  # type: ignore[index]
    assert found["sections"]["ceilings"] == "done"  # type: ignore[index]
    assert "first: RuntimeError: no luck" in capsys.readouterr().out
    status, found = run(tmp_path / "out.json", "--sections", "first", "--budget-s", "0")
    assert (status, found["sections"]) == (0, {"first": "left out"})
