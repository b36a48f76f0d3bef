"""Which backend runs the operations."""

import os
import warnings
from collections.abc import Mapping
from types import MappingProxyType

from hybridcache.kernels.build import BuildError, build_library
from hybridcache.kernels.cpu import CpuOps
from hybridcache.kernels.linear import LinearMethod
from hybridcache.kernels.ops import Ops
from hybridcache.kernels.reference import ReferenceOps

BACKENDS: Mapping[str, str] = MappingProxyType(
    {
        "reference": "plain torch; tolerant numerics",
        "cpu": "C++ kernels compiled on first use; exact numerics",
    }
)


def build_ops(backend: str | None = None, *, linear: LinearMethod = "auto") -> Ops:
    """The backend of this name; its `name` and `numerics` say what was chosen.

    None asks HYBRIDCACHE_BACKEND, and "auto" (the default) takes `cpu` where it can be compiled, else
    `reference` with a warning. ValueError for an unknown name; BuildError when `cpu` is asked for and
    cannot be compiled.
    """
    name = backend or os.environ.get("HYBRIDCACHE_BACKEND") or "auto"
    if name != "auto" and name not in BACKENDS:
        raise ValueError(f"backend is {name!r}; use auto, {', '.join(BACKENDS)}")
    if name == "reference":
        return ReferenceOps()
    try:
        return CpuOps(build_library(), linear)
    except BuildError as error:
        if name == "cpu":
            raise
        warnings.warn(f"backend reference instead of cpu, slower and tolerant: {error}", stacklevel=2)
        return ReferenceOps()
