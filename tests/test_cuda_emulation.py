"""Faults planted in CUDA kernels, seen by the emulation."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hybridcache.kernels.build import find_compiler
from hybridcache.kernels.cuda import build
from hybridcache.kernels.cuda.copies import CudaCopies
from tests.cuda_emulator import EmulatedKernels, EmulatedOps
from tests.kernel_cases import Piece, conv, gated_delta, mamba1, mamba2
from tests.test_kernels_twins import PIECES, check

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="the emulation needs g++")

BARRIER = "    __syncthreads();\n"
Plant = Callable[..., None]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Plant:
    """Calling it with a file, a text and another has the kernels compiled with the text replaced."""

    def plant(file: str, old: str, new: str, count: int = 1) -> None:
        sources = tmp_path / "csrc"
        shutil.copytree(build.SOURCES, sources)
        text = (sources / file).read_text(encoding="utf-8")
        assert text.count(old) == count, file
        (sources / file).write_text(text.replace(old, new, 1), encoding="utf-8")
        monkeypatch.setattr(build, "SOURCES", sources)
        monkeypatch.setenv("HYBRIDCACHE_CACHE", str(tmp_path / "cache"))

    return plant


def scan(kernels: EmulatedKernels | None = None) -> None:
    check(EmulatedOps(kernels), mamba1(70, 37, 16))


def test_without_a_fault() -> None:
    scan()


def test_a_missing_barrier_is_seen(plant: Plant) -> None:
    plant("selective_scan.cuh", BARRIER, "", count=2)
    with pytest.raises(AssertionError):
        scan()


def test_a_missing_second_barrier_is_seen(plant: Plant) -> None:
    # The first of the two goes in front of the chain, the second behind it.
    plant("selective_scan.cuh", BARRIER + "    if (finishes) {", "    if (finishes) {")
    with pytest.raises(AssertionError):
        scan()


def test_a_barrier_that_some_threads_do_not_reach_is_seen(plant: Plant) -> None:
    plant("selective_scan.cuh", BARRIER, "    if (channels > 0) __syncthreads();\n", count=2)
    with pytest.raises(RuntimeError, match=r"wait for ever|meet at different"):
        scan()


def test_an_exchange_that_some_threads_do_not_reach_is_seen(plant: Plant) -> None:
    whole = "  float sum = (odd ? b : a) + __shfl_xor_sync(kWholeWarp, odd ? a : b, 1);"
    plant("device.cuh", whole, "  float sum = a + b;\n  if (!odd) sum += __shfl_xor_sync(kWholeWarp, b, 1);")
    with pytest.raises(RuntimeError, match=r"wait for ever|meet at different"):
        scan()


def test_a_grid_that_a_gpu_refuses_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    states, packed = torch.ones(1, 1, 8), torch.zeros(1, 1, 8, dtype=torch.int8)
    monkeypatch.setattr("hybridcache.kernels.cuda.copies.MAX_COPIES", 65_536)
    with pytest.raises(RuntimeError, match="a grid of 1, 65536, 1"):
        CudaCopies(EmulatedKernels()).pack_states(states, packed, torch.zeros(1, 1), [(0, 0)] * 65_536)


PROGRAM = """
import os, torch
from pathlib import Path
from tests.cuda_emulator import EmulatedKernels, EmulatedOps
from tests.test_cuda_emulation import sanitized
from hybridcache.kernels.cuda import build
torch.set_num_threads(1)
sanitized()
print("clean", flush=True)
build.SOURCES = Path(os.environ["PLANTED"])
sanitized()
"""


def sanitized() -> None:
    """Every kernel, compiled with the address sanitizer, which must have been loaded before Python."""
    kernels = EmulatedKernels(("-fsanitize=address", "-O0"))
    ops, copies = EmulatedOps(kernels), CudaCopies(kernels)
    cases = (mamba1(70, 37, 16), mamba2(70, 4, 24, 64, 1), gated_delta(70, 1, 1, 7, 3), conv(70, 65, 4))
    for case in cases:
        case.run(ops, case.storage(9), PIECES)
    ops.chunk_below = 1 << 60
    cases[0].run(ops, cases[0].storage(9), PIECES)
    cases[0].run(ops, cases[0].storage(1), (Piece(0, 1, 0),))
    copies.copy_entries(torch.zeros(3, 65, dtype=torch.uint8), [(0, 1), (1, 2)])
    states, packed = torch.ones(2, 3, 65), torch.zeros(2, 3, 65, dtype=torch.int8)
    copies.pack_states(states, packed, torch.zeros(2, 3), [(0, 1)])


def test_a_read_out_of_bounds_is_seen(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """All kernels are clean under the address sanitizer; with the bound of the channels gone, one is not."""
    shipped = build.SOURCES
    bound = "const int valid = t < stop ? static_cast<int>(least(p.channels - channel, 8)) : 0;"
    plant("selective_scan.cuh", bound, "const int valid = t < stop ? 8 : 0;")
    compiler = find_compiler()
    assert compiler is not None
    found = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    environment = os.environ | {
        "LD_PRELOAD": found.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PLANTED": str(build.SOURCES),
        "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
    }
    monkeypatch.setattr(build, "SOURCES", shipped)
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=False
    )
    assert run.stdout == "clean\n", run.stderr
    assert run.returncode != 0
    assert "heap-buffer-overflow" in run.stderr
    assert "selective_scan" in run.stderr
