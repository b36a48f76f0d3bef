"""The sections of the GPU check that measure single kernels."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from hybridcache.copier import Copier, TorchCopier
from hybridcache.experiments.gpu_bench import BLOCK_SIZE, Bench, Row
from hybridcache.experiments.gpu_layers import LayerCall, attention, calls
from hybridcache.experiments.gpu_oracles import NAMES, oracle
from hybridcache.kernels.cuda.copies import CudaCopies
from hybridcache.kernels.cuda.nvrtc import find_kernels
from hybridcache.kernels.dispatch import build_ops
from hybridcache.kernels.reference import ReferenceOps
from hybridcache.kernels.state_int8 import pack_states, unpack_states


def ceilings(bench: Bench) -> None:
    """Bytes and FLOPs a second that a copy and a matrix product reach here."""
    s = bench.sizes
    source = torch.empty(s.copied_bytes, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    bench.bytes_per_s = 2 * s.copied_bytes / bench.seconds(lambda: target.copy_(source))
    left, right = bench.randn(s.matrix, s.matrix), bench.randn(s.matrix, s.matrix)
    bench.flops_per_s = 2 * s.matrix**3 / bench.seconds(lambda: left @ right)
    bench.rows.append(Row("ceilings", "copy", bench.bytes_per_s / 1e9, "GB/s"))
    bench.rows.append(Row("ceilings", f"product in {bench.dtype}", bench.flops_per_s / 1e12, "TFLOP/s"))


def numerics(bench: Bench) -> None:
    """Every kernel against the plain twin in float64: a prefill with stored states, a chunk, a token.

    As it is chosen, and as linear=invariant does; and a prefill against others' kernels, where installed.
    """
    tokens = bench.sizes.checked_tokens
    limit = 6 * torch.finfo(bench.dtype).eps
    third = tokens // 3
    lengths, before = [third, tokens - third - 1, 1], [0, 0, 0]
    emits = [[(1, 3), (third, 4)], [], [(1, 5)]]
    invariant = build_ops(bench.ops.name, device=bench.device, linear="invariant")
    for ops, how in ((bench.ops, ""), (invariant, ", invariant")):
        for layer in [*calls(bench, tokens, 8), attention(bench, tokens, 3 * tokens + 3 * BLOCK_SIZE)]:
            with bench.attempt("numerics", name := layer.name + how):
                paged = layer.name == "attention"
                batch = bench.batch(lengths, before, None if paged else emits)
                twin = ReferenceOps(bench.device)
                wide = tuple(x.double() for x in layer.inputs)
                states = tuple(state.double() for state in layer.states)
                truth = layer.run(twin, wide, tuple(w.double() for w in layer.weights), states, batch)
                out = layer.apply(ops, batch)
                pairs = [(out, truth), *([] if paged else zip(layer.states, states, strict=True))]
                error = max(_error(actual, expected) for actual, expected in pairs)
                bench.rows.append(Row("numerics", name, error, "relative", limit, error <= limit))
    for layer in [*calls(bench, tokens, 1), attention(bench, tokens, tokens)]:
        if layer.name in NAMES:
            # Theirs are rounded as ours are.
            with bench.attempt("numerics", name := f"{layer.name}, {NAMES[layer.name]}", ours=False):
                theirs = oracle(layer)
                truth = theirs.rows(theirs.run()).double()
                error = _error(layer.apply(bench.ops, bench.batch([tokens])), truth)
                bench.rows.append(Row("numerics", name, error, "relative", 2 * limit, error <= 2 * limit))


def exactness(bench: Bench) -> None:
    """Cold against resumed, to the bit: at a multiple of the chunks, and anywhere with linear=invariant."""
    tokens = bench.sizes.checked_tokens
    invariant = build_ops(bench.ops.name, device=bench.device, linear="invariant")
    for ops, cut in ((bench.ops, tokens // 128 * 128), (invariant, tokens // 3)):
        if not cut:
            continue
        for layer in [*calls(bench, tokens, 2), attention(bench, tokens, tokens)]:
            how = "invariant" if ops is invariant else "by chunks"
            with bench.attempt("exactness", name := f"{layer.name} {how}, cut at {cut}"):
                whole = layer.apply(ops, bench.batch([tokens])).clone()
                parts = [
                    layer.run(ops, tuple(x[a:b] for x in layer.inputs), layer.weights, layer.states, batch)
                    for a, b in ((0, cut), (cut, tokens))
                    for batch in [bench.batch([b - a], [a])]
                ]
                same = torch.equal(torch.cat(parts), whole)
                bench.rows.append(Row("exactness", name, None, "bits", ok=same))


def cuda(bench: Bench) -> None:
    """Numerics and exactness of the backend `cuda` too, where it can be compiled; --backend cuda times it."""
    if bench.ops.name == "cuda":
        return
    with bench.attempt("cuda", "backend cuda", ours=False):
        other = replace(bench, ops=build_ops("cuda", device=bench.device), rows=[])
        numerics(other)
        exactness(other)
        bench.rows += [row._replace(section="cuda", name=f"{row.section}, {row.name}") for row in other.rows]


def prefill(bench: Bench) -> None:
    """One long prompt; recurrent layers also with states stored on the way."""
    tokens = bench.sizes.tokens
    for layer in calls(bench, tokens, 1 + max(bench.sizes.checkpoints)):
        for count in bench.sizes.checkpoints:
            emits = [((i + 1) * tokens // (count + 1), i + 1) for i in range(count)]
            batch = bench.batch([tokens], emits=[emits])
            moved = tokens * layer.row_bytes + (count + 1) * layer.state_bytes / 2
            bench.timed(
                "prefill",
                f"{layer.name}, {count} checkpoints",
                partial(layer.apply, bench.ops, batch),
                tokens * layer.flops_per_token,
                moved,
            )
        _theirs(bench, layer, tokens * layer.flops_per_token)
    layer, s = attention(bench, tokens, tokens), bench.sizes
    batch = bench.batch([tokens])
    flops = 4 * batch.num_pairs * s.heads * s.head_dim
    bench.timed(
        "prefill", "attention", lambda: layer.apply(bench.ops, batch), flops, tokens * layer.row_bytes
    )
    _theirs(bench, layer, flops)


def decode(bench: Bench) -> None:
    """One token for each sequence of a batch."""
    s = bench.sizes
    for count in s.batches:
        batch = bench.batch([1] * count, [s.context] * count)
        for layer in calls(bench, count, count):
            moved = count * (layer.state_bytes + layer.row_bytes)
            run = partial(layer.apply, bench.ops, batch)
            _decoded(bench, f"{layer.name}, batch {count}", run, count * layer.flops_per_token, moved)
        layer = attention(bench, count, count * (s.context + BLOCK_SIZE))
        kv = 2 * count * (s.context + 1) * s.kv_heads * s.head_dim * bench.dtype.itemsize
        flops = 4 * count * (s.context + 1) * s.heads * s.head_dim
        _decoded(bench, f"attention, batch {count}", partial(layer.apply, bench.ops, batch), flops, kv)


def copies(bench: Bench) -> None:
    """16 checkpoints of a model into running slots, by torch and in one launch; and a layer's in 8 bits."""
    s, (size, count) = bench.sizes, (max(bench.sizes.copied_bytes // 64, 64), 16)
    memory = torch.zeros(2 * count, size, dtype=torch.uint8, device=bench.device)
    pairs = [(index, index + count) for index in range(count)]
    copiers: dict[str, Copier] = {"torch": TorchCopier()}
    pack, unpack = pack_states, unpack_states
    if bench.device.type == "cuda":
        with bench.attempt("copies", "kernels"):
            copiers["one launch"] = cuda = CudaCopies(find_kernels(bench.device))
            pack, unpack = cuda.pack_states, cuda.unpack_states
    for name, copier in copiers.items():
        bench.timed("copies", name, partial(copier.copy_entries, memory, pairs), 0, 2 * count * size)
    shape = (s.mamba2_heads, s.mamba2_dim * s.d_state)
    states = bench.randn(count, *shape, dtype=torch.float32)
    packed = torch.zeros(count, *shape, dtype=torch.int8, device=bench.device)
    scales = torch.zeros(count, shape[0], device=bench.device)
    moved = 5 * states.numel()
    ids = [(index, index) for index in range(count)]
    bench.timed("copies", "states to 8 bits", lambda: pack(states, packed, scales, ids), 0, moved)
    restored = torch.zeros_like(states)
    bench.timed("copies", "states from 8 bits", lambda: unpack(restored, packed, scales, ids), 0, moved)
    error = float(((restored - states).abs().amax(-1) / scales).max())
    bench.rows.append(Row("copies", "states in 8 bits", error, "steps", 0.51, error <= 0.51))


def linear(bench: Bench) -> None:
    """What the invariant product costs beside the library's."""
    width = bench.sizes.matrix // 2
    weight = bench.randn(width, width)
    invariant = build_ops(bench.ops.name, device=bench.device, linear="invariant").linear(weight)
    library = bench.ops.linear(weight)
    for rows in (1, 64, 2 * width):
        x, flops = bench.randn(rows, width), 2.0 * rows * width * width
        moved = (width * width + 2 * rows * width) * bench.dtype.itemsize
        for product in (library, invariant):
            name = f"{rows} x {width} x {width}, {product.method}"
            bench.timed("linear", name, partial(product, x), flops, moved)


def _decoded(bench: Bench, name: str, run: Callable[[], object], flops: float, num_bytes: float) -> None:
    """As Python issues it, and by itself."""
    bench.timed("decode", name, run, flops, num_bytes)
    with bench.attempt("decode", f"{name}, graph"):
        bench.timed("decode", f"{name}, graph", bench.graphed(run), flops, num_bytes)


def _error(actual: Tensor, truth: Tensor) -> float:
    """Largest difference, relative to the largest magnitude; infinite where one alone is NaN."""
    if not torch.equal(actual.isnan(), truth.isnan()):
        return float("inf")
    return float((actual.double() - truth).nan_to_num().abs().max() / truth.nan_to_num().abs().max())


def _theirs(bench: Bench, layer: LayerCall, flops: float) -> None:
    """The time that the same layer takes by others, where they are installed."""
    if layer.name in NAMES:
        name, moved = f"{layer.name}, {NAMES[layer.name]}", bench.sizes.tokens * layer.row_bytes
        with bench.attempt("prefill", name, ours=False):
            bench.timed("prefill", name, oracle(layer).run, flops, moved, ours=False)
