"""Triton: attention over paged K and V, for passes of many tokens and of one.

Keys are taken in tiles of BN that start at multiples of BN in the sequence, online softmax over the tiles
(Milakov and Gimelshein, 2018; Dao, 2023). A tile that a query does not see changes nothing to the bit, so a
query's result does not depend on which other queries share its program; nor does a key that it does not see,
whatever its K and V are.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def attend_tile(
    q: tl.tensor,
    query_positions: tl.tensor,
    tile: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    k_heads: tl.tensor,
    v_heads: tl.tensor,
    block_table: tl.tensor,
    k_block: tl.tensor,
    v_block: tl.tensor,
    row: tl.tensor,
    scale: tl.tensor,
    soft_cap: tl.tensor,
    most: tl.tensor,
    total: tl.tensor,
    acc: tl.tensor,
    D: tl.constexpr,
    DP: tl.constexpr,
    BN: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    SEEN: tl.constexpr,
) -> tl.tensor:
    """One tile of keys [tile, tile + BN) added to (most [M], total [M], acc [M, DP]) of queries q [M, DP].

    `k_heads`, `v_heads`: the KV head in block 0; strides in elements: `k_block` and `v_block` from block to
    block, `row` from token to token. SEEN says which keys a query sees: "all" of the tile; the "same" as all
    others, those in [low, high); or of these its "own", by its position and WINDOW.
    `scale` includes log2(e), unless scores are capped.
    """
    keys = tile + tl.arange(0, BN)
    dims = tl.arange(0, DP)
    there = (keys >= low) & (keys < high)
    if SEEN == "all":
        blocks = tl.load(block_table + keys // BLOCK).to(tl.int64)
        mask = (dims < D)[None, :]
    else:
        blocks = tl.load(block_table + keys // BLOCK, mask=there, other=0).to(tl.int64)
        mask = there[:, None] & (dims < D)[None, :]
    offsets = (keys % BLOCK).to(tl.int64) * row
    k = tl.load(k_heads + (blocks * k_block + offsets)[:, None] + dims[None, :], mask=mask, other=0.0)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if SOFT_CAP:
        # tanh, without the overflow of its textbook form.
        scores = soft_cap * LOG2E * (1.0 - 2.0 / (1.0 + tl.exp(scores * (2.0 / soft_cap))))
    if SEEN == "same":
        scores = tl.where(there[None, :], scores, float("-inf"))
    elif SEEN == "own":
        seen = (keys[None, :] <= query_positions[:, None]) & there[None, :]
        if WINDOW > 0:
            seen = seen & (keys[None, :] > query_positions[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
    higher = tl.maximum(most, tl.max(scores, axis=1))
    base = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(most - base)
    v = tl.load(v_heads + (blocks * v_block + offsets)[:, None] + dims[None, :], mask=mask, other=0.0)
    total = total * shrink + tl.sum(weights, axis=1)
    if SEEN == "own":
        # A product takes 0 times NaN for NaN: keys whose V is not finite are left out of it, and make NaN of
        # the queries that see them (in a window narrower than the tile, also of those between two of them).
        finite = tl.min((tl.abs(v) < float("inf")).to(tl.int32), axis=1) > 0
        v = tl.where(finite[:, None], v, 0.0).to(v.dtype)
        touched = query_positions >= tl.min(tl.where(finite, 1 << 30, keys), axis=0)
        if WINDOW > 0:
            touched = touched & (query_positions - WINDOW < tl.max(tl.where(finite, -1, keys), axis=0))
        total = tl.where(touched, float("nan"), total)
    acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
    return higher, total, acc


@triton.jit(do_not_specialize=["max_blocks"])
def prefill_attention(
    q: tl.tensor,
    k_cache: tl.tensor,
    v_cache: tl.tensor,
    out: tl.tensor,
    tile_sequences: tl.tensor,
    tile_starts: tl.tensor,
    cu_seqlens: tl.tensor,
    num_computed: tl.tensor,
    block_tables: tl.tensor,
    scale: tl.tensor,
    soft_cap: tl.tensor,
    q_row: tl.tensor,
    k_block: tl.tensor,
    v_block: tl.tensor,
    kv_row: tl.tensor,
    out_row: tl.tensor,
    max_blocks: tl.tensor,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
) -> None:
    """Program (tile, KV head): BM pairs (token, head of the group) of a sequence against all its keys.

    q, out [T, heads, D] with heads contiguous; `tile_sequences`, `tile_starts`: a tile's sequence, and its
    first pair, counted from the sequence's first new token.
    """
    # The tiles with the most keys first.
    index = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    sequence = tl.load(tile_sequences + index)
    first_row = tl.load(cu_seqlens + sequence)
    tokens = tl.load(cu_seqlens + sequence + 1) - first_row
    before = tl.load(num_computed + sequence)
    pairs = tl.load(tile_starts + index) + tl.arange(0, BM)
    inside = pairs < tokens * GROUP
    token = pairs // GROUP
    heads = head * GROUP + pairs % GROUP
    dims = tl.arange(0, DP)
    mask = inside[:, None] & (dims < D)[None, :]
    rows = (first_row + token).to(tl.int64)
    queries = tl.load(q + (rows * q_row + heads * D)[:, None] + dims[None, :], mask=mask, other=0.0)
    positions = before + token
    nearest = before + tl.load(tile_starts + index) // GROUP
    last = tl.minimum(tl.load(tile_starts + index) + BM - 1, tokens * GROUP - 1) // GROUP
    high = before + last + 1
    # Tiles in [edge, near) are seen by every query as a whole.
    near = nearest // BN * BN
    low = high * 0
    edge = low
    if WINDOW > 0:
        low = tl.maximum(nearest - (WINDOW - 1), 0) // BN * BN
        edge = tl.minimum(tl.cdiv(tl.maximum(high - WINDOW, 0), BN) * BN, near)
    most = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, DP), tl.float32)
    table = block_tables + sequence * max_blocks
    if WINDOW > 0:
        for tile in range(low, edge, BN):
            most, total, acc = attend_tile(
                queries,
                positions,
                tile,
                low,
                high,
                k_cache + head * D,
                v_cache + head * D,
                table,
                k_block,
                v_block,
                kv_row,
                scale,
                soft_cap,
                most,
                total,
                acc,
                D,
                DP,
                BN,
                BLOCK,
                WINDOW,
                SOFT_CAP,
                "own",
            )
    for tile in range(edge, near, BN):
        most, total, acc = attend_tile(
            queries,
            positions,
            tile,
            low,
            high,
            k_cache + head * D,
            v_cache + head * D,
            table,
            k_block,
            v_block,
            kv_row,
            scale,
            soft_cap,
            most,
            total,
            acc,
            D,
            DP,
            BN,
            BLOCK,
            WINDOW,
            SOFT_CAP,
            "all",
        )
    for tile in range(near, high, BN):
        most, total, acc = attend_tile(
            queries,
            positions,
            tile,
            low,
            high,
            k_cache + head * D,
            v_cache + head * D,
            table,
            k_block,
            v_block,
            kv_row,
            scale,
            soft_cap,
            most,
            total,
            acc,
            D,
            DP,
            BN,
            BLOCK,
            WINDOW,
            SOFT_CAP,
            "own",
        )
    # A padded pair of the last tile may see no key.
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    places = out + (rows * out_row + heads * D)[:, None] + dims[None, :]
    tl.store(places, acc.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["max_blocks"])
def decode_attention(
    q: tl.tensor,
    k_cache: tl.tensor,
    v_cache: tl.tensor,
    part_out: tl.tensor,
    part_most: tl.tensor,
    part_total: tl.tensor,
    part_owners: tl.tensor,
    part_numbers: tl.tensor,
    sequences: tl.tensor,
    cu_seqlens: tl.tensor,
    num_computed: tl.tensor,
    block_tables: tl.tensor,
    scale: tl.tensor,
    soft_cap: tl.tensor,
    q_row: tl.tensor,
    k_block: tl.tensor,
    v_block: tl.tensor,
    kv_row: tl.tensor,
    max_blocks: tl.tensor,
    num_heads: tl.tensor,
    GROUP: tl.constexpr,
    GP: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    BN: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
) -> None:
    """Program (part, KV head): the one new token's group of heads against the keys of a part.

    Parts of PART keys start at multiples of PART, so that a result does not depend on the batch. Written:
    `part_out` [parts, heads, D] (not yet divided), `part_most` and `part_total` [parts, heads].
    """
    index = tl.program_id(0)
    head = tl.program_id(1)
    sequence = tl.load(sequences + tl.load(part_owners + index))
    row = tl.load(cu_seqlens + sequence).to(tl.int64)
    position = tl.load(num_computed + sequence)
    low = tl.load(part_numbers + index) * PART
    high = tl.minimum(position + 1, low + PART)
    if WINDOW > 0:
        low = tl.maximum(low, position + 1 - WINDOW)
    members = tl.arange(0, GP)
    heads = head * GROUP + members
    dims = tl.arange(0, DP)
    mask = (members < GROUP)[:, None] & (dims < D)[None, :]
    queries = tl.load(q + row * q_row + (heads * D)[:, None] + dims[None, :], mask=mask, other=0.0)
    most = tl.full((GP,), float("-inf"), tl.float32)
    total = tl.zeros((GP,), tl.float32)
    acc = tl.zeros((GP, DP), tl.float32)
    table = block_tables + sequence * max_blocks
    for tile in range(low // BN * BN, high, BN):
        most, total, acc = attend_tile(
            queries,
            position,
            tile,
            low,
            high,
            k_cache + head * D,
            v_cache + head * D,
            table,
            k_block,
            v_block,
            kv_row,
            scale,
            soft_cap,
            most,
            total,
            acc,
            D,
            DP,
            BN,
            BLOCK,
            WINDOW,
            SOFT_CAP,
            "same",
        )
    places = index.to(tl.int64) * num_heads + heads
    tl.store(part_most + places, most, mask=members < GROUP)
    tl.store(part_total + places, total, mask=members < GROUP)
    tl.store(part_out + (places * D)[:, None] + dims[None, :], acc, mask=mask)


@triton.jit
def merge_parts(
    part_out: tl.tensor,
    part_most: tl.tensor,
    part_total: tl.tensor,
    out: tl.tensor,
    part_offsets: tl.tensor,
    sequences: tl.tensor,
    cu_seqlens: tl.tensor,
    out_row: tl.tensor,
    num_heads: tl.tensor,
    D: tl.constexpr,
    DP: tl.constexpr,
) -> None:
    """Program (decoding sequence, head): the parts of `decode_attention` joined in ascending order."""
    index = tl.program_id(0)
    head = tl.program_id(1)
    dims = tl.arange(0, DP)
    most = float("-inf")
    total = 0.0
    acc = tl.zeros((DP,), tl.float32)
    for part in range(tl.load(part_offsets + index), tl.load(part_offsets + index + 1)):
        place = part * num_heads + head
        part_high = tl.load(part_most + place)
        higher = tl.maximum(most, part_high)
        shrink = tl.exp2(most - higher)
        share = tl.exp2(part_high - higher)
        more = tl.load(part_out + place * D + dims, mask=dims < D, other=0.0)
        acc = acc * shrink + more * share
        total = total * shrink + tl.load(part_total + place) * share
        most = higher
    row = tl.load(cu_seqlens + tl.load(sequences + index)).to(tl.int64)
    tl.store(out + row * out_row + head * D + dims, (acc / total).to(out.dtype.element_ty), mask=dims < D)
