"""Checks and times the GPU kernels: ``python -m hybridcache.experiments.gpu_check [--out FILE.json]``.

Every section is on its own: what one raises is its result, and the next one runs. A section that would begin
after ``--budget-s`` seconds is left out and says so. Results go to one JSON file; a table ends the output.
``--tiny`` takes small dimensions and few repetitions, for trying the script itself, also without a GPU
(``--device cpu`` with TRITON_INTERPRET=1 in the environment).
"""

import argparse
import importlib.util
import json
import platform
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import torch

from hybridcache.experiments.gpu_bench import REAL, TINY, Bench, Row
from hybridcache.experiments.gpu_model import model
from hybridcache.experiments.gpu_sections import (
    ceilings,
    copies,
    decode,
    exactness,
    linear,
    numerics,
    prefill,
)
from hybridcache.kernels.dispatch import build_ops, describe

SECTIONS: Mapping[str, Callable[[Bench], None]] = MappingProxyType(
    {
        "ceilings": ceilings,
        "numerics": numerics,
        "exactness": exactness,
        "prefill": prefill,
        "decode": decode,
        "copies": copies,
        "linear": linear,
        "model": model,
    }
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the sections asked for; 1 when a check failed or a section raised, else 0."""
    parser = argparse.ArgumentParser(description="Check and time the GPU kernels.")
    parser.add_argument(
        "--device", default="cuda", help="cuda (default), cuda:N, or cpu under the interpreter"
    )
    parser.add_argument("--backend", default=None, help="triton or cuda; default: as a worker chooses")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--budget-s", type=float, default=300.0, help="no section begins later (default 300)")
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="default %(default)s")
    parser.add_argument("--tiny", action="store_true", help="small dimensions, one repetition")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    try:
        ops = build_ops(options.backend, device=options.device)
    except ValueError as error:
        parser.error(str(error))
    # The interpreter computes bfloat16 wrongly.
    dtype = torch.bfloat16 if ops.device.type == "cuda" else torch.float32
    bench = Bench(ops, TINY if options.tiny else REAL, dtype, 1 if options.tiny else 7)
    sections = {}
    for name in options.sections:
        sections[name] = _run(name, bench, started, options.budget_s)
        _write(options.out, bench, sections)  # so that a run that is stopped leaves what it has
    print("\n".join(table(bench.rows, sections)))
    failed = any(status not in ("done", "left out") for status in sections.values())
    return int(failed or any(row.ok is False for row in bench.rows))


def _run(name: str, bench: Bench, started: float, budget_s: float) -> str:
    """What became of a section: done, left out, or the traceback of what it raised."""
    if time.perf_counter() - started > budget_s:
        return "left out"
    print(f"{name} ...", flush=True)
    try:
        SECTIONS[name](bench)
        bench.wait()
    except Exception:
        return traceback.format_exc()
    finally:
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()
    return "done"


def table(rows: Sequence[Row], sections: Mapping[str, str]) -> list[str]:
    """The results as lines of at most 110 characters, failures last."""
    lines = [f"{'section':10} {'name':52} {'value':>10} {'unit':9} {'floor':>9}  verdict"]
    for row in rows:
        value = "" if row.value is None else f"{row.value:.4g}"
        floor = "" if row.floor is None else f"{row.floor:.3g}"
        ratio = f"{row.value / row.floor:.2f}x" if row.value is not None and row.floor else ""
        verdict = {None: ratio, True: "ok", False: "WRONG"}[row.ok]
        lines.append(f"{row.section:10} {row.name:52} {value:>10} {row.unit:9} {floor:>9}  {verdict}")
    for name, status in sections.items():
        if status != "done":
            lines.append(f"{name}: {status.strip().splitlines()[-1]}")
    return lines


def _write(path: Path, bench: Bench, sections: Mapping[str, str]) -> None:
    found = {
        "kernels": describe(bench.ops),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "packages": {
            name: importlib.util.find_spec(name) is not None
            for name in ("triton", "mamba_ssm", "causal_conv1d")
        },
        "sizes": bench.sizes._asdict(),
        "dtype": str(bench.dtype),
        "sections": dict(sections),
        "rows": [row._asdict() for row in bench.rows],
    }
    path.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    raise SystemExit(main())
