"""Which backend runs the operations."""

import importlib.util
import os
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, cast

import torch

from hybridcache.kernels.build import BuildError, build_library
from hybridcache.kernels.cpu import CpuOps
from hybridcache.kernels.linear import LinearMethod
from hybridcache.kernels.ops import Ops
from hybridcache.kernels.reference import ReferenceOps

BACKENDS: Mapping[str, str] = MappingProxyType(
    {
        "reference": "plain torch on any device; tolerant numerics",
        "cpu": "C++ kernels compiled on first use; exact numerics",
        "triton": "Triton kernels on an NVIDIA GPU; exact numerics with linear=invariant",
        "mamba_ssm": "Triton kernels, decoding by mamba-ssm and causal-conv1d; linear=invariant forgoes them",
        "cuda": "Triton kernels, recurrent layers in CUDA compiled on first use",
    }
)
AnyLinearMethod = LinearMethod | Literal["torch", "invariant"]
"""Of the C++ kernels, or of the GPU: see CpuOps and TritonOps."""


def build_ops(
    backend: str | None = None, *, device: str | torch.device = "cpu", linear: AnyLinearMethod = "auto"
) -> Ops:
    """The backend of this name on a device; its `name`, `numerics` and `device` say what was chosen.

    None asks HYBRIDCACHE_BACKEND, and "auto" (the default) takes `triton` on a GPU and `cpu` on a CPU, or
    `reference` with a warning where that is not installed or cannot be compiled. ValueError for an unknown
    name, a device that is not there, or a backend that does not run on it; BuildError when `cpu` or `cuda` is
    asked for and cannot be compiled.
    """
    name = backend or os.environ.get("HYBRIDCACHE_BACKEND") or "auto"
    if name != "auto" and name not in BACKENDS:
        raise ValueError(f"backend is {name!r}; use auto, {', '.join(BACKENDS)}")
    place = _device(device)
    if name == "reference":
        return ReferenceOps(place)
    return _cpu_ops(name, place, linear) if _is_for_cpu(name, place) else _gpu_ops(name, place, linear)


def describe(ops: Ops) -> str:
    """Backend, device and numerics in a line."""
    where = str(ops.device)
    if ops.device.type == "cuda":
        where += f" ({torch.cuda.get_device_name(ops.device)})"
    return f"{ops.name} on {where}, {ops.numerics} numerics"


def _device(device: str | torch.device) -> torch.device:
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device is {device!r}; use cpu, cuda or cuda:N") from error
    if place.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {str(place)!r}; use cpu, cuda or cuda:N")
    if place.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device is {str(place)!r}, and torch sees no CUDA device; use device=cpu")
        count = torch.cuda.device_count()
        if place.index is not None and place.index >= count:
            raise ValueError(f"device is {str(place)!r}; torch sees {count}, counted from 0")
        # Tensors name their device by number; so must what is compared with them.
        place = torch.device("cuda", torch.cuda.current_device() if place.index is None else place.index)
    return place


def _is_for_cpu(name: str, place: torch.device) -> bool:
    if name == "auto":
        return place.type == "cpu"
    if name == "cpu" and place.type != "cpu":
        raise ValueError(f"backend cpu does not run on {place}; use backend=auto, triton or reference")
    return name == "cpu"


def _cpu_ops(name: str, place: torch.device, linear: AnyLinearMethod) -> Ops:
    try:
        return CpuOps(build_library(), cast(LinearMethod, linear))
    except BuildError as error:
        if name == "cpu":
            raise
        warnings.warn(f"backend reference instead of cpu, slower and tolerant: {error}", stacklevel=3)
        return ReferenceOps(place)


def _gpu_ops(name: str, place: torch.device, linear: AnyLinearMethod) -> Ops:
    if importlib.util.find_spec("triton") is None:
        if name != "auto":
            raise ValueError(f"backend {name} needs the package triton; pip install triton")
        warnings.warn("backend reference instead of triton, much slower: triton is missing", stacklevel=3)
        return ReferenceOps(place)
    if name == "cuda" and place.type == "cpu":
        raise ValueError(
            "backend cuda on a CPU: its kernels need an NVIDIA GPU; use device=cuda, or backend=cpu"
        )
    # Only where a GPU is used, or imitated, is Triton imported.
    from hybridcache.kernels.triton.ops import TritonOps, interpreted

    if place.type == "cpu" and not interpreted():
        raise ValueError(
            f"backend {name} on a CPU: Triton compiles for GPUs; TRITON_INTERPRET=1 in the environment runs "
            "its slow interpreter instead"
        )
    if name == "cuda":
        from hybridcache.kernels.cuda.nvrtc import find_kernels
        from hybridcache.kernels.cuda.ops import CudaOps

        return CudaOps(place, linear, find_kernels(place))
    if name == "mamba_ssm":
        from hybridcache.kernels.mamba_ssm_ops import MambaSsmOps

        try:
            return MambaSsmOps(place, linear)
        except ImportError as error:
            raise ValueError(str(error)) from error
    return TritonOps(place, linear)
