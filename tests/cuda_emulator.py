"""The CUDA kernels compiled by g++ over tests/cuda_emulation: the same sources, C interface and Python."""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from hybridcache.kernels.build import find_compiler
from hybridcache.kernels.cuda.build import Kernels, Variant
from hybridcache.kernels.cuda.scans import CudaScans
from hybridcache.kernels.reference import ReferenceOps

HEADER = Path(__file__).resolve().parent / "cuda_emulation" / "emulation.h"
FLAGS = (
    "-std=c++17",
    "-O1",
    "-march=native",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",
)


class EmulatedKernels(Kernels):
    """Takes tensors on the CPU. `seed` chooses the order of blocks and threads from the next launch on."""

    device_type = "cpu"

    def __init__(self, flags: Sequence[str] = (), seed: int = 0) -> None:
        compiler = find_compiler()
        assert compiler is not None, "the emulation needs g++"
        command = (compiler, *FLAGS, *flags, "-include", str(HEADER), "-x", "c++")
        super().__init__(command, HEADER.read_text(encoding="utf-8"))
        self.seed = seed

    def launch(self, function: Callable[..., int], device: torch.device, *arguments: object) -> int:
        return function(*arguments, None)

    def load(self, variant: Variant) -> ctypes.CDLL:
        library = super().load(variant)
        library.hc_emulation_seed(self.seed)
        self.seed += 1
        return library


class EmulatedOps(CudaScans, ReferenceOps):
    """Scans by the emulation, the rest by torch."""

    def __init__(self, kernels: EmulatedKernels | None = None) -> None:
        super().__init__()
        self.kernels = kernels or EmulatedKernels()
