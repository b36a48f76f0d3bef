"""Loading a checkpoint of random weights beside reading its file into memory, as JSON.

``python -m hybridcache.experiments.load_bench [--gigabytes 1]``: Bamba's form, float32, in a temporary
folder. Each has a process of its own, whose peak memory beyond what it had before is compared with the
weights. They take turns; cold: the file's pages have been dropped first, warm: they are in memory.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from hybridcache.models.presets import write_checkpoint

D_MODEL, D_FF, VOCABULARY = 1_536, 4_096, 4_000  # a vocabulary below the tokenizer's: the folder has none
LAYER_BYTES = 4 * 33_000_000  # about

START = """
import json, sys, time
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
def done(start, before):
    print(json.dumps({"seconds": time.perf_counter() - start, "peak_bytes": peak() - before}))
"""
READ = """
before, start = peak(), time.perf_counter()
with open(sys.argv[1] + "/model.safetensors", "rb", buffering=0) as file:
    content = file.read()
done(start, before)
"""
LOAD = """
import torch
from hybridcache.kernels.dispatch import build_ops
from hybridcache.models.load import load_model
torch.set_num_threads(int(sys.argv[2]))
ops = build_ops("cpu")
before, start = peak(), time.perf_counter()
model = load_model(sys.argv[1], ops=ops)
done(start, before)
"""


def drop_pages(file: Path) -> None:
    """Have the system forget the file's pages; they are on the disk by then."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def run(program: str, folder: Path, threads: int) -> dict[str, float]:
    """Seconds and peak bytes of a program in a new process."""
    command = [sys.executable, "-c", START + program, str(folder), str(threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def measure(folder: Path, threads: int, repeats: int) -> dict[str, object]:
    """Medians of `repeats` turns."""
    file = folder / "model.safetensors"
    weights = file.stat().st_size
    figures: dict[str, object] = {"threads": threads, "weight_bytes": weights}
    peaks: list[float] = []
    for state in ("warm", "cold"):
        reads: list[float] = []
        loads: list[float] = []
        run(READ, folder, threads)
        for _ in range(repeats):
            for program, seconds in ((READ, reads), (LOAD, loads)):
                if state == "cold":
                    drop_pages(file)
                one = run(program, folder, threads)
                seconds.append(one["seconds"])
                if program is LOAD:
                    peaks.append(one["peak_bytes"])
        figures[state] = {
            "read_seconds": round(median(reads), 3),
            "load_seconds": round(median(loads), 3),
            "ratio": round(median(loads) / median(reads), 2),
        }
    return figures | {"peak_of_weights": round(max(peaks) / weights, 3)}


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of weights, about")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    layers = max(2, round(options.gigabytes * 1e9 / LAYER_BYTES))
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_checkpoint(
            "bamba",
            Path(scratch) / "random",
            vocab_size=VOCABULARY,
            hidden_size=D_MODEL,
            intermediate_size=D_FF,
            num_hidden_layers=layers,
            attn_layer_indices=[1],
            num_attention_heads=16,
            num_key_value_heads=4,
            mamba_n_heads=48,
            mamba_d_head=64,
            mamba_d_state=64,
        )
        print(json.dumps(measure(folder, options.threads, options.repeats), indent=2))


if __name__ == "__main__":
    main()
