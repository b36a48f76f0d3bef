"""Triton: the gated delta rule by chunks, and token by token.

Within a chunk the rule is solved in the WY form (Yang, Kautz and Hatamizadeh, 2024, section 3.3): with G the
sums of log decays since the chunk's start, A_ij = beta_i exp(G_i - G_j) k_i . k_j for j < i, T = (I + A)^-1,
the values that really enter the state are T (beta v) - T (beta exp(G) k) S. Chunks end at multiples of CHUNK
in the sequence; `ScanChunks` has the tables of chunks and ends.
"""

import triton
import triton.language as tl

from hybridcache.kernels.triton.device.scalar import causal_product


@triton.jit
def rows_of(
    base: tl.tensor,
    tokens: tl.tensor,
    stride: tl.tensor,
    inside: tl.tensor,
    WIDTH: tl.constexpr,
    WP: tl.constexpr,
    L2NORM: tl.constexpr,
) -> tl.tensor:
    """Rows [tokens, WP] of WIDTH elements, divided by sqrt(sum of squares + 1e-6) with L2NORM; same dtype."""
    dims = tl.arange(0, WP)
    mask = inside[:, None] & (dims < WIDTH)[None, :]
    raw = tl.load(base + (tokens * stride)[:, None] + dims[None, :], mask=mask, other=0.0)
    if L2NORM:
        wide = raw.to(tl.float32)
        return (wide / tl.sqrt(tl.sum(wide * wide, axis=1) + 1e-6)[:, None]).to(raw.dtype)
    return raw


