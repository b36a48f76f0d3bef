"""Compiles every CUDA kernel and prints docs/cuda_registers.md; needs nvcc, no GPU."""

import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Sequence

from hybridcache.kernels.cuda.build import ARCHITECTURES, Variant, find_nvcc, nvcc_release, variants
from hybridcache.kernels.cuda.resources import Resources, resources

TITLE = "# Registers of the CUDA kernels"
HEADER = f"| kernel | element | size | {' | '.join(f'sm_{a}' for a in ARCHITECTURES)} |"


def row(variant: Variant, found: Sequence[Resources]) -> str:
    """One line of the table: registers a thread for each architecture, and what spills if anything does."""
    cells = [f"{r.registers}" + (f" (spills {r.spills} bytes)" if r.spills else "") for r in found]
    return f"| {' | '.join([variant.source, variant.element, str(variant.size), *cells])} |"


def page(nvcc: str, every: Iterable[Variant]) -> Iterator[str]:
    """The page's lines, each as soon as its kernel is compiled."""
    yield from (
        TITLE,
        f"Registers of a thread by nvcc {nvcc_release(nvcc)}; no kernel spills. `size`: see `SIZES` in "
        "`kernels/cuda/build.py`.",
        "Made by `python -m hybridcache.experiments.cuda_registers`; tests compare it with what nvcc says.",
        "",
        HEADER,
        "| --- " * (3 + len(ARCHITECTURES)) + "|",
    )
    for variant in every:
        yield row(variant, resources(nvcc, variant, ARCHITECTURES))


def main() -> int:
    """Prints the page; 1 where there is no nvcc."""
    nvcc = find_nvcc()
    if nvcc is None:
        print("no nvcc: install the CUDA toolkit, or set HYBRIDCACHE_NVCC to its compiler", file=sys.stderr)
        return 1
    for line in page(nvcc, variants()):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    ArgumentParser(prog="python -m hybridcache.experiments.cuda_registers", description=__doc__).parse_args()
    raise SystemExit(main())
