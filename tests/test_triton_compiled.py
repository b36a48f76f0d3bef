"""Every Triton kernel compiled ahead of time for GPUs that need not be there."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
ON_TENSOR_CORES = {
    "prefill_attention",
    "mamba2_contributions",
    "mamba2_outputs",
    "delta_prepare",
    "delta_states",
    "delta_outputs",
    "invariant_matmul",
}
"""Kernels whose products have 64 rows or more in 16 bits: on sm_90 those are wgmma."""
REGISTERS = 255
"""Of one thread, on every target."""
SHARED_BYTES = {80: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}
"""Shared memory that one program may have; 8.6 and 8.9 have less than 8.0 (163 KiB) and get the same code."""


@pytest.fixture(scope="module")
def tools() -> None:
    """Skips where Triton is not installed, or without the compiler and the disassembler it bundles."""
    triton = pytest.importorskip("triton", reason="needs triton: pip install triton")
    folder = Path(triton.__file__).parent / "backends/nvidia/bin"
    missing = [name for name in ("ptxas", "cuobjdump") if not (folder / name).is_file()]
    if missing:
        pytest.skip(f"this triton has no {' and no '.join(missing)} in {folder.name}")


def printed(*arguments: str) -> Any:
    """By a module, in a process of its own: Triton interprets or compiles, and this one may interpret."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    return json.loads(done.stdout)


def compile_all(function: str, capability: int) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = printed("tests.triton_aot", function, str(capability))
    return results


def check_fit(results: list[dict[str, Any]], capability: int) -> None:
    assert {result["kernel"] for result in results} > ON_TENSOR_CORES
    for result in results:
        assert result["registers"] <= REGISTERS, result
        assert result["shared_bytes"] <= SHARED_BYTES[capability], result


def check(results: list[dict[str, Any]], capability: int) -> None:
    check_fit(results, capability)
    for result in results:
        assert result["local_bytes"] == result["stack_bytes"] == 0, result
        if result["kernel"] in ON_TENSOR_CORES:
            assert result["products"], result
            if capability == 90:
                assert "wgmma.mma_async" in result["products"], result


def test_compiled_for_hopper(tools: None) -> None:
    check(compile_all("launch_known", 90), 90)


@pytest.mark.full
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_compiled_for_all(tools: None, capability: int) -> None:
    check(compile_all("launch_all", capability), capability)


@pytest.mark.full
def test_they_fit_a_desktop_gpu_of_the_latest_kind(tools: None) -> None:
    """Which has the shared memory of 8.6, and spills here and there."""
    check_fit(compile_all("launch_all", 120), 120)


@pytest.mark.full
def test_float32_fits(tools: None) -> None:
    """Its products run on ordinary cores, with the same tiles everywhere."""
    check_fit(compile_all("launch_float32", 80), 80)


def test_nothing_is_compiled_again_for_a_batch_of_other_lengths() -> None:
    pytest.importorskip("triton", reason="needs triton: pip install triton")
    assert printed("tests.triton_lengths") == []


@pytest.mark.full
def test_nor_for_a_whole_model() -> None:
    pytest.importorskip("triton", reason="needs triton: pip install triton")
    assert printed("tests.triton_lengths", "models") == []
