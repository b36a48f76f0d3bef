"""Measure this machine for the latency model: ``python -m hybridcache.experiments.measure_cpu``."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from hybridcache import conf
from hybridcache.hardware import HardwareProfile
from hybridcache.kernels.dispatch import build_ops
from hybridcache.latency import LatencyModel
from hybridcache.models.load import load_model
from hybridcache.models.presets import preset_folder
from hybridcache.runner import ModelRunner
from hybridcache.step import ScheduledSequence, StepBatch
from hybridcache.storage import Storage
from hybridcache.tokens import TokenIds

MODEL = "tiny-30m"
PROMPT_TOKENS = 512
DECODE_STEPS = 32
BLOCK_SIZE = 16  # tokens
MATRIX_SIZE = 1_024  # of the product that gives the peak
WEIGHT_BYTES = 1 << 28  # read for the bandwidth; more than a CPU's caches hold


def main() -> None:
    """Measure, write the profile, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(str(conf.__file__)).parent / "hardware" / "this_cpu.yaml"
    parser.add_argument("--output", type=Path, default=default, help="the file to write (hardware=this_cpu)")
    output: Path = parser.parse_args().output
    busy = os.getloadavg()[0]
    if busy > 0.5:
        print(f"warning: {busy:.1f} other processes want to run: measure on an idle machine", file=sys.stderr)
    text = as_yaml(measure())
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        print(text)
        print(f"error: {error}; name another file with --output", file=sys.stderr)
        sys.exit(2)
    print(f"{text}written to {output}")


def measure(model: str = MODEL, prompt_tokens: int = PROMPT_TOKENS) -> HardwareProfile:
    """The profile of this machine: peaks from one product and one read, the rest from steps of a small model.

    A prompt's step gives the part of the peak that is reached, a decoding step what it takes beyond reading.
    """
    peak = _product_flops_per_second()
    bandwidth = _read_bytes_per_second()
    bare = _profile(peak, bandwidth, 1.0, 0.0)
    loaded = load_model(preset_folder(model), ops=build_ops("cpu"))
    spec = loaded.spec
    budget_bytes = 8 * spec.checkpoint_bytes + 2 * prompt_tokens * spec.kv_bytes_per_token
    storage = Storage(spec, budget_bytes, BLOCK_SIZE)
    runner = ModelRunner(loaded.model, storage)
    tokens = np.random.default_rng(0).integers(0, spec.vocab_size, prompt_tokens).astype(np.uint32)
    prompt = _step(tokens, 0)
    prompt_seconds = _best(lambda: runner.execute(prompt), 5)
    # The state moves on with every step, so each decodes the token behind the one before.
    decodes = iter([_step(tokens[:1], prompt_tokens + i) for i in range(DECODE_STEPS)])
    decode_seconds = _best(lambda: runner.execute(next(decodes)), DECODE_STEPS)
    latency = LatencyModel(spec, bare)
    reached = latency.cost(prompt).flops / prompt_seconds / peak
    overhead = decode_seconds - latency.seconds(_step(tokens[:1], prompt_tokens))
    return _profile(peak, bandwidth, min(reached, 1.0), max(overhead, 0.0))


def as_yaml(profile: HardwareProfile) -> str:
    """The profile as a file of conf/hardware/."""
    return (
        "# This machine, as `python -m hybridcache.experiments.measure_cpu` found it; run that on yours.\n"
        f"name: {profile.name}\n"
        f"dtype: {profile.dtype}  # of weights and products\n"
        f"peak_flops: {{{profile.dtype}: {profile.peak_flops[profile.dtype]:.3e}}}  # FLOP/s of one product\n"
        f"bytes_per_second: {profile.bytes_per_second:.3e}  # of reading weights\n"
        f"compute_fraction: {profile.compute_fraction:.3f}  # of peak_flops that long prompts reach\n"
        f"memory_fraction: {profile.memory_fraction:.3f}  # of bytes_per_second: it was measured as reached\n"
        f"step_overhead_seconds: {profile.step_overhead_seconds:.3e}  # of every step\n"
        f'source: "{profile.source}"\n'
    )


def _profile(peak: float, bandwidth: float, compute_fraction: float, overhead: float) -> HardwareProfile:
    threads = torch.get_num_threads()
    source = f"measured with {threads} threads: float32 product, read of 256 MiB, steps of {MODEL}"
    return HardwareProfile(
        "this_cpu", "float32", {"float32": peak}, bandwidth, compute_fraction, 1.0, overhead, source
    )


def _product_flops_per_second() -> float:
    a = torch.ones(MATRIX_SIZE, MATRIX_SIZE)
    out = torch.empty_like(a)
    return 2 * MATRIX_SIZE**3 / _best(lambda: torch.mm(a, a, out=out), 20)


def _read_bytes_per_second() -> float:
    columns = 4_096
    weights = torch.ones(WEIGHT_BYTES // 4 // columns, columns)
    x, out = torch.ones(columns), torch.empty(len(weights))
    return WEIGHT_BYTES / _best(lambda: torch.mv(weights, x, out=out), 10)


def _step(tokens: TokenIds, start: int) -> StepBatch:
    blocks = np.arange(-(-(start + len(tokens)) // BLOCK_SIZE))
    return StepBatch([ScheduledSequence(tokens, start, 0, blocks)])


def _best(run: Callable[[], object], times: int) -> float:
    """Seconds of the fastest of so many runs, the one that other work disturbed least."""
    seconds = []
    for _ in range(times):
        start = perf_counter()
        run()
        seconds.append(perf_counter() - start)
    return min(seconds)


if __name__ == "__main__":
    main()
