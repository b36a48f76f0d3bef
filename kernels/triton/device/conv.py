"""Triton: the depthwise causal convolution, and the windows of inputs that it leaves behind."""

import triton
import triton.language as tl

from hybridcache.kernels.triton.device.scalar import sigmoid


@triton.jit
def conv_outputs(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    conv_state: tl.tensor,
    out: tl.tensor,
    tile_sequences: tl.tensor,
    tile_starts: tl.tensor,
    cu_seqlens: tl.tensor,
    slots: tl.tensor,
    has_state: tl.tensor,
    x_row: tl.tensor,
    slot_stride: tl.tensor,
    C: tl.constexpr,
    BC: tl.constexpr,
    W: tl.constexpr,
    BM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SILU: tl.constexpr,
) -> None:
    """Program (tile of BM tokens, BC channels): taps are summed oldest first, wherever they come from."""
    index = tl.program_id(0)
    channels = tl.program_id(1) * BC + tl.arange(0, BC)
    sequence = tl.load(tile_sequences + index)
    first = tl.load(cu_seqlens + sequence)
    stop = tl.load(cu_seqlens + sequence + 1)
    tokens = first + tl.load(tile_starts + index) + tl.arange(0, BM)
    known = tl.load(has_state + sequence)
    window = conv_state + tl.load(slots + sequence) * slot_stride + channels * (W - 1)
    in_width = (channels < C)[None, :]
    acc = tl.zeros((BM, BC), tl.float32)
    for tap in tl.static_range(W):
        rows = tokens - (W - 1) + tap
        new = (rows >= first) & (rows < stop)
        here = tl.load(
            x + (rows * x_row)[:, None] + channels[None, :], mask=new[:, None] & in_width, other=0.0
        )
        past = rows - first + (W - 1)
        old = (past >= 0) & (past < (W - 1) * known)
        before = tl.load(window[None, :] + past[:, None], mask=old[:, None] & in_width, other=0.0)
        factor = tl.load(weight + channels * W + tap, mask=channels < C, other=0.0).to(tl.float32)
        acc += (here.to(tl.float32) + before.to(tl.float32)) * factor[None, :]
    if HAS_BIAS:
        acc += tl.load(bias + channels, mask=channels < C, other=0.0).to(tl.float32)[None, :]
    if SILU:
        acc = acc * sigmoid(acc)
    mask = (tokens < stop)[:, None] & in_width
    tl.store(out + (tokens * C)[:, None] + channels[None, :], acc.to(out.dtype.element_ty), mask=mask)


@triton.jit
def conv_windows(
    x: tl.tensor,
    conv_state: tl.tensor,
    cu_seqlens: tl.tensor,
    slots: tl.tensor,
    has_state: tl.tensor,
    emit_offsets: tl.tensor,
    emit_counts: tl.tensor,
    emit_slots: tl.tensor,
    x_row: tl.tensor,
    slot_stride: tl.tensor,
    C: tl.constexpr,
    BC: tl.constexpr,
    W: tl.constexpr,
    WP: tl.constexpr,
) -> None:
    """Program (sequence, BC channels): the last W - 1 inputs at each emit, then at the end, in place."""
    sequence = tl.program_id(0)
    channels = tl.program_id(1) * BC + tl.arange(0, BC)
    places = tl.arange(0, WP)
    mask = (channels < C)[:, None] & (places < W - 1)[None, :]
    own = (channels * (W - 1))[:, None] + places[None, :]
    first = tl.load(cu_seqlens + sequence)
    tokens = tl.load(cu_seqlens + sequence + 1) - first
    running = conv_state + tl.load(slots + sequence) * slot_stride
    known = tl.load(has_state + sequence)
    first_emit = tl.load(emit_offsets + sequence)
    last_emit = tl.load(emit_offsets + sequence + 1)
    for emit in range(first_emit, last_emit + 1):
        # Behind the emits comes the sequence's end.
        final = emit == last_emit
        count = tl.load(emit_counts + emit, mask=emit < last_emit, other=0)
        slot = tl.load(emit_slots + emit, mask=emit < last_emit, other=0)
        if final:
            count = tokens
            slot = tl.load(slots + sequence)
        rows = count - (W - 1) + places
        new = mask & (rows >= 0)[None, :]
        here = tl.load(x + ((first + rows) * x_row)[None, :] + channels[:, None], mask=new, other=0.0)
        old = mask & (rows < 0)[None, :] & (rows + (W - 1) < (W - 1) * known)[None, :]
        before = tl.load(
            running + (channels * (W - 1))[:, None] + (rows + (W - 1))[None, :], mask=old, other=0.0
        )
        window = tl.where(rows[None, :] >= 0, here.to(tl.float32), before.to(tl.float32))
        # The last window replaces the first one, which other threads may still be reading.
        tl.debug_barrier()
        tl.store(conv_state + slot * slot_stride + own, window.to(conv_state.dtype.element_ty), mask=mask)
