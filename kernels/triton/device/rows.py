"""Triton: operations on rows: norms, activations, rotary positions, and K and V into their blocks."""

import triton
import triton.language as tl

from hybridcache.kernels.triton.device.scalar import sigmoid, softplus


@triton.jit
def norm_rows(
    x: tl.tensor,
    gate: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    x_row: tl.tensor,
    gate_row: tl.tensor,
    eps: tl.tensor,
    offset: tl.tensor,
    WIDTH: tl.constexpr,
    PART: tl.constexpr,
    PP: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    GATE_BEFORE: tl.constexpr,
    GATE_AFTER: tl.constexpr,
) -> None:
    """Program (row, group of PART elements): x / sqrt(mean of squares + eps) (weight + offset), gated."""
    row = tl.program_id(0).to(tl.int64)
    inner = tl.arange(0, PP)
    mask = inner < PART
    columns = tl.program_id(1) * PART + inner
    y = tl.load(x + row * x_row + columns, mask=mask, other=0.0).to(tl.float32)
    if GATE_BEFORE or GATE_AFTER:
        g = tl.load(gate + row * gate_row + columns, mask=mask, other=0.0).to(tl.float32)
        g = g * sigmoid(g)
    if GATE_BEFORE:
        y = y * g
    y = y / tl.sqrt(tl.sum(y * y, axis=0) / PART + eps)
    if HAS_WEIGHT:
        y = y * (tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32) + offset)
    if GATE_AFTER:
        y = y * g
    tl.store(out + row * WIDTH + columns, y.to(out.dtype.element_ty), mask=mask)


@triton.jit
def activate_rows(
    x: tl.tensor,
    factor: tl.tensor,
    out: tl.tensor,
    x_row: tl.tensor,
    factor_row: tl.tensor,
    WIDTH: tl.constexpr,
    BW: tl.constexpr,
    KIND: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
) -> None:
    """Program (row, BW columns): the function of this KIND, times `factor`."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BW + tl.arange(0, BW)
    mask = columns < WIDTH
    y = tl.load(x + row * x_row + columns, mask=mask, other=0.0).to(tl.float32)
    if KIND == "silu":
        y = y * sigmoid(y)
    elif KIND == "sigmoid":
        y = sigmoid(y)
    elif KIND == "softplus":
        y = softplus(y)
    else:
        tl.static_assert(KIND == "relu2")
        y = tl.where(y < 0.0, 0.0, y)  # NaN stays NaN, of which a maximum would make 0
        y = y * y
    if HAS_FACTOR:
        y = y * tl.load(factor + row * factor_row + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + columns, y.to(out.dtype.element_ty), mask=mask)


@triton.jit
def rotate_heads(
    x: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    out: tl.tensor,
    x_row: tl.tensor,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    R: tl.constexpr,
) -> None:
    """Program (token, head): pairs (i, i + R) of the first 2 R dimensions turned, the rest copied."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dims = tl.arange(0, DP)
    mask = dims < D
    turned = dims < 2 * R
    base = x + row * x_row + head * D
    own = tl.load(base + dims, mask=mask, other=0.0)
    other = tl.load(base + tl.where(dims < R, dims + R, dims - R), mask=mask & turned, other=0.0)
    angle = row * R + tl.where(dims < R, dims, dims - R)
    c = tl.load(cos + angle, mask=turned, other=0.0)
    s = tl.load(sin + angle, mask=turned, other=0.0)
    y = own.to(tl.float32) * c + tl.where(dims < R, -1.0, 1.0) * other.to(tl.float32) * s
    places = out + (row * HEADS + head) * D + dims
    tl.store(places, tl.where(turned, y, own.to(tl.float32)).to(out.dtype.element_ty), mask=mask)


@triton.jit
def store_kv_rows(
    k: tl.tensor,
    v: tl.tensor,
    k_cache: tl.tensor,
    v_cache: tl.tensor,
    slot_mapping: tl.tensor,
    k_row: tl.tensor,
    v_row: tl.tensor,
    k_block: tl.tensor,
    v_block: tl.tensor,
    WIDTH: tl.constexpr,
    WP: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Program (token): its K and V of WIDTH = heads x head dim elements to where `slot_mapping` says."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.load(slot_mapping + row)
    if place >= 0:
        columns = tl.arange(0, WP)
        mask = columns < WIDTH
        inner = place % BLOCK * WIDTH + columns
        key = tl.load(k + row * k_row + columns, mask=mask)
        tl.store(k_cache + place // BLOCK * k_block + inner, key.to(k_cache.dtype.element_ty), mask=mask)
        value = tl.load(v + row * v_row + columns, mask=mask)
        tl.store(v_cache + place // BLOCK * v_block + inner, value.to(v_cache.dtype.element_ty), mask=mask)
