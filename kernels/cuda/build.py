"""Compiles the CUDA kernels on first use: one file for a source, an element type and a size. Here by nvcc."""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch

from hybridcache.kernels.build import BuildError, cache_folder

SOURCES = Path(__file__).resolve().parents[1] / "csrc" / "cuda"
ARCHITECTURES = (80, 90)
"""Compute capabilities, times ten, that the kernels are compiled for where no GPU says its own."""
COMPILE_FLAGS = (
    "-std=c++17",
    "-O3",
    # A multiply-add is fused where the source says so: prefill and decoding must not differ in it.
    "-fmad=false",
    "-Xcompiler=-fPIC",
)
SIZES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "selective_scan": (8, 16, 32, 64, 128, 256),
        "selective_update": (8, 16, 32, 64, 128, 256),
        "selective_pass": (1,),
        "mamba2_recurrence": (16, 32, 64, 128, 256),
        "gated_delta_recurrence": (64, 128, 256),
        "causal_conv1d": (2, 3, 4, 5),
        "entry_copy": (1,),
        "state_int8": (1,),
    }
)
"""Of each source, the sizes that its kernels are compiled for: d_state, key_dim or taps."""
RAW = ("entry_copy", "selective_pass")
"""Sources that read no activations."""
ELEMENTS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


class Variant(NamedTuple):
    """What one library is compiled from."""

    source: str
    """Name of a file of csrc/cuda/, which is that of its function too."""
    element: str
    """Type of the activations or states: f32, bf16 or f16; raw for sources of RAW."""
    size: int
    """What the source calls kSize: a padded dimension."""

    @property
    def definitions(self) -> tuple[str, ...]:
        """Macros for the compiler."""
        return (f"-DHC_ELEMENT={self.element}", f"-DHC_SIZE={self.size}")


def variants() -> list[Variant]:
    """All there are."""
    elements = {source: ("raw",) if source in RAW else tuple(ELEMENTS.values()) for source in SIZES}
    return [Variant(name, e, size) for name, sizes in SIZES.items() for e in elements[name] for size in sizes]


def find_nvcc() -> str | None:
    """Path of nvcc: HYBRIDCACHE_NVCC (empty: none), else on PATH, else in CUDA_HOME or /usr/local/cuda."""
    if (chosen := os.environ.get("HYBRIDCACHE_NVCC")) is not None:
        return shutil.which(chosen) if chosen else None
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    return shutil.which("nvcc") or shutil.which(str(home / "bin" / "nvcc"))


@functools.cache
def nvcc_release(nvcc: str) -> str:
    """Such as 13.0.88. Raises BuildError when it does not run."""
    try:
        run = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{nvcc} --version fails: {error}; set HYBRIDCACHE_NVCC to an nvcc") from error
    words = run.stdout.replace(",", " ").split()
    return next((word[1:] for word in words if word.startswith("V") and word[1:2].isdigit()), "unknown")


def nvcc_command(nvcc: str, architectures: Sequence[int] = ARCHITECTURES) -> tuple[str, ...]:
    """Compiles a .cuh to machine code for the architectures, and to PTX of the last for later ones."""
    codes = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in architectures]
    ptx = f"-gencode=arch=compute_{architectures[-1]},code=compute_{architectures[-1]}"
    return (nvcc, *COMPILE_FLAGS, "-x", "cu", *codes, ptx)


class Kernels:
    """The kernels by source, element and size; compiled when they are first asked for, then kept on disk.

    Here by nvcc, with the host code that launches them, as libraries.

    `command` is the compiler with its flags, `identity` what else decides what it makes (its version).
    """

    device_type = "cuda"
    """Where tensors must be."""
    suffix = ".so"
    """Of the files made."""

    def __init__(self, command: Sequence[str], identity: str) -> None:
        self.command = tuple(command)
        self.identity = identity
        self.compiled = 0
        """Libraries that this object compiled, rather than found."""
        self._libraries: dict[Variant, ctypes.CDLL] = {}

    @classmethod
    def of_this_machine(cls) -> "Kernels":
        """For the GPUs that torch sees, else for ARCHITECTURES. Raises BuildError without nvcc."""
        nvcc = find_nvcc()
        if nvcc is None:
            raise BuildError("no nvcc: install the CUDA toolkit, or set HYBRIDCACHE_NVCC to its compiler")
        devices = [torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())]
        seen = sorted({10 * major + minor for major, minor in devices})
        return cls(nvcc_command(nvcc, seen or ARCHITECTURES), nvcc_release(nvcc))

    def run(self, variant: Variant, device: torch.device, *arguments: ctypes.Structure) -> None:
        """Launches on the device's current stream; RuntimeError with the driver's words when that fails."""
        library = self.load(variant)
        if code := self.launch(
            getattr(library, f"hc_{variant.source}"), device, *map(ctypes.byref, arguments)
        ):
            reason = library.hc_error(code).decode()
            raise RuntimeError(f"{variant.source} ({variant.element}, {variant.size}): {reason}")

    def launch(self, function: Callable[..., int], device: torch.device, *arguments: object) -> int:
        """Calls a library's function; an error code, or 0."""
        with torch.cuda.device(device):
            stream = torch.cuda.current_stream(device).cuda_stream
            return function(*arguments, ctypes.c_void_p(stream))

    def load(self, variant: Variant) -> ctypes.CDLL:
        """The variant's library, compiled if need be."""
        if variant not in self._libraries:
            library = ctypes.CDLL(str(self.build(variant)))
            library.hc_error.restype = ctypes.c_char_p
            self._libraries[variant] = library
        return self._libraries[variant]

    def build(self, variant: Variant) -> Path:
        """The variant's file. Several processes may build at once. Raises BuildError when it fails."""
        source = SOURCES / f"{variant.source}.cuh"
        if not source.is_file():
            raise BuildError(f"no {source.name} in {SOURCES}: install hybridcache again")
        folder = cache_folder()
        path = folder / f"cuda-{variant.source}-{variant.element}-{variant.size}-{self._key}{self.suffix}"
        if path.exists():
            return path
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix="building-") as scratch:
                target = Path(scratch) / f"made{self.suffix}"
                self.compile(variant, source, target)
                target.replace(path)
        except OSError as error:
            raise BuildError(f"cannot write {folder}: {error}; set HYBRIDCACHE_CACHE to a folder") from error
        self.compiled += 1
        return path

    def compile(self, variant: Variant, source: Path, target: Path) -> None:
        """Makes the variant's file. Raises BuildError with the compiler's words."""
        compile_source((*self.command, "-shared"), variant, source, target)

    @functools.cached_property
    def _key(self) -> str:
        digest = hashlib.sha256("\0".join((*self.command, self.identity)).encode())
        for path in sorted(SOURCES.glob("*.cuh")):
            digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
        return digest.hexdigest()[:24]


def compile_source(command: Sequence[str], variant: Variant, source: Path, target: Path) -> str:
    """Compiles one variant and gives the compiler's messages; BuildError with them when it fails."""
    words = [*command, *variant.definitions, str(source), "-o", str(target)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{command[0]} fails on {source.name}:\n{(done.stderr or done.stdout)[-2000:]}")
    return done.stdout + done.stderr
