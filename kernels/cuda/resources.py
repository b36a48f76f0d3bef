"""What a compiled CUDA kernel uses of a multiprocessor, as ptxas reports it."""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hybridcache.kernels.cuda.build import SOURCES, Variant, compile_source, nvcc_command

REPORT = re.compile(
    r"entry function '\w+' for 'sm_(?P<architecture>\d+)a?'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
    r".*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)


class Resources(NamedTuple):
    """Of one kernel, for one architecture."""

    architecture: int
    """Compute capability times ten."""
    registers: int
    """Of a thread."""
    stack: int
    """Bytes of a thread, spills included."""
    spills: int
    """Bytes that a thread stores and loads for want of registers."""


def resources(nvcc: str, variant: Variant, architectures: Sequence[int]) -> list[Resources]:
    """Compiles the variant for each architecture; nothing is kept. BuildError when that fails."""
    command = (*nvcc_command(nvcc, architectures), "-Xptxas=-v", "-fatbin")
    with tempfile.TemporaryDirectory() as scratch:
        source, target = SOURCES / f"{variant.source}.cuh", Path(scratch) / "kernel.fatbin"
        report = compile_source(command, variant, source, target)
    found = []
    for match in REPORT.finditer(report):
        of = {name: int(value) for name, value in match.groupdict().items()}
        found.append(Resources(of["architecture"], of["registers"], of["stack"], of["stores"] + of["loads"]))
    assert {r.architecture for r in found} == set(architectures), report
    return sorted(found)
