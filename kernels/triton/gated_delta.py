"""Launches of the Triton gated delta rule."""

import torch
import triton
from torch import Tensor

from hybridcache.kernels.triton.attention import padded
from hybridcache.kernels.triton.batch import DeviceBatch
from hybridcache.kernels.triton.device.gated_delta import (
    delta_outputs,
    delta_prepare,
    delta_states,
    delta_token_by_token,
)
from hybridcache.kernels.triton.launch import launch

CHUNK = 64
"""Tokens of a chunk. A pass that is resumed at a multiple of it gives the bits of one that was not cut."""


def scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    ssm_state: Tensor,
    batch: DeviceBatch,
    scale: float,
    l2norm: bool,
) -> Tensor:
    """`Ops.gated_delta_scan` of checked operands, whose rows are contiguous: v [T, Hv, V] -> [T, Hv, V]."""
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    if batch.short:
        _token_by_token(q, k, v, log_decay, beta, ssm_state, batch, scale, l2norm, out)
    if batch.long:
        _by_chunks(q, k, v, log_decay, beta, ssm_state, batch, scale, l2norm, out)
    return out


def _token_by_token(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    ssm_state: Tensor,
    batch: DeviceBatch,
    scale: float,
    l2norm: bool,
    out: Tensor,
) -> None:
    (_, key_heads, key_dim), (_, heads, value_dim) = k.shape, v.shape
    tile = min(16, triton.next_power_of_2(value_dim))
    launch(
        delta_token_by_token,
        (len(batch.short), heads, triton.cdiv(value_dim, tile)),
        q,
        k,
        v,
        log_decay,
        beta,
        out,
        ssm_state,
        batch.short_sequences,
        batch.cu_seqlens,
        batch.slots,
        batch.has_state,
        batch.emit_offsets,
        batch.emit_counts,
        batch.emit_slots,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        log_decay.stride(0),
        beta.stride(0),
        ssm_state.stride(0),
        scale,
        HEADS=heads,
        GROUP=heads // key_heads,
        K=key_dim,
        KP=triton.next_power_of_2(key_dim),
        V=value_dim,
        BV=tile,
        L2NORM=l2norm,
        num_warps=max(1, padded(key_dim) // 128),
        enable_fp_fusion=True,
    )


def _by_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    ssm_state: Tensor,
    batch: DeviceBatch,
    scale: float,
    l2norm: bool,
    out: Tensor,
) -> None:
    (_, key_heads, key_dim), (tokens, heads, value_dim) = k.shape, v.shape
    chunks, device = batch.scan_chunks(CHUNK), v.device
    sums = torch.empty(heads, tokens, dtype=torch.float32, device=device)
    w = torch.empty(tokens, heads, key_dim, dtype=v.dtype, device=device)
    u, entering = (torch.empty(v.shape, dtype=v.dtype, device=device) for _ in range(2))
    starts = torch.empty(chunks.num_chunks, heads, key_dim, value_dim, dtype=v.dtype, device=device)
    shape = {
        "HEADS": heads,
        "GROUP": heads // key_heads,
        "K": key_dim,
        "KP": padded(key_dim),
        "V": value_dim,
        "CHUNK": CHUNK,
        "L2NORM": l2norm,
        "enable_fp_fusion": True,
    }
    # Products of float32 run on ordinary cores and need the registers.
    most = 16 if v.element_size() == 4 else 64
    launch(
        delta_prepare,
        (chunks.num_chunks, heads),
        k,
        v,
        log_decay,
        beta,
        sums,
        u,
        w,
        chunks.rows,
        chunks.end_offsets,
        chunks.end_rows,
        k.stride(0),
        v.stride(0),
        log_decay.stride(0),
        beta.stride(0),
        tokens,
        BV=min(most, padded(value_dim)),
        num_warps=4,
        num_stages=1,
        **shape,
    )
    columns = min(most // 2, padded(value_dim)) if most > 16 else 16
    launch(
        delta_states,
        (len(batch.long), heads, triton.cdiv(value_dim, columns)),
        k,
        u,
        w,
        sums,
        entering,
        starts,
        ssm_state,
        chunks.sequences,
        chunks.chunk_offsets,
        chunks.rows,
        chunks.end_offsets,
        chunks.end_rows,
        chunks.end_slots,
        batch.slots,
        batch.has_state,
        k.stride(0),
        ssm_state.stride(0),
        tokens,
        BV=columns,
        num_warps=4,
        num_stages=1,
        **shape,
    )
    columns = min(most, padded(value_dim))
    launch(
        delta_outputs,
        (chunks.num_chunks, heads, triton.cdiv(value_dim, columns)),
        q,
        k,
        sums,
        entering,
        starts,
        out,
        chunks.rows,
        chunks.end_offsets,
        chunks.end_rows,
        q.stride(0),
        k.stride(0),
        tokens,
        scale,
        BV=columns,
        num_warps=4,
        num_stages=1,
        **shape,
    )
