"""CUDA kernels without nvcc: their grids, what NVRTC makes of the sources, and the calls that launch them."""

import ctypes
from contextlib import AbstractContextManager, nullcontext
from ctypes import CDLL, c_int
from pathlib import Path
from typing import Any

import pytest
import torch

from hybridcache.kernels.build import BuildError, find_compiler
from hybridcache.kernels.cuda import nvrtc
from hybridcache.kernels.cuda.build import SOURCES, Kernels, Variant
from hybridcache.kernels.cuda.copies import CudaCopies
from hybridcache.kernels.cuda.driver import Driver
from hybridcache.kernels.cuda.nvrtc import GRIDS, Nvrtc, NvrtcKernels, find_kernels, find_nvrtc
from tests.cuda_emulator import EmulatedKernels, EmulatedOps
from tests.kernel_cases import Piece, conv, gated_delta, mamba1, mamba2

LIBRARY = find_nvrtc()
needs_nvrtc = pytest.mark.skipif(LIBRARY is None, reason="no NVRTC: pip install nvidia-cuda-nvrtc")
VARIANTS = (
    Variant("entry_copy", "raw", 1),
    Variant("selective_pass", "raw", 1),
    Variant("state_int8", "bf16", 1),
    Variant("selective_update", "f16", 16),
    pytest.param(Variant("selective_scan", "bf16", 16), marks=pytest.mark.full),
    pytest.param(Variant("mamba2_recurrence", "bf16", 128), marks=pytest.mark.full),
    pytest.param(Variant("gated_delta_recurrence", "f16", 128), marks=pytest.mark.full),
    pytest.param(Variant("causal_conv1d", "bf16", 4), marks=pytest.mark.full),
)


class GridKernels(EmulatedKernels):
    """Compares the grid of every launch in C++ with the one that is worked out in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: set[str] = set()

    def run(self, variant: Variant, device: torch.device, *arguments: ctypes.Structure) -> None:
        super().run(variant, device, *arguments)
        library = self.load(variant)
        shape = (c_int * 3).in_dll(library, "hc_shape")
        sizes = (ctypes.c_uint * 6)()
        library.hc_emulation_launched(sizes)
        assert tuple(sizes[:3]) == GRIDS[variant.source](shape[2], *arguments), variant
        assert tuple(sizes[3:]) == (shape[0], 1, 1), variant
        self.launched.add(variant.source)


@pytest.mark.skipif(find_compiler() is None, reason="the emulation needs g++")
def test_grids_are_those_of_the_sources() -> None:
    kernels = GridKernels()
    ops, copies = EmulatedOps(kernels), CudaCopies(kernels)
    pieces = (Piece(0, 9, 0, ((3, 2),)), Piece(0, 1, 1))
    for case in (conv(70, 1_100, 4), mamba1(9, 70, 16), mamba2(9, 3, 70, 9, 1), gated_delta(9, 1, 2, 7, 70)):
        case.run(ops, case.storage(3), (Piece(0, case.num_tokens, 0),))
        case.run(ops, case.storage(3), pieces)
    case = mamba1(9, 70, 16)
    case.run(ops, case.storage(1), (Piece(0, 1, 0),))
    ops.chunk_below = 1 << 60
    case.run(ops, case.storage(3), pieces)
    copies.copy_entries(torch.zeros(5, 40_003, dtype=torch.uint8), [(0, 1), (2, 3)])
    states, packed = torch.ones(2, 3, 65), torch.zeros(2, 3, 65, dtype=torch.int8)
    copies.pack_states(states, packed, torch.zeros(2, 3), [(0, 1)])
    assert kernels.launched == GRIDS.keys()


@needs_nvrtc
@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: f"{v.source}-{v.element}-{v.size}")
def test_nvrtc_compiles_the_sources(
    variant: Variant, architecture: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HYBRIDCACHE_CACHE", str(tmp_path))
    assert LIBRARY is not None
    kernels = NvrtcKernels(Nvrtc(LIBRARY), architecture)
    name, _, code = kernels.build(variant).read_bytes().partition(b"\n")
    assert variant.source.encode() in name and name in code
    assert code.startswith(b"\x7fELF") and b"hc_shape" in code
    assert (kernels.compiled, kernels.build(variant).suffix) == (1, ".cubin")
    assert kernels.compiled == 1  # found, the second time


@needs_nvrtc
def test_messages_of_nvrtc_are_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert LIBRARY is not None
    with pytest.raises(BuildError, match=r"NVRTC fails on hc::x(.*\n)*.*undeclared_name"):
        Nvrtc(LIBRARY).compile("int f() { return undeclared_name; }", "hc::x", ())


class FakeLibrary:
    """libcuda as far as it is called: notes the calls and does nothing."""

    def __init__(self, fails: str | None = None) -> None:
        self.fails = fails
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append((name, *arguments))
            if name == self.fails:
                return 700
            if name == "cuCtxGetCurrent" and self.named("cuCtxSetCurrent"):
                arguments[0]._obj.value = 5
            if name == "cuDevicePrimaryCtxRetain":
                arguments[0]._obj.value = 5
            if name == "cuModuleGetFunction":
                arguments[0]._obj.value = 11
            if name == "cuMemcpyDtoH_v2":
                arguments[0]._obj[:] = [128, 64, 16_384]
            if name == "cuGetErrorString":
                arguments[1]._obj.value = b"illegal address"
            return 0

        return call

    def named(self, name: str) -> list[list[Any]]:
        return [arguments for called, *arguments in self.calls if called == name]


class FakeNvrtcKernels(NvrtcKernels):
    """Compiles nothing; its driver is a fake."""

    device_type = "cpu"

    def __init__(self, path: Path, library: FakeLibrary) -> None:
        Kernels.__init__(self, ("-arch=sm_90",), "fake")
        self._functions = {}
        self.path, self.driver = path, Driver(library)  # type: ignore[arg-type]

    def build(self, variant: Variant) -> Path:
        self.path.write_bytes(b"mangled\nimage")
        return self.path


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Devices that were made the current one; the stream there is number 7."""
    found: list[str] = []

    class Stream:
        cuda_stream = 7

    def device(device: torch.device) -> AbstractContextManager[None]:
        found.append(str(device))
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "device", device)
    return found