@triton.jit(do_not_specialize=["num_tokens"])
def delta_prepare(
    k: tl.tensor,
    v: tl.tensor,
    log_decay: tl.tensor,
    beta: tl.tensor,
    sums: tl.tensor,
    u: tl.tensor,
    w: tl.tensor,
    rows: tl.tensor,
    end_offsets: tl.tensor,
    end_rows: tl.tensor,
    k_row: tl.tensor,
    v_row: tl.tensor,
    g_row: tl.tensor,
    beta_row: tl.tensor,
    num_tokens: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    KP: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
    CHUNK: tl.constexpr,
    L2NORM: tl.constexpr,
) -> None:
    """Program (chunk, value head): `sums` G [heads, T], u = T (beta v) and w = T (beta exp(G) k) by token."""
    chunk = tl.program_id(0)
    head = tl.program_id(1)
    first = tl.load(rows + chunk)
    stop = tl.load(end_rows + tl.load(end_offsets + chunk + 1) - 1)
    index = tl.arange(0, CHUNK)
    tokens = first + index
    inside = tokens < stop
    g = tl.load(log_decay + tokens * g_row + head, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(beta + tokens * beta_row + head, mask=inside, other=0.0).to(tl.float32)
    total = tl.cumsum(g, axis=0)
    tl.store(sums + head.to(tl.int64) * num_tokens + tokens, total, mask=inside)
    keys = rows_of(k + head // GROUP * K, tokens, k_row, inside, K, KP, L2NORM)
    lower = index[None, :] < index[:, None]
    inverse = -tl.dot(keys, tl.trans(keys), input_precision="ieee")
    inverse *= tl.exp(total[:, None] - total[None, :]) * b[:, None]
    # Chosen, not multiplied by 0, here and below: a later token's numbers may be NaN.
    inverse = tl.where(lower, inverse, 0.0)
    # Forward substitution: row i of T - I is a_i + a_i (T - I), where a_i knows rows before i only.
    for i in range(1, CHUNK):
        row = tl.sum(tl.where(index[:, None] == i, inverse, 0.0), axis=0)
        row += tl.sum(tl.where(index[:, None] < i, row[:, None] * inverse, 0.0), axis=0)
        inverse = tl.where(index[:, None] == i, row[None, :], inverse)
    inverse = tl.where(index[:, None] == index[None, :], 1.0, inverse).to(keys.dtype)
    weighted = (keys.to(tl.float32) * (b * tl.exp(total))[:, None]).to(keys.dtype)
    dims = tl.arange(0, KP)
    places = (tokens * HEADS + head)[:, None]
    mask = inside[:, None] & (dims < K)[None, :]
    mixed = causal_product(inverse, weighted, tl.zeros((CHUNK, KP), tl.float32), index, index)
    tl.store(w + places * K + dims[None, :], mixed.to(w.dtype.element_ty), mask=mask)
    for begin in range(0, V, BV):
        columns = begin + tl.arange(0, BV)
        v_mask = inside[:, None] & (columns < V)[None, :]
        values = tl.load(v + (tokens * v_row)[:, None] + head * V + columns[None, :], mask=v_mask, other=0.0)
        values = (values.to(tl.float32) * b[:, None]).to(values.dtype)
        own = causal_product(inverse, values, tl.zeros((CHUNK, BV), tl.float32), index, index)
        tl.store(u + places * V + columns[None, :], own.to(u.dtype.element_ty), mask=v_mask)


@triton.jit(do_not_specialize=["num_tokens"])
def delta_states(
    k: tl.tensor,
    u: tl.tensor,
    w: tl.tensor,
    sums: tl.tensor,
    entering: tl.tensor,
    starts: tl.tensor,
    ssm_state: tl.tensor,
    sequences: tl.tensor,
    chunk_offsets: tl.tensor,
    rows: tl.tensor,
    end_offsets: tl.tensor,
    end_rows: tl.tensor,
    end_slots: tl.tensor,
    slots: tl.tensor,
    has_state: tl.tensor,
    k_row: tl.tensor,
    slot_stride: tl.tensor,
    num_tokens: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    KP: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
    CHUNK: tl.constexpr,
    L2NORM: tl.constexpr,
) -> None:
    """Program (sequence, value head, BV columns): the state [K, V] from chunk to chunk.

    Written: `starts` [chunks, heads, K, V], the values that enter the state, emitted states, the running one.
    """
    index = tl.program_id(0)
    head = tl.program_id(1)
    columns = tl.program_id(2) * BV + tl.arange(0, BV)
    dims = tl.arange(0, KP)
    sequence = tl.load(sequences + index)
    mask = (dims < K)[:, None] & (columns < V)[None, :]
    own = head * (K * V) + (dims * V)[:, None] + columns[None, :]
    running = ssm_state + tl.load(slots + sequence) * slot_stride + own
    known = tl.load(has_state + sequence) != 0
    state = tl.where(known, tl.load(running, mask=mask, other=0.0).to(tl.float32), 0.0)
    line = sums + head.to(tl.int64) * num_tokens
    for chunk in range(tl.load(chunk_offsets + index), tl.load(chunk_offsets + index + 1)):
        tl.store(starts + chunk * (HEADS * K * V) + own, state.to(starts.dtype.element_ty), mask=mask)
        tokens = tl.load(rows + chunk) + tl.arange(0, CHUNK)
        last_end = tl.load(end_offsets + chunk + 1)
        inside = tokens < tl.load(end_rows + last_end - 1)
        places = (tokens * HEADS + head)[:, None]
        w_mask = inside[:, None] & (dims < K)[None, :]
        erased = tl.load(w + places * K + dims[None, :], mask=w_mask, other=0.0)
        v_mask = inside[:, None] & (columns < V)[None, :]
        values = tl.load(u + places * V + columns[None, :], mask=v_mask, other=0.0).to(tl.float32)
        values -= tl.dot(erased, state.to(erased.dtype), input_precision="ieee")
        tl.store(entering + places * V + columns[None, :], values.to(entering.dtype.element_ty), mask=v_mask)
        total = tl.load(line + tokens, mask=inside, other=0.0)
        before = state
        for end in range(tl.load(end_offsets + chunk), last_end):
            stop = tl.load(end_rows + end)
            whole = tl.load(line + stop - 1)
            seen = tokens < stop
            keys = rows_of(k + head // GROUP * K, tokens, k_row, seen, K, KP, L2NORM)
            weighted = tl.where(seen[:, None], values * tl.exp(whole - total)[:, None], 0.0).to(keys.dtype)
            state = tl.dot(tl.trans(keys), weighted, before * tl.exp(whole), input_precision="ieee")
            slot = tl.load(end_slots + end)
            if slot >= 0:
                target = ssm_state + slot * slot_stride + own
                tl.store(target, state.to(ssm_state.dtype.element_ty), mask=mask)
    tl.store(running, state.to(ssm_state.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_tokens"])
def delta_outputs(
    q: tl.tensor,
    k: tl.tensor,
    sums: tl.tensor,
    entering: tl.tensor,
    starts: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    end_offsets: tl.tensor,
    end_rows: tl.tensor,
    q_row: tl.tensor,
    k_row: tl.tensor,
    num_tokens: tl.tensor,
    scale: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    KP: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
    CHUNK: tl.constexpr,
    L2NORM: tl.constexpr,
) -> None:
    """Program (chunk, value head, BV columns): outputs [T, heads, V]."""
    chunk = tl.program_id(0)
    head = tl.program_id(1)
    columns = tl.program_id(2) * BV + tl.arange(0, BV)
    dims = tl.arange(0, KP)
    stop = tl.load(end_rows + tl.load(end_offsets + chunk + 1) - 1)
    index = tl.arange(0, CHUNK)
    tokens = tl.load(rows + chunk) + index
    inside = tokens < stop
    queries = rows_of(q + head // GROUP * K, tokens, q_row, inside, K, KP, L2NORM)
    total = tl.load(sums + head.to(tl.int64) * num_tokens + tokens, mask=inside, other=0.0)
    place = (chunk.to(tl.int64) * HEADS + head) * (K * V)
    s_mask = (dims < K)[:, None] & (columns < V)[None, :]
    start = tl.load(starts + place + (dims * V)[:, None] + columns[None, :], mask=s_mask, other=0.0)
    acc = tl.dot(queries, start, input_precision="ieee") * tl.exp(total)[:, None]
    keys = rows_of(k + head // GROUP * K, tokens, k_row, inside, K, KP, L2NORM)
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
    scores *= tl.exp(total[:, None] - total[None, :])
    scores = tl.where(index[None, :] <= index[:, None], scores, 0.0)
    places = (tokens * HEADS + head)[:, None] * V + columns[None, :]
    mask = inside[:, None] & (columns < V)[None, :]
    values = tl.load(entering + places, mask=mask, other=0.0)
    acc = causal_product(scores, values, acc, index, index)
    tl.store(out + places, (acc * scale).to(out.dtype.element_ty), mask=mask)


@triton.jit
def delta_token_by_token(
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    log_decay: tl.tensor,
    beta: tl.tensor,
    out: tl.tensor,
    ssm_state: tl.tensor,
    sequences: tl.tensor,
    cu_seqlens: tl.tensor,
    slots: tl.tensor,
    has_state: tl.tensor,
    emit_offsets: tl.tensor,
    emit_counts: tl.tensor,
    emit_slots: tl.tensor,
    q_row: tl.tensor,
    k_row: tl.tensor,
    v_row: tl.tensor,
    g_row: tl.tensor,
    beta_row: tl.tensor,
    slot_stride: tl.tensor,
    scale: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    KP: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
    L2NORM: tl.constexpr,
) -> None:
    """Program (sequence, value head, BV columns): the rule itself, states emitted on its way."""
    sequence = tl.load(sequences + tl.program_id(0))
    head = tl.program_id(1)
    columns = tl.program_id(2) * BV + tl.arange(0, BV)
    dims = tl.arange(0, KP)
    mask = (dims < K)[:, None] & (columns < V)[None, :]
    own = head * (K * V) + (dims * V)[:, None] + columns[None, :]
    running = ssm_state + tl.load(slots + sequence) * slot_stride + own
    known = tl.load(has_state + sequence) != 0
    state = tl.where(known, tl.load(running, mask=mask, other=0.0).to(tl.float32), 0.0)
    emit = tl.load(emit_offsets + sequence)
    last_emit = tl.load(emit_offsets + sequence + 1)
    first = tl.load(cu_seqlens + sequence)
    base = head // GROUP * K + dims
    for row in range(first, tl.load(cu_seqlens + sequence + 1)):
        query = tl.load(q + row * q_row + base, mask=dims < K, other=0.0).to(tl.float32)
        key = tl.load(k + row * k_row + base, mask=dims < K, other=0.0).to(tl.float32)
        if L2NORM:
            query = query / tl.sqrt(tl.sum(query * query, axis=0) + 1e-6)
            key = key / tl.sqrt(tl.sum(key * key, axis=0) + 1e-6)
        value = tl.load(v + row * v_row + head * V + columns, mask=columns < V, other=0.0).to(tl.float32)
        state *= tl.exp(tl.load(log_decay + row * g_row + head).to(tl.float32))
        b = tl.load(beta + row * beta_row + head).to(tl.float32)
        value = (value - tl.sum(state * key[:, None], axis=0)) * b
        state += key[:, None] * value[None, :]
        y = tl.sum(state * (query * scale)[:, None], axis=0)
        places = (row * HEADS + head) * V + columns
        tl.store(out + places, y.to(out.dtype.element_ty), mask=columns < V)
        if tl.load(emit_counts + emit, mask=emit < last_emit, other=-1) == row + 1 - first:
            target = ssm_state + tl.load(emit_slots + emit) * slot_stride + own
            tl.store(target, state.to(ssm_state.dtype.element_ty), mask=mask)
            emit += 1
    tl.store(running, state.to(ssm_state.dtype.element_ty), mask=mask)
