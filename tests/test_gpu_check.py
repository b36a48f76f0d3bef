"""The GPU check, tried with small dimensions in Triton's interpreter."""

import json
import sys
from pathlib import Path

import pytest
import torch

from hybridcache.experiments import gpu_check, gpu_sections
from hybridcache.experiments.gpu_aims import AIMS, aims
from hybridcache.experiments.gpu_bench import Bench, Row
from hybridcache.experiments.gpu_process import in_processes
from hybridcache.kernels.build import find_compiler
from hybridcache.kernels.ops import Ops
from tests.cuda_emulator import EmulatedKernels

pytest.importorskip("triton", reason="needs triton: pip install triton")

CudaOps = pytest.importorskip("hybridcache.kernels.cuda.ops").CudaOps
COMMAND = ("--device", "cpu", "--backend", "triton", "--tiny", "--here")


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
    """All that is checked holds, but for the aims, which are times of a GPU."""
    _, found = run(tmp_path / "out.json")
    assert set(found["sections"].values()) == {"done"}, found["sections"]  # type: ignore[attr-defined]
    rows = [row for row in found["rows"] if row["section"] != "aims"]  # type: ignore[attr-defined]
    assert not [row["name"] for row in rows if row["ok"] is False]
    exact = {row["name"]: row["ok"] for row in rows if row["section"] == "exactness"}
    assert len(exact) == 5 and all(exact.values())


@pytest.mark.skipif(find_compiler() is None, reason="the emulation needs g++")
def test_the_backend_cuda_is_checked_beside_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here by the emulation of its kernels; without it the row says why there is nothing."""

    def emulated(name: str, *, device: torch.device, linear: str = "auto") -> Ops:
        assert name == "cuda"
        ops: Ops = CudaOps(device, linear, EmulatedKernels())
        return ops

    _, found = run(tmp_path / "out.json", "--sections", "cuda")
    row = found["rows"][0]  # type: ignore[index]
    assert row["ok"] is None and "backend cuda on a CPU" in row["note"]
    monkeypatch.setattr(gpu_sections, "build_ops", emulated)
    status, found = run(tmp_path / "out.json", "--sections", "cuda")
    rows = {row["name"]: row["ok"] for row in found["rows"]}  # type: ignore[attr-defined]
    assert status == 0 and len(rows) == 15 and all(rows.values()), rows
    assert {"numerics, gated_delta, invariant", "exactness, mamba1 invariant, cut at 6"} < rows.keys()


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


def test_a_row_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def section(bench: Bench) -> None:
        for name, ours in (("first", True), ("oracle", False)):
            with bench.attempt("s", name, ours=ours):
                raise RuntimeError("no luck")
        bench.timed("s", "last", lambda: None, 0, 0)

    monkeypatch.setattr(gpu_check, "SECTIONS", {"s": section})
    status, found = run(tmp_path / "out.json", "--sections", "s")
    rows = {row["name"]: row for row in found["rows"]}  # type: ignore[attr-defined]
    assert (status, found["sections"]) == (1, {"s": "done"})
    assert [rows[name]["ok"] for name in ("first", "oracle", "last")] == [False, None, None]
    assert rows["oracle"]["note"] == "RuntimeError: no luck" and rows["last"]["value"] is not None


def test_a_device_that_is_lost_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing more is tried there, and what was there before it is in the file."""
    monkeypatch.setattr(gpu_check, "SECTIONS", {"a": lambda bench: None, "b": lambda bench: None})
    monkeypatch.setattr(gpu_check, "_answers", lambda bench: False)
    _, found = run(tmp_path / "out.json", "--sections", "a", "b")
    assert found["sections"] == {"a": "done"}


SECTIONS_OF_A_PROCESS = """
import json, os, sys, time
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
begin, end = sys.argv.index("--sections"), sys.argv.index("--budget-s")
sections, rows, out = {}, [], sys.argv[sys.argv.index("--out") + 1]
for name in sys.argv[begin + 1:end]:
    sections[name] = "running"
    json.dump({"device": "fake", "sections": sections, "rows": rows}, open(out, "w"))
    if name == "dies":
        os._exit(9)
    rows.append({"section": name, "name": "pid", "value": os.getpid()})
    sections[name] = "done"
    json.dump({"device": "fake", "sections": sections, "rows": rows}, open(out, "w"))
    if name == "loses":
        break
"""


def test_sections_in_processes(tmp_path: Path) -> None:
    """One takes its process with it, one leaves the device silent; the others run all the same."""
    sections = ("ceilings", "first", "dies", "loses", "last")
    part = tmp_path / "part.json"
    found = in_processes([sys.executable, "-c", SECTIONS_OF_A_PROCESS], sections, part, 60)
    assert found["sections"] == {
        **dict.fromkeys(sections, "done"),
        "dies": "its process ended with 9",
    }
    processes = {row["section"]: row["value"] for row in found["rows"]}
    assert processes["ceilings"] == processes["first"] != processes["loses"] != processes["last"]
    assert len(found["rows"]) == 4 and found["device"] == "fake" and not part.exists()


def test_a_process_that_does_nothing(tmp_path: Path) -> None:
    found = in_processes(
        [sys.executable, "-c", "raise SystemExit(3)"], ["a", "b"], tmp_path / "part.json", 60
    )
    assert found["sections"] == dict.fromkeys("ab", "its process ended with 3")


def test_what_was_aimed_at() -> None:
    rows = [
        Row("prefill", "mamba2, 0 checkpoints", 3.0, "ms", 1.0),
        Row("prefill", "mamba2, mamba_chunk_scan_combined", 2.5, "ms", 1.0),
        Row("prefill", "mamba2, 1 checkpoints", 3.3, "ms", 1.0),
        Row("prefill", "attention", 15.0, "ms", 10.0),
        Row("decode", "attention, batch 32, graph", 13.0, "ms", 10.0),
        Row("copies", "one launch", 1.0, "ms"),
        Row("model", "hit against a cold prompt of its new tokens", 1.2, "times", 1.3),
        Row("prefill", "mamba1, 0 checkpoints", 1.0, "ms"),
    ]
    found = {row.name: (round(row.value or 0, 2), row.ok) for row in aims(rows)}
    assert found == {
        "mamba2, 0 checkpoints / mamba2, mamba_chunk_scan_combined": (1.2, True),
        "mamba2, 1 checkpoints / mamba2, 0 checkpoints": (1.1, False),
        "attention / floor": (1.5, True),
        "attention, batch 32, graph / floor": (1.3, False),
        "hit against a cold prompt of its new tokens / floor": (1.2, True),
    }
    assert len({aim[:2] for aim in AIMS}) == len(AIMS)
