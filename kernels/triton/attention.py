"""Launches of the Triton attention: tiles for passes of many tokens, parts of the keys for decoding."""

from typing import NamedTuple

import torch
from torch import Tensor

from hybridcache.kernels.triton.batch import DeviceBatch
from hybridcache.kernels.triton.device.attention import decode_attention, merge_parts, prefill_attention
from hybridcache.kernels.triton.launch import launch

LOG2E = 1.4426950408889634
DECODE_PART = 512
"""Keys of a program when decoding, whatever the batch: a result does not depend on it."""


class TileShape(NamedTuple):
    """How a kernel is cut; the same for every batch."""

    pairs: int
    keys: int
    num_warps: int
    num_stages: int


def prefill_shape(head_dim: int, element_bytes: int, capability: int, *, windowed: bool) -> TileShape:
    """By head dim, bytes of an element and compute capability (80: 8.0); 16-bit elements spill nothing."""
    if element_bytes == 4:
        return TileShape(32, 32, 8, 1) if head_dim <= 64 else TileShape(16, 16, 8, 1)
    if head_dim <= 64:
        return TileShape(128, 64, 8, 3)
    if head_dim <= 128:
        rows, stages = (128, 3) if capability >= 90 else (64, 2)
        return TileShape(rows, 32 if windowed else 64, 8, stages)
    return TileShape(64, 32, 8, 2)


def decode_shape(head_dim: int, element_bytes: int) -> TileShape:
    """Likewise, for the one token of a sequence."""
    return TileShape(16, 64 if head_dim * element_bytes <= 256 else 32, 4, 2 if head_dim > 128 else 3)


def attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: DeviceBatch,
    scale: float,
    window: int | None,
    soft_cap: float | None,
) -> Tensor:
    """`Ops.paged_attention` of checked operands: q [T, Hq, Dh] -> [T, Hq, Dh]."""
    tokens, heads, head_dim = q.shape
    out = torch.empty(tokens, heads, head_dim, dtype=q.dtype, device=q.device)
    # Without a cap the change of base to 2 is one factor with the scale.
    factor = scale * LOG2E if soft_cap is None else scale
    _prefill(q, k_cache, v_cache, out, batch, factor, window, soft_cap)
    if batch.decoding:
        _decode(q, k_cache, v_cache, out, batch, factor, window, soft_cap)
    return out


def _prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    out: Tensor,
    batch: DeviceBatch,
    factor: float,
    window: int | None,
    soft_cap: float | None,
) -> None:
    kv_heads, head_dim = k_cache.shape[2:]
    group = q.shape[1] // kv_heads
    shape = prefill_shape(head_dim, q.element_size(), batch.capability, windowed=window is not None)
    tiles = batch.query_tiles(shape.pairs, group)
    if not len(tiles.starts):
        return
    launch(
        prefill_attention,
        (len(tiles.starts), kv_heads),
        q,
        k_cache,
        v_cache,
        out,
        tiles.sequences,
        tiles.starts,
        batch.cu_seqlens,
        batch.num_computed,
        batch.block_tables,
        factor,
        soft_cap or 0.0,
        q.stride(0),
        k_cache.stride(0),
        v_cache.stride(0),
        k_cache.stride(1),
        out.stride(0),
        batch.block_tables.shape[1],
        GROUP=group,
        D=head_dim,
        DP=padded(head_dim),
        BM=shape.pairs,
        BN=shape.keys,
        BLOCK=k_cache.shape[1],
        WINDOW=window or 0,
        SOFT_CAP=soft_cap is not None,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
        # Tiles with and without masks must round alike.
        enable_fp_fusion=False,
    )


def _decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    out: Tensor,
    batch: DeviceBatch,
    factor: float,
    window: int | None,
    soft_cap: float | None,
) -> None:
    heads, (kv_heads, head_dim) = q.shape[1], k_cache.shape[2:]
    group = heads // kv_heads
    shape = decode_shape(head_dim, q.element_size())
    parts = batch.decode_parts(DECODE_PART, window or 0)
    part_out, part_most, part_total = (
        torch.empty(len(parts.owners), heads, *width, dtype=torch.float32, device=q.device)
        for width in ((head_dim,), (), ())
    )
    launch(
        decode_attention,
        (len(parts.owners), kv_heads),
        q,
        k_cache,
        v_cache,
        part_out,
        part_most,
        part_total,
        parts.owners,
        parts.numbers,
        batch.decoding_sequences,
        batch.cu_seqlens,
        batch.num_computed,
        batch.block_tables,
        factor,
        soft_cap or 0.0,
        q.stride(0),
        k_cache.stride(0),
        v_cache.stride(0),
        k_cache.stride(1),
        batch.block_tables.shape[1],
        heads,
        GROUP=group,
        GP=padded(group),
        D=head_dim,
        DP=padded(head_dim),
        BN=shape.keys,
        PART=DECODE_PART,
        BLOCK=k_cache.shape[1],
        WINDOW=window or 0,
        SOFT_CAP=soft_cap is not None,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
        enable_fp_fusion=True,
    )
    launch(
        merge_parts,
        (len(batch.decoding), heads),
        part_out,
        part_most,
        part_total,
        out,
        parts.offsets,
        batch.decoding_sequences,
        batch.cu_seqlens,
        out.stride(0),
        heads,
        D=head_dim,
        DP=padded(head_dim),
        num_warps=1,
        enable_fp_fusion=True,
    )


def padded(size: int) -> int:
    """The power of two that a matrix product's dimension is filled up to, 16 or more."""
    return max(16, 1 << (size - 1).bit_length())
