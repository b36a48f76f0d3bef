"""Launches of the Triton Mamba-2 scan."""

import torch
import triton
from torch import Tensor

from hybridcache.kernels.triton.attention import padded
from hybridcache.kernels.triton.batch import DeviceBatch
from hybridcache.kernels.triton.device.mamba2 import (
    mamba2_contributions,
    mamba2_outputs,
    mamba2_states,
    mamba2_steps,
    mamba2_token_by_token,
)
from hybridcache.kernels.triton.launch import launch

CHUNK = 128
"""Tokens of a chunk. A pass that is resumed at a multiple of it gives the bits of one that was not cut."""


def scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    dt_bias: Tensor | None,
    dt_limit: tuple[float, float],
    ssm_state: Tensor,
    batch: DeviceBatch,
) -> Tensor:
    """`Ops.mamba2_scan` of checked operands, whose rows are contiguous: x [T, H, P] -> [T, H, P]."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if batch.short:
        _token_by_token(x, dt, A, B, C, D, dt_bias, dt_limit, ssm_state, batch, out)
    if batch.long:
        _by_chunks(x, dt, A, B, C, D, dt_bias, dt_limit, ssm_state, batch, out)
    return out


def _token_by_token(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    dt_bias: Tensor | None,
    dt_limit: tuple[float, float],
    ssm_state: Tensor,
    batch: DeviceBatch,
    out: Tensor,
) -> None:
    (_, heads, head_dim), (_, groups, d_state) = x.shape, B.shape
    tile = min(16, triton.next_power_of_2(head_dim))
    launch(
        mamba2_token_by_token,
        (len(batch.short), heads, triton.cdiv(head_dim, tile)),
        x,
        dt,
        A,
        B,
        C,
        D,
        dt_bias,
        out,
        ssm_state,
        batch.short_sequences,
        batch.cu_seqlens,
        batch.slots,
        batch.has_state,
        batch.emit_offsets,
        batch.emit_counts,
        batch.emit_slots,
        x.stride(0),
        dt.stride(0),
        B.stride(0),
        C.stride(0),
        ssm_state.stride(0),
        *map(float, dt_limit),
        HEADS=heads,
        GROUP=heads // groups,
        P=head_dim,
        BP=tile,
        N=d_state,
        NP=triton.next_power_of_2(d_state),
        HAS_D=D is not None,
        HAS_BIAS=dt_bias is not None,
        num_warps=max(1, padded(d_state) // 128),
        enable_fp_fusion=True,
    )


def _by_chunks(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    dt_bias: Tensor | None,
    dt_limit: tuple[float, float],
    ssm_state: Tensor,
    batch: DeviceBatch,
    out: Tensor,
) -> None:
    (tokens, heads, head_dim), (_, groups, d_state) = x.shape, B.shape
    chunks, device = batch.scan_chunks(CHUNK), x.device
    size, group = head_dim * d_state, heads // groups
    steps, decays = (torch.empty(heads, tokens, dtype=torch.float32, device=device) for _ in range(2))
    heads_tile = min(8, triton.next_power_of_2(heads))
    launch(
        mamba2_steps,
        (chunks.num_chunks, triton.cdiv(heads, heads_tile)),
        dt,
        dt_bias,
        A,
        steps,
        decays,
        chunks.rows,
        chunks.end_offsets,
        chunks.end_rows,
        dt.stride(0),
        tokens,
        *map(float, dt_limit),
        HEADS=heads,
        BH=heads_tile,
        CHUNK=CHUNK,
        HAS_BIAS=dt_bias is not None,
        num_warps=4,
        enable_fp_fusion=True,
    )
    # Products of float32 run on ordinary cores and need the registers.
    wide = x.element_size() == 4
    num_ends, columns = len(chunks.end_rows), min(64 if wide else 128, padded(d_state))
    contributions = torch.empty(num_ends, heads, size, dtype=torch.float32, device=device)
    launch(
        mamba2_contributions,
        (num_ends, heads, triton.cdiv(d_state, columns)),
        x,
        B,
        steps,
        decays,
        contributions,
        chunks.rows,
        chunks.end_chunks,
        chunks.end_rows,
        x.stride(0),
        B.stride(0),
        tokens,
        HEADS=heads,
        GROUP=group,
        P=head_dim,
        PP=padded(head_dim),
        N=d_state,
        BNS=columns,
        BT=32 if wide else 64,
        num_warps=8 if head_dim > 64 else 4,
        num_stages=2,
        enable_fp_fusion=True,
    )
    starts = torch.empty(chunks.num_chunks, heads, size, dtype=x.dtype, device=device)
    block = min(512, triton.next_power_of_2(size))
    launch(
        mamba2_states,
        (len(batch.long), heads, triton.cdiv(size, block)),
        contributions,
        decays,
        starts,
        ssm_state,
        chunks.sequences,
        chunks.chunk_offsets,
        chunks.end_offsets,
        chunks.end_rows,
        chunks.end_slots,
        batch.slots,
        batch.has_state,
        ssm_state.stride(0),
        tokens,
        HEADS=heads,
        SIZE=size,
        BLOCK=block,
        num_warps=4,
        enable_fp_fusion=True,
    )
    # sm_90 multiplies 64 rows at once; older ones have no registers for as many of a large state.
    rows = 32 if wide or (d_state > 128 and batch.capability < 90) else 64
    members = min(64, padded(head_dim))
    grid = (chunks.num_chunks * (CHUNK // rows), heads, triton.cdiv(head_dim, members))
    launch(
        mamba2_outputs,
        grid,
        x,
        B,
        C,
        D,
        steps,
        decays,
        starts,
        out,
        chunks.rows,
        chunks.end_offsets,
        chunks.end_rows,
        x.stride(0),
        B.stride(0),
        C.stride(0),
        tokens,
        HEADS=heads,
        GROUP=group,
        P=head_dim,
        BP=members,
        N=d_state,
        NP=padded(d_state),
        BN=padded(d_state) if d_state <= 128 else 64,
        CHUNK=CHUNK,
        BM=rows,
        HAS_D=D is not None,
        num_warps=8 if d_state > (64 if batch.capability >= 100 else 128) else 4,
        num_stages=2,
        enable_fp_fusion=True,
    )
