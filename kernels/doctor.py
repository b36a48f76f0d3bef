"""What `hybridcache doctor` prints: where the kernels run, with what, and how exactly."""

import importlib.metadata
import platform
import warnings
from pathlib import Path

import torch

from hybridcache.kernels.build import BuildError
from hybridcache.kernels.cpu import CpuOps
from hybridcache.kernels.cuda.build import find_nvcc, nvcc_release
from hybridcache.kernels.cuda.nvrtc import find_nvrtc
from hybridcache.kernels.dispatch import BACKENDS, build_ops, describe
from hybridcache.kernels.linear import TEST_ROWS
from hybridcache.kernels.ops import Ops

PACKAGES = ("hybridcache", "torch", "triton", "transformers", "safetensors", "tokenizers", "numpy")
TRIED_SHAPES = ((256, 128), (1_024, 2_048), (1, 384))
"""[out, in] of the weights that the linears' self-test is shown on; a model tries its own when it loads."""


def report(backend: str | None = None, device: str = "cpu") -> str:
    """One line a fact; compiles the kernels if they are not there. ValueError for an unknown backend."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            facts = _facts(build_ops(backend, device=device))
        except BuildError as error:
            facts = {"kernels": f"none: {error}"}
    machine = {"device": _device(), "gpus": _gpus(), "python": platform.python_version()}
    lines = {**machine, **_versions(), **facts}
    width = max(map(len, lines))
    notes = [f"note: {warning.message}" for warning in caught]
    return "\n".join([*(f"{name:{width}}  {value}" for name, value in lines.items()), *notes])


def _facts(ops: Ops) -> dict[str, str]:
    if not isinstance(ops, CpuOps):
        linears = ops.linear(torch.ones(8, 8)).method
        facts = {"kernels": f"{describe(ops)}: {BACKENDS[ops.name]}", "compiler": "none"}
        return {**facts, "linears": linears, "numerics": ops.numerics}
    library = ops.library
    methods = {shape: ops.linear(torch.ones(shape)).method for shape in TRIED_SHAPES}
    tried = ", ".join(f"{method} at {out} x {width}" for (out, width), method in methods.items())
    return {
        "kernels": f"{ops.name}: {library.path} ({'compiled now' if library.compiled_now else 'found'})",
        "compiler": library.compiler,
        "linears": f"{tried}; rows compared at {', '.join(map(str, TEST_ROWS))} rows",
        "numerics": ops.numerics,
    }


def _device() -> str:
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass  # not Linux: the name above stands
    capability = torch.backends.cpu.get_cpu_capability()
    return f"cpu: {name}, {capability}, {torch.get_num_threads()} threads"


def _gpus() -> str:
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return ", ".join(names) or "none that torch sees"


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    found["nvcc"] = _nvcc()
    return found


def _nvcc() -> str:
    """What the backend cuda would be compiled with."""
    nvcc = find_nvcc()
    try:
        if nvcc:
            return f"{nvcc_release(nvcc)} ({nvcc})"
        return (
            f"none on PATH, in CUDA_HOME or HYBRIDCACHE_NVCC; NVRTC instead: {find_nvrtc() or 'none either'}"
        )
    except BuildError as error:
        return str(error)
