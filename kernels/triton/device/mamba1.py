"""Triton: the Mamba-1 scan, token by token (Gu and Dao, 2023, section 3)."""

import triton
import triton.language as tl

from hybridcache.kernels.triton.device.scalar import sigmoid, softplus


@triton.jit
def mamba1_token_by_token(
    x: tl.tensor,
    dt: tl.tensor,
    A: tl.tensor,
    B: tl.tensor,
    C: tl.tensor,
    D: tl.tensor,
    z: tl.tensor,
    dt_bias: tl.tensor,
    out: tl.tensor,
    ssm_state: tl.tensor,
    cu_seqlens: tl.tensor,
    slots: tl.tensor,
    has_state: tl.tensor,
    emit_offsets: tl.tensor,
    emit_counts: tl.tensor,
    emit_slots: tl.tensor,
    x_row: tl.tensor,
    dt_row: tl.tensor,
    b_row: tl.tensor,
    c_row: tl.tensor,
    z_row: tl.tensor,
    slot_stride: tl.tensor,
    CHANNELS: tl.constexpr,
    BC: tl.constexpr,
    N: tl.constexpr,
    NP: tl.constexpr,
    HAS_D: tl.constexpr,
    HAS_Z: tl.constexpr,
    HAS_BIAS: tl.constexpr,
) -> None:
    """Program (sequence, BC channels): the recurrence, states [CHANNELS, N] emitted on its way."""
    sequence = tl.program_id(0)
    channels = tl.program_id(1) * BC + tl.arange(0, BC)
    columns = tl.arange(0, NP)
    in_width = channels < CHANNELS
    mask = in_width[:, None] & (columns < N)[None, :]
    own = (channels * N)[:, None] + columns[None, :]
    running = ssm_state + tl.load(slots + sequence) * slot_stride + own
    known = tl.load(has_state + sequence) != 0
    state = tl.where(known, tl.load(running, mask=mask, other=0.0).to(tl.float32), 0.0)
    rates = tl.load(A + own, mask=mask, other=0.0).to(tl.float32)
    emit = tl.load(emit_offsets + sequence)
    last_emit = tl.load(emit_offsets + sequence + 1)
    first = tl.load(cu_seqlens + sequence)
    for row in range(first, tl.load(cu_seqlens + sequence + 1)):
        raw = tl.load(dt + row * dt_row + channels, mask=in_width, other=0.0).to(tl.float32)
        if HAS_BIAS:
            raw += tl.load(dt_bias + channels, mask=in_width, other=0.0).to(tl.float32)
        step = softplus(raw)
        value = tl.load(x + row * x_row + channels, mask=in_width, other=0.0).to(tl.float32)
        b = tl.load(B + row * b_row + columns, mask=columns < N, other=0.0).to(tl.float32)
        c = tl.load(C + row * c_row + columns, mask=columns < N, other=0.0).to(tl.float32)
        state = state * tl.exp(step[:, None] * rates) + (step * value)[:, None] * b[None, :]
        y = tl.sum(state * c[None, :], axis=1)
        if HAS_D:
            y += value * tl.load(D + channels, mask=in_width, other=0.0).to(tl.float32)
        if HAS_Z:
            gate = tl.load(z + row * z_row + channels, mask=in_width, other=0.0).to(tl.float32)
            y *= gate * sigmoid(gate)
        tl.store(out + row * CHANNELS + channels, y.to(out.dtype.element_ty), mask=in_width)
        if tl.load(emit_counts + emit, mask=emit < last_emit, other=-1) == row + 1 - first:
            target = ssm_state + tl.load(emit_slots + emit) * slot_stride + own
            tl.store(target, state.to(ssm_state.dtype.element_ty), mask=mask)
            emit += 1
    tl.store(running, state.to(ssm_state.dtype.element_ty), mask=mask)
