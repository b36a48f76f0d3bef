"""Triton: a matrix product whose tiles are the same for any number of rows."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def invariant_matmul(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    num_outs: tl.tensor,
    num_ins: tl.tensor,
    x_row: tl.tensor,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
) -> None:
    """Program (BM rows, BN outputs): x [rows, ins] weight [outs, ins]^T + bias, summed in one order."""
    rows = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    outs = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    left = x + (rows * x_row)[:, None] + inner[None, :]
    right = weight + (outs.to(tl.int64) * num_ins)[None, :] + inner[:, None]
    in_rows = (rows < num_rows)[:, None]
    in_outs = (outs < num_outs)[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for begin in range(0, num_ins, BK):
        there = begin + inner < num_ins
        a = tl.load(left + begin, mask=in_rows & there[None, :], other=0.0)
        b = tl.load(right + begin, mask=in_outs & there[:, None], other=0.0)
        if a.dtype != b.dtype:
            # A product has operands of one type; float32 loses nothing of either.
            a = a.to(tl.float32)
            b = b.to(tl.float32)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(bias + outs, mask=outs < num_outs, other=0.0).to(tl.float32)[None, :]
    places = out + (rows * num_outs)[:, None] + outs[None, :]
    tl.store(places, acc.to(out.dtype.element_ty), mask=in_rows & in_outs)
