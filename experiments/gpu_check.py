"""Checks and times the GPU kernels: ``python -m hybridcache.experiments.gpu_check [--out FILE.json]``.

Every section is on its own: what one raises is its result, and the next one runs; in a new process where the
device has stopped answering, where a section took its process with it, or took too long. One that would begin
after ``--budget-s`` seconds is left out and says so. Results go to one JSON file; a table ends the output.
``--tiny`` takes small dimensions and few repetitions, for trying the script itself, also without a GPU
(``--device cpu --backend triton`` with TRITON_INTERPRET=1 in the environment).
"""

import argparse
import faulthandler
import importlib.util
import json
import platform
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType

import torch

from hybridcache.experiments.gpu_aims import aims
from hybridcache.experiments.gpu_bench import REAL, TINY, Bench, Row
from hybridcache.experiments.gpu_model import model
from hybridcache.experiments.gpu_process import RUNNING, Found, in_processes
from hybridcache.experiments.gpu_sections import (
    ceilings,
    copies,
    cuda,
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
        "cuda": cuda,
    }
)
SECTION_LIMIT_S = 100
"""Seconds after which a section's process ends itself: a kernel may hang."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the sections asked for; 1 when a check failed or a section raised. A missed aim is no failure."""
    parser = argparse.ArgumentParser(description="Check and time the GPU kernels.")
    parser.add_argument(
        "--device", default="cuda", help="cuda (default), cuda:N, or cpu under the interpreter"
    )
    parser.add_argument("--backend", default=None, help="triton or cuda; default: as a worker chooses")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--budget-s", type=float, default=300.0, help="no section begins later (default 300)")
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="default %(default)s")
    parser.add_argument("--tiny", action="store_true", help="small dimensions, one repetition")
    parser.add_argument("--here", action="store_true", help="in this process, as long as the device answers")
    options = parser.parse_args(arguments)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(
            "torch sees no CUDA device; --tiny --device cpu tries the script in Triton's interpreter"
        )
    found = _here(parser, options) if options.here else _in_processes(options)
    found["rows"] += [row._asdict() for row in aims([Row(**row) for row in found["rows"]])]
    options.out.write_text(json.dumps(found, indent=1))
    rows, sections = [Row(**row) for row in found["rows"]], found["sections"]
    print("\n".join(table(rows, sections)))
    failed = any(status not in ("done", "left out") for status in sections.values())
    return int(failed or any(row.ok is False for row in rows if row.section != "aims"))


def _in_processes(options: argparse.Namespace) -> Found:
    command = [sys.executable, "-m", "hybridcache.experiments.gpu_check"]
    command += ["--here", "--device", options.device]
    command += ["--tiny"] if options.tiny else []
    command += ["--backend", options.backend] if options.backend else []
    return in_processes(command, options.sections, options.out.with_suffix(".part.json"), options.budget_s)


def _here(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Found:
    """All sections, or those up to one that leaves the device silent; the file says how far it is."""
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    try:
        ops = build_ops(options.backend, device=options.device)
    except ValueError as error:
        parser.error(str(error))
    # The interpreter computes bfloat16 wrongly.
    dtype = torch.bfloat16 if ops.device.type == "cuda" else torch.float32
    bench = Bench(ops, TINY if options.tiny else REAL, dtype, 1 if options.tiny else 7)
    with _on(ops.device):
        return _sections(bench, options)


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Where graphs are captured; in the interpreter, products whose rows are summed alike, as on a GPU."""
    if device.type == "cuda":
        return torch.cuda.device(device)
    if importlib.util.find_spec("triton") is None:
        return nullcontext()
    from hybridcache.experiments.interpreted_product import rows_alike

    return rows_alike()


def _sections(bench: Bench, options: argparse.Namespace) -> Found:
    started = time.perf_counter()
    sections: dict[str, str] = {}
    for name in options.sections:
        if time.perf_counter() - started > options.budget_s:
            sections[name] = "left out"
            continue
        sections[name] = RUNNING
        _write(options.out, bench, sections)
        print(f"{name} ...", file=sys.stderr, flush=True)
        sections[name] = _run(name, bench)
        _write(options.out, bench, sections)
        if not _answers(bench):
            break
    return _write(options.out, bench, sections)


def _run(name: str, bench: Bench) -> str:
    """What became of a section: done, or the traceback of what it raised."""
    if bench.device.type == "cuda":
        faulthandler.dump_traceback_later(SECTION_LIMIT_S, exit=True)
    try:
        SECTIONS[name](bench)
        bench.wait()
    except Exception:
        return traceback.format_exc()
    finally:
        if bench.device.type == "cuda":
            faulthandler.cancel_dump_traceback_later()
    return "done"


def _answers(bench: Bench) -> bool:
    """Whether the device still does what it is told; frees what the last section left."""
    if bench.device.type == "cuda":
        try:
            bench.wait()
            torch.cuda.empty_cache()
        except RuntimeError:
            return False
    return True


def table(rows: Sequence[Row], sections: Mapping[str, str]) -> list[str]:
    """The results as lines of at most 110 characters, failures last."""
    lines = [f"{'section':10} {'name':52} {'value':>10} {'unit':9} {'floor':>9}  verdict"]
    for row in rows:
        value = "" if row.value is None else f"{row.value:.4g}"
        floor = "" if row.floor is None else f"{row.floor:.3g}"
        ratio = f"{row.value / row.floor:.2f}x" if row.value is not None and row.floor else ""
        bad = "missed" if row.section == "aims" else "WRONG"
        verdict = {None: ratio, True: "ok", False: bad}[row.ok]
        if row.note:
            verdict = f"{verdict} {row.note}".strip()[: 110 - 96]
        lines.append(f"{row.section:10} {row.name:52} {value:>10} {row.unit:9} {floor:>9}  {verdict}")
    for name, status in sections.items():
        if status != "done":
            lines.append(f"{name}: {status.strip().splitlines()[-1]}")
    return lines


def _write(path: Path, bench: Bench, sections: Mapping[str, str]) -> Found:
    """Everything so far, also to the file: a process that ends there leaves it."""
    found: Found = {
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
    return found


if __name__ == "__main__":
    raise SystemExit(main())
