"""The CUDA kernels where there is no nvcc: compiled by NVRTC, which PyTorch's packages for GPUs bring along.

NVRTC compiles device code alone, so the grids, which a library of nvcc works out in C++, are worked out here.
"""

import ctypes
import functools
import os
import sysconfig
from collections.abc import Callable, Mapping
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from hybridcache.kernels.build import BuildError
from hybridcache.kernels.cuda.build import SIZES, SOURCES, Kernels, Variant, find_nvcc
from hybridcache.kernels.cuda.driver import Driver, Function

Grid = tuple[int, int, int]
GRIDS: Mapping[str, Callable[..., Grid]] = MappingProxyType(
    {
        "selective_scan": lambda n, p, b: (-(-p.channels // n), b.num_sequences, 1),
        "selective_update": lambda n, p, b: (-(-p.channels // n), b.num_sequences, 1),
        "selective_pass": lambda n, p, b: (-(-p.channels * p.d_state // n), b.num_sequences, 1),
        "mamba2_recurrence": lambda n, p, b: (p.heads * -(-p.head_dim // n), b.num_sequences, 1),
        "gated_delta_recurrence": lambda n, p, b: (p.value_heads * -(-p.value_dim // n), b.num_sequences, 1),
        "causal_conv1d": lambda n, p, b: (p.num_tiles, -(-p.channels // (n // p.segments)), 1),
        "entry_copy": lambda n, p: (-(-p.longest // n), p.num_segments, p.num_copies),
        "state_int8": lambda n, p: (p.heads, p.num_copies, 1),
    }
)
"""Blocks, from what each takes (`Function.span`) and the arguments: as the C++ says, which tests compare."""


def find_kernels(device: torch.device) -> Kernels:
    """By nvcc where it is found, else by NVRTC for this device. Raises BuildError where neither is."""
    if find_nvcc() is not None:
        return Kernels.of_this_machine()
    library = find_nvrtc()
    if library is None:
        raise BuildError(
            "no nvcc and no NVRTC: install the CUDA toolkit or the package nvidia-cuda-nvrtc, or set "
            "HYBRIDCACHE_NVCC or HYBRIDCACHE_NVRTC to nvcc's or libnvrtc's path"
        )
    major, minor = torch.cuda.get_device_capability(device)
    return NvrtcKernels(Nvrtc(library), 10 * major + minor)


def find_nvrtc() -> Path | None:
    """libnvrtc: HYBRIDCACHE_NVRTC (empty: none), else in Python's packages, else in CUDA_HOME."""
    if (chosen := os.environ.get("HYBRIDCACHE_NVRTC")) is not None:
        return Path(chosen) if chosen and Path(chosen).is_file() else None
    found = [path for folder in _nvidia_folders() for path in sorted(folder.glob("lib*/libnvrtc.so*"))]
    return found[0] if found else None


def _nvidia_folders() -> list[Path]:
    packages = Path(sysconfig.get_path("purelib"))
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    return [*sorted((packages / "nvidia").glob("*")), home, packages / "triton" / "backends" / "nvidia"]


class Nvrtc:
    """Calls of libnvrtc. Raises BuildError where it cannot be loaded, or has no headers beside it."""

    def __init__(self, path: Path) -> None:
        try:
            for part in path.parent.glob("libnvrtc-builtins.so*"):
                ctypes.CDLL(str(part))  # which NVRTC asks for by name, where the system may not look
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise BuildError(f"{path} cannot be loaded: {error}") from error
        self._library.nvrtcGetErrorString.restype = c_char_p
        folders = [path.parents[1], *_nvidia_folders()]
        headers = next((f / "include" for f in folders if (f / "include/cuda_fp16.h").is_file()), None)
        if headers is None:
            raise BuildError(f"no cuda_fp16.h near {path}: pip install nvidia-cuda-runtime, or set CUDA_HOME")
        self.options = ("-std=c++17", "-fmad=false", "-default-device", f"-I{headers}", f"-I{SOURCES}")
        major, minor = c_int(), c_int()
        self._call("nvrtcVersion", byref(major), byref(minor))
        self.release = f"{major.value}.{minor.value}"

    def compile(self, text: str, kernel: str, options: tuple[str, ...]) -> tuple[str, bytes]:
        """Mangled name and cubin of the kernel that `kernel` names in `text`. Raises BuildError."""
        program, options = c_void_p(), (*self.options, *options)
        words = (c_char_p * len(options))(*(option.encode() for option in options))
        self._call(
            "nvrtcCreateProgram",
            byref(program),
            c_char_p(text.encode()),
            c_char_p(b"kernel.cu"),
            0,
            None,
            None,
        )
        try:
            self._call("nvrtcAddNameExpression", program, c_char_p(kernel.encode()))
            if self._library.nvrtcCompileProgram(program, len(options), words):
                raise BuildError(
                    f"NVRTC fails on {kernel}:\n{self._bytes(program, 'ProgramLog').decode()[-2000:]}"
                )
            name = c_char_p()
            self._call("nvrtcGetLoweredName", program, c_char_p(kernel.encode()), byref(name))
            assert name.value is not None
            return name.value.decode(), self._bytes(program, "CUBIN")
        finally:
            self._call("nvrtcDestroyProgram", byref(program))

    def _bytes(self, program: c_void_p, what: str) -> bytes:
        size = c_size_t()
        self._call(f"nvrtcGet{what}Size", program, byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, text)
        return text.raw

    def _call(self, name: str, *arguments: object) -> None:
        if code := getattr(self._library, name)(*arguments):
            raise BuildError(f"{name}: {self._library.nvrtcGetErrorString(code).decode()}")


class NvrtcKernels(Kernels):
    """Kernels without host code, for one architecture (90: sm_90), launched through the driver.

    A file has the kernel's name in its first line and the machine code behind it.
    """

    suffix = ".cubin"

    def __init__(self, nvrtc: Nvrtc, architecture: int) -> None:
        super().__init__((*nvrtc.options, f"-arch=sm_{architecture}"), f"NVRTC {nvrtc.release}")
        self._nvrtc = nvrtc
        self._functions: dict[tuple[Variant, int | None], Function] = {}

    @functools.cached_property
    def driver(self) -> Driver:
        """Asked for when the first kernel is launched."""
        return Driver.of_this_machine()

    def compile(self, variant: Variant, source: Path, target: Path) -> None:
        sized = SIZES.get(variant.source) != (1,)
        kernel = f"hc::{variant.source}" + ("<hc::Element, hc::kSize>" if sized else "")
        options = (self.command[-1], *variant.definitions)
        name, code = self._nvrtc.compile(source.read_text(encoding="utf-8"), kernel, options)
        target.write_bytes(name.encode() + b"\n" + code)

    def run(self, variant: Variant, device: torch.device, *arguments: ctypes.Structure) -> None:
        with torch.cuda.device(device):
            stream: Any = torch.cuda.current_stream(device)
            self.driver.enter(device.index or 0)
            key = (variant, device.index)
            if key not in self._functions:
                name, _, code = self.build(variant).read_bytes().partition(b"\n")
                self._functions[key] = self.driver.load(code, name.decode())
            function = self._functions[key]
            grid = GRIDS[variant.source](function.span, *arguments)
            self.driver.launch(function, grid, stream.cuda_stream, arguments)