def test_a_launch_by_the_driver(tmp_path: Path, entered: list[str]) -> None:
    library = FakeLibrary()
    copies = CudaCopies(FakeNvrtcKernels(tmp_path / "kernel.cubin", library))
    memory = torch.zeros(5, 40_000, dtype=torch.uint8)
    for _ in range(2):
        copies.copy_entries(memory, [(0, 1), (2, 3)])
    assert len(library.named("cuModuleLoadData")) == 1  # the second launch finds the function
    (_, image), (_, _, name) = library.named("cuModuleLoadData")[0], library.named("cuModuleGetFunction")[0]
    assert (image.value, name.value) == (b"image", b"mangled")
    first, _ = library.named("cuLaunchKernel")
    function, *sizes, stream, parameters, extra = first
    assert function.value == 11
    assert [size.value for size in sizes] == [3, 1, 2, 128, 1, 1, 64]
    assert (stream.value, extra) == (7, None)
    assert entered == ["cpu"] * 2
    (context,) = (call[0].value for call in library.named("cuCtxSetCurrent"))  # by the first launch only
    assert context == 5 and len(library.named("cuCtxGetCurrent")) == 2
    assert len(parameters._obj) == 1 and parameters._obj[0]


@pytest.mark.usefixtures("entered")
def test_what_the_driver_says(tmp_path: Path) -> None:
    copies = CudaCopies(FakeNvrtcKernels(tmp_path / "kernel.cubin", FakeLibrary("cuLaunchKernel")))
    with pytest.raises(RuntimeError, match=r"cuLaunchKernel: illegal address \(700\)"):
        copies.copy_entries(torch.zeros(2, 16, dtype=torch.uint8), [(0, 1)])


def test_which_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = torch.device("cuda", 0)
    monkeypatch.setenv("HYBRIDCACHE_NVCC", "")
    monkeypatch.setenv("HYBRIDCACHE_NVRTC", "")
    with pytest.raises(BuildError, match="no nvcc and no NVRTC"):
        find_kernels(device)
    broken = tmp_path / "libnvrtc.so"
    broken.write_bytes(b"no library")
    monkeypatch.setenv("HYBRIDCACHE_NVRTC", str(broken))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with pytest.raises(BuildError, match="cannot be loaded"):
        find_kernels(device)
    monkeypatch.undo()
    monkeypatch.setattr(nvrtc, "find_nvcc", lambda: "nvcc")
    by_nvcc = Kernels(("nvcc",), "13.0")
    monkeypatch.setattr(Kernels, "of_this_machine", lambda: by_nvcc)
    assert find_kernels(device) is by_nvcc


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("hybridcache.kernels.cuda.driver.ctypes.CDLL", missing)
    with pytest.raises(RuntimeError, match="no NVIDIA driver: libcuda"):
        Driver.of_this_machine()


def test_every_source_has_a_grid() -> None:
    headers = {"device", "selective_step"}
    assert {path.stem for path in SOURCES.glob("*.cuh")} - headers == GRIDS.keys()
