"""The GPU check, tried with small dimensions in Triton's interpreter."""

import json
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from hybridcache.experiments import gpu_check, gpu_sections
from hybridcache.experiments.gpu_aims import AIMS, aims
from hybridcache.experiments.gpu_bench import Bench, Row
from hybridcache.experiments.gpu_layers import LayerCall
from hybridcache.experiments.gpu_oracles import NAMES, PACKAGES, Oracle
from hybridcache.experiments.gpu_process import in_processes
from hybridcache.kernels.build import find_compiler
from hybridcache.kernels.ops import Ops
from hybridcache.kernels.packed import PackedBatch
from hybridcache.kernels.reference import ReferenceOps
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


def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """mamba-ssm and causal-conv1d by their signatures, computed by the plain twins."""
    twin = ReferenceOps()

    def batch(tokens: int) -> PackedBatch:
        return PackedBatch.build([tokens], slots=[0])

    def mamba2(
        x: Any, dt: Any, A: Any, B: Any, C: Any, chunk_size: int, *, D: Any, dt_bias: Any, dt_softplus: bool
    ) -> Any:
        assert dt_softplus and len(x) == 1
        limits, state = (0.0, float("inf")), torch.zeros(1, *x.shape[2:], B.shape[3])
        return twin.mamba2_scan(x[0], dt[0], A, B[0], C[0], D, dt_bias, limits, state, batch(x.shape[1]))[
            None
        ]

    def mamba1(
        u: Any, delta: Any, A: Any, B: Any, C: Any, D: Any, z: Any, delta_bias: Any, *, delta_softplus: bool
    ) -> Any:
        assert delta_softplus and len(u) == 1
        x, dt, B, C, z = (t[0].T for t in (u, delta, B, C, z))
        state = torch.zeros(1, *A.shape)
        return twin.mamba1_scan(x, dt, A, B, C, D, z, delta_bias, state, batch(len(x))).T[None]

    def conv(x: Any, weight: Any, bias: Any, *, activation: Literal["silu"]) -> Any:
        state = torch.zeros(1, len(weight), weight.shape[1] - 1)
        return twin.causal_conv1d(x[0].T, weight, bias, state, batch(x.shape[2]), activation).T[None]

    for function, (module, name) in zip((mamba2, mamba1, conv), PACKAGES.values(), strict=True):
        parts = module.split(".")
        for count in range(1, len(parts) + 1):
            path = ".".join(parts[:count])
            monkeypatch.setitem(sys.modules, path, module_from_spec(ModuleSpec(path, None)))
        setattr(sys.modules[module], name, function)


def test_sections_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretended(monkeypatch)
    sections = ("ceilings", "numerics", "copies", "linear")
    status, found = run(tmp_path / "out.json", "--sections", *sections)
    shown = capsys.readouterr().out
    assert set(found["sections"].values()) == {"done"}, found["sections"]  # type: ignore[attr-defined]
    assert status == 0
    assert "mamba2" in shown
    assert "WRONG" not in shown
    agree = {row["name"]: row["ok"] for row in found["rows"]}  # type: ignore[attr-defined]
    assert all(agree[f"{layer}, {name}"] for layer, name in NAMES.items()), agree


@pytest.mark.full
def test_all_sections_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is checked holds, but for the aims, which are times of a GPU."""
    pretended(monkeypatch)
    _, found = run(tmp_path / "out.json")
    assert set(found["sections"].values()) == {"done"}, found["sections"]  # type: ignore[attr-defined]
    rows = [row for row in found["rows"] if row["section"] != "aims"]  # type: ignore[attr-defined]
    assert not [row["name"] for row in rows if row["ok"] is False]
    exact = {row["name"]: row["ok"] for row in rows if row["section"] == "exactness"}
    assert len(exact) == 5 and all(exact.values())
    times = {row["name"]: row["value"] for row in rows if row["section"] == "prefill"}
    assert all(times[f"{layer}, {name}"] > 0 for layer, name in NAMES.items())


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
    assert status == 0 and len(rows) == 19 and False not in rows.values(), rows
    assert {"numerics, gated_delta, invariant", "exactness, mamba1 invariant, cut at 6"} < rows.keys()


def test_an_oracle_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row says so, and nothing is wrong."""

    def missing(layer: LayerCall) -> Oracle:
        raise ModuleNotFoundError(f"No module named {layer.name!r}")

    monkeypatch.setattr(gpu_sections, "oracle", missing)
    monkeypatch.setattr(gpu_sections, "calls", lambda bench, tokens, slots: ())
    status, found = run(tmp_path / "out.json", "--sections", "numerics")
    row = next(row for row in found["rows"] if row["name"] == "attention, SDPA")  # type: ignore[attr-defined]
    assert (
        status == 0
        and row["ok"] is None
        and row["note"] == "ModuleNotFoundError: No module named 'attention'"
    )


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
