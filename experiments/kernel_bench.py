"""Speed of the CPU kernels: ``python -m hybridcache.experiments.kernel_bench [--threads 1] [--tokens 2048]``.

Each kernel beside what torch offers for it, medians of one run, with the rates reached and those that this
machine reaches in a plain matrix product and a copy. With one thread, seconds are CPU seconds of the process,
which another program on the same core disturbs less; machines are shared: compare figures of one output.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridcache.kernels.cpu import CpuOps
from hybridcache.kernels.dispatch import build_ops
from hybridcache.kernels.linear import LinearMethod
from hybridcache.kernels.packed import PackedBatch

REPEATS = 7
BLOCK_SIZE = 16  # tokens


class Measured(NamedTuple):
    """One kernel."""

    name: str
    run: Callable[[], object]
    flops: float
    num_bytes: float
    """Read and written at least once."""
    torch_run: Callable[[], object] | None = None


def seconds(run: Callable[[], object], clock: Callable[[], float]) -> float:
    """Median over REPEATS, after one run that warms up."""
    run()
    taken = []
    for _ in range(REPEATS):
        start = clock()
        run()
        taken.append(clock() - start)
    return median(taken)


def batches(tokens: int) -> tuple[PackedBatch, PackedBatch]:
    """A prefill of one sequence in slot 0, and one token for each of 8 sequences."""
    blocks = list(range(-(-tokens // BLOCK_SIZE)))
    prefill = PackedBatch.build([tokens], slots=[0], block_tables=[blocks], block_size=BLOCK_SIZE)
    return prefill, PackedBatch.build([1] * 8, slots=list(range(8)), num_computed=[1] * 8)


def scans(ops: CpuOps, tokens: int) -> Iterator[Measured]:
    """Mamba-2 of 16 heads x 64, N = 64; Mamba-1 of 1,024 channels, N = 16; gated delta of 8 x 64 x 64."""
    prefill, decode = batches(tokens)
    heads, size = 16, 64
    x, dt = torch.randn(tokens, heads, size), torch.randn(tokens, heads)
    a, b, d = -torch.rand(heads), torch.randn(tokens, 1, size), torch.randn(heads)
    state = torch.zeros(8, heads, size, size)
    for name, n, batch in (("prefill", tokens, prefill), ("decode of 8", 8, decode)):
        run = partial(
            ops.mamba2_scan, x[:n], dt[:n], a, b[:n], b[:n], d, None, (0.0, float("inf")), state, batch
        )
        work = 5 * n * heads * size * size
        yield Measured(
            f"mamba2 {name}", run, work, _bytes(x[:n], x[:n]) + 2 * batch.num_sequences * _bytes(state[0])
        )
    channels, d_state = 1_024, 16
    x, a, b = torch.randn(tokens, channels), -torch.rand(channels, d_state), torch.randn(tokens, d_state)
    d = torch.randn(channels)
    state = torch.zeros(8, channels, d_state)
    for name, n, batch in (("prefill", tokens, prefill), ("decode of 8", 8, decode)):
        run = partial(ops.mamba1_scan, x[:n], x[:n], a, b[:n], b[:n], d, x[:n], d, state, batch)
        moved = _bytes(x[:n]) * 4 + 2 * batch.num_sequences * _bytes(state[0])
        yield Measured(f"mamba1 {name}", run, 6 * n * channels * d_state, moved)
    weight, past = torch.randn(channels, 4), torch.zeros(8, channels, 3)
    yield Measured(
        "convolution of 4 and silu",
        partial(ops.causal_conv1d, x, weight, d, past, prefill),
        8 * x.numel(),
        2 * _bytes(x),
        lambda: F.silu(F.conv1d(F.pad(x.T[None], (3, 0)), weight[:, None], d, groups=channels)),
    )
    heads = 8
    q, v = torch.randn(tokens, heads, size), torch.randn(tokens, heads, size)
    gate, beta = -torch.rand(tokens, heads), torch.rand(tokens, heads)
    run = partial(
        ops.gated_delta_scan, q, q, v, gate, beta, torch.zeros(1, heads, size, size), prefill, 0.125, True
    )
    yield Measured("gated delta prefill", run, 7 * tokens * heads * size * size, 4 * _bytes(q))


def attentions(ops: CpuOps, tokens: int) -> Iterator[Measured]:
    """8 query heads over all tokens."""
    prefill, _ = batches(tokens)
    table = [list(range(-(-tokens // BLOCK_SIZE)))]
    decode = PackedBatch.build([1], num_computed=[tokens - 1], block_tables=table, block_size=BLOCK_SIZE)
    for kv_heads, size in ((8, 64), (2, 64), (2, 128)):
        q, k, v = (torch.randn(tokens, n, size) for n in (8, kv_heads, kv_heads))
        k_cache, v_cache = (torch.zeros(prefill.max_block + 1, BLOCK_SIZE, kv_heads, size) for _ in range(2))
        ops.store_kv(k, v, k_cache, v_cache, prefill)
        queries, keys, values = (
            x.transpose(0, 1).repeat_interleave(8 // x.shape[1], 0)[None].contiguous() for x in (q, k, v)
        )
        for name, n, batch in (("prefill", tokens, prefill), ("decode", 1, decode)):
            yield Measured(
                f"attention 8/{kv_heads} x {size} {name}",
                partial(ops.paged_attention, q[tokens - n :], k_cache, v_cache, batch, size**-0.5),
                4 * batch.num_pairs * 8 * size,
                2 * _bytes(k) + 2 * _bytes(q[:n]),
                partial(
                    F.scaled_dot_product_attention,
                    queries[:, :, tokens - n :],
                    keys,
                    values,
                    is_causal=n > 1,
                ),
            )


def linears(tokens: int) -> Iterator[Measured]:
    """384 to 1,536: packed by oneDNN, and our own fixed-order product."""
    weight = torch.randn(1_536, 384)
    methods: tuple[LinearMethod, ...] = ("onednn", "fixed")
    for method in methods:
        linear = build_ops("cpu", linear=method).linear(weight)
        for rows in (1, 8, 64, tokens):
            x = torch.randn(rows, 384)
            yield Measured(
                f"linear {method} {rows} rows",
                partial(linear, x),
                2 * rows * weight.numel(),
                _bytes(weight, x) + 4 * rows * 1_536,
                partial(F.linear, x, weight),
            )


def row_work(ops: CpuOps, tokens: int) -> Iterator[Measured]:
    """Rows of 1,024."""
    x, y, weight = torch.randn(tokens, 1_024), torch.randn(tokens, 1_024), torch.randn(1_024)
    moved = 3 * _bytes(x)
    yield Measured("silu(gate) up", partial(ops.silu_mul, x, y), 5 * x.numel(), moved, lambda: F.silu(x) * y)
    yield Measured(
        "rms norm",
        partial(ops.rms_norm, x, weight, 1e-5),
        4 * x.numel(),
        2 * _bytes(x),
        partial(F.rms_norm, x, (1_024,), weight),
    )


def _bytes(*tensors: Tensor) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def machine(clock: Callable[[], float]) -> str:
    """What torch's own matrix product and a copy of 64 MB reach here."""
    a, source, target = torch.randn(1_024, 1_024), torch.randn(1 << 24), torch.empty(1 << 24)
    rate = 2 * 1_024**3 / seconds(lambda: a @ a, clock) / 1e9
    moved = 2 * _bytes(source) / seconds(lambda: target.copy_(source), clock) / 1e9
    return f"machine: {rate:.1f} GFLOP/s in a matrix product, {moved:.1f} GB/s in a copy"


def main() -> None:
    """Prints one line a kernel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=2_048)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = process_time if options.threads == 1 else perf_counter
    ops = build_ops("cpu")
    assert isinstance(ops, CpuOps)
    with torch.inference_mode():
        print(f"{options.tokens:,} tokens, {options.threads} threads; {machine(clock)}")
        print(f"{'kernel':32} {'ms':>9} {'torch ms':>9} {'torch/ours':>10} {'GFLOP/s':>8} {'GB/s':>7}")
        for measured in (
            *scans(ops, options.tokens),
            *attentions(ops, options.tokens),
            *linears(options.tokens),
            *row_work(ops, options.tokens),
        ):
            taken = seconds(measured.run, clock)
            other = seconds(measured.torch_run, clock) if measured.torch_run else None
            beside = f"{other * 1e3:9.2f} {other / taken:10.2f}" if other else f"{'':9} {'':10}"
            rates = f"{measured.flops / taken / 1e9:8.1f} {measured.num_bytes / taken / 1e9:7.1f}"
            print(f"{measured.name:32} {taken * 1e3:9.2f} {beside} {rates}")


if __name__ == "__main__":
    main()
