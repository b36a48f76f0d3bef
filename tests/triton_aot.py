"""Compiles every Triton kernel as the backend launches it, for GPUs that need not be there.

A script: run without TRITON_INTERPRET it prints a JSON list, one entry a kernel, launch and target. Launches
are taken down instead of run, so what is compiled is what a GPU would get.
"""

import importlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")
TYPES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.bool: "*i1",
}


class Launch(NamedTuple):
    """One launch: its kernel, the types of its arguments, what is constant, how it is compiled."""

    kernel: Any
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    divisible: tuple[str, ...]
    """Arguments that are multiples of 16; of a tensor, its address."""
    options: tuple[tuple[str, Any], ...]


def taken_down(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch:
    options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
    values = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    assert set(values) == set(kernel.arg_names), (kernel.__name__, list(values))
    signature, constants, divisible = {}, {}, []
    for parameter in kernel.params:
        name, value = parameter.name, values[parameter.name]
        own = not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (own and type(value) is int and value == 1):
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name] = TYPES[value.dtype]
            if value.data_ptr() % 16 == 0:
                divisible.append(name)
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32" if value < 2**31 else "i64"
            if own and value % 16 == 0:
                divisible.append(name)
    return Launch(
        kernel,
        tuple(signature.items()),
        tuple(constants.items()),
        tuple(divisible),
        tuple(options.items()),
    )


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """Launches inside are taken down, each distinct one once, and not run."""
    found: list[Launch] = []

    def run(kernel: Any, *args: Any, grid: object, warmup: bool, **kwargs: Any) -> None:
        launch = taken_down(kernel, args, kwargs)
        if launch not in found:
            found.append(launch)

    before, JITFunction.run = JITFunction.run, run
    try:
        yield found
    finally:
        JITFunction.run = before


def compiled(launch: Launch, capability: int) -> dict[str, Any]:
    """What became of a launch on sm_<capability>."""
    names = list(launch.kernel.arg_names)
    source = ASTSource(
        fn=launch.kernel,
        signature=dict(launch.signature),
        constexprs={(names.index(name),): value for name, value in launch.constants},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in launch.divisible},
    )
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(launch.options))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        told = subprocess.run(
            [TOOLS / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True, check=True
        )
    usage = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", told.stdout + told.stderr)
    assert usage, told
    products = re.findall(r"wgmma\.mma_async|mma\.sync|tcgen05\.mma", made.asm["ptx"])
    return {
        "kernel": launch.kernel.__name__,
        "constants": {name: value for name, value in launch.constants if isinstance(value, int)},
        "types": sorted({kind for _, kind in launch.signature if kind.startswith("*")} - {"*i64"}),
        "capability": capability,
        "registers": int(usage[1]),
        "stack_bytes": int(usage[2]),
        "local_bytes": int(usage[3]),
        "shared_bytes": made.metadata.shared,
        "products": sorted(set(products)),
    }


def main(function: str, capabilities: list[int]) -> None:
    """Prints the results for what a function of triton_launches.py launches on each target."""
    results = []
    for capability in capabilities:
        with recording() as launches:
            getattr(importlib.import_module("tests.triton_launches"), function)(capability)
        results += [compiled(launch, capability) for launch in launches]
    json.dump(results, sys.stdout, indent=1)


if __name__ == "__main__":
    main(sys.argv[1], [int(word) for word in sys.argv[2:]])
