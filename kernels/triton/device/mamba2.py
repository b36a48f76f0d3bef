"""Triton: the Mamba-2 scan by chunks (Dao and Gu, 2024, section 6), and token by token.

Chunks end at multiples of CHUNK in the sequence. Four launches: steps, the chunks' own contributions to the
state, the states handed on from chunk to chunk, outputs. `ScanChunks` has the tables of chunks and ends.
"""

import triton
import triton.language as tl

from hybridcache.kernels.triton.device.scalar import bounded, causal_product, softplus


@triton.jit(do_not_specialize=["num_tokens"])
def mamba2_steps(
    dt: tl.tensor,
    dt_bias: tl.tensor,
    A: tl.tensor,
    steps: tl.tensor,
    decays: tl.tensor,
    rows: tl.tensor,
    end_offsets: tl.tensor,
    end_rows: tl.tensor,
    dt_row: tl.tensor,
    num_tokens: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    HEADS: tl.constexpr,
    BH: tl.constexpr,
    CHUNK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
) -> None:
    """Program (chunk, BH heads): `steps` and the sums of step A since the chunk's start, both [heads, T]."""
    chunk = tl.program_id(0)
    heads = tl.program_id(1) * BH + tl.arange(0, BH)
    first = tl.load(rows + chunk)
    stop = tl.load(end_rows + tl.load(end_offsets + chunk + 1) - 1)
    tokens = first + tl.arange(0, CHUNK)
    mask = (tokens < stop)[:, None] & (heads < HEADS)[None, :]
    raw = tl.load(dt + (tokens * dt_row)[:, None] + heads[None, :], mask=mask, other=0.0).to(tl.float32)
    if HAS_BIAS:
        raw += tl.load(dt_bias + heads, mask=heads < HEADS, other=0.0).to(tl.float32)[None, :]
    step = bounded(softplus(raw), low, high)
    rate = tl.load(A + heads, mask=heads < HEADS, other=0.0).to(tl.float32)
    sums = tl.cumsum(tl.where(mask, step * rate[None, :], 0.0), axis=0)
    places = (heads.to(tl.int64) * num_tokens)[None, :] + tokens[:, None]
    tl.store(steps + places, step, mask=mask)
    tl.store(decays + places, sums, mask=mask)


@triton.jit(do_not_specialize=["num_tokens"])
def mamba2_contributions(
    x: tl.tensor,
    B: tl.tensor,
    steps: tl.tensor,
    decays: tl.tensor,
    contributions: tl.tensor,
    rows: tl.tensor,
    end_chunks: tl.tensor,
    end_rows: tl.tensor,
    x_row: tl.tensor,
    b_row: tl.tensor,
    num_tokens: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    P: tl.constexpr,
    PP: tl.constexpr,
    N: tl.constexpr,
    BNS: tl.constexpr,
    BT: tl.constexpr,
) -> None:
    """Program (end, head, tile of BNS columns): what a chunk's tokens up to an end add to the state.

    `contributions` float32 [ends, heads, P, N].
    """
    end = tl.program_id(0)
    head = tl.program_id(1)
    columns = tl.program_id(2) * BNS + tl.arange(0, BNS)
    members = tl.arange(0, PP)
    first = tl.load(rows + tl.load(end_chunks + end))
    stop = tl.load(end_rows + end)
    line = head.to(tl.int64) * num_tokens
    whole = tl.load(decays + line + stop - 1)
    acc = tl.zeros((PP, BNS), tl.float32)
    for begin in range(first, stop, BT):
        tokens = begin + tl.arange(0, BT)
        inside = tokens < stop
        decay = tl.load(decays + line + tokens, mask=inside, other=0.0)
        step = tl.load(steps + line + tokens, mask=inside, other=0.0)
        weight = tl.where(inside, tl.exp(whole - decay) * step, 0.0)
        x_mask = inside[:, None] & (members < P)[None, :]
        values = tl.load(x + (tokens * x_row)[:, None] + head * P + members[None, :], mask=x_mask, other=0.0)
        b_mask = inside[:, None] & (columns < N)[None, :]
        keys = tl.load(
            B + (tokens * b_row)[:, None] + head // GROUP * N + columns[None, :], mask=b_mask, other=0.0
        )
        weighted = (values.to(tl.float32) * weight[:, None]).to(values.dtype)
        acc = tl.dot(tl.trans(weighted), keys, acc, input_precision="ieee")
    places = (end.to(tl.int64) * HEADS + head) * (P * N)
    mask = (members < P)[:, None] & (columns < N)[None, :]
    tl.store(contributions + places + (members * N)[:, None] + columns[None, :], acc, mask=mask)


@triton.jit(do_not_specialize=["num_tokens"])
def mamba2_states(
    contributions: tl.tensor,
    decays: tl.tensor,
    starts: tl.tensor,
    ssm_state: tl.tensor,
    sequences: tl.tensor,
    chunk_offsets: tl.tensor,
    end_offsets: tl.tensor,
    end_rows: tl.tensor,
    end_slots: tl.tensor,
    slots: tl.tensor,
    has_state: tl.tensor,
    slot_stride: tl.tensor,
    num_tokens: tl.tensor,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Program (sequence, head, BLOCK of the SIZE = P N elements): the state from chunk to chunk.

    Written: `starts` [chunks, heads, P, N], the emitted states and the running one.
    """
    index = tl.program_id(0)
    head = tl.program_id(1)
    elements = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    mask = elements < SIZE
    sequence = tl.load(sequences + index)
    own = head * SIZE + elements
    running = ssm_state + tl.load(slots + sequence) * slot_stride + own
    known = tl.load(has_state + sequence) != 0
    state = tl.where(known, tl.load(running, mask=mask, other=0.0).to(tl.float32), 0.0)
    line = decays + head.to(tl.int64) * num_tokens
    for chunk in range(tl.load(chunk_offsets + index), tl.load(chunk_offsets + index + 1)):
        place = chunk * (HEADS * SIZE)
        tl.store(starts + place + own, state.to(starts.dtype.element_ty), mask=mask)
        before = state
        for end in range(tl.load(end_offsets + chunk), tl.load(end_offsets + chunk + 1)):
            decay = tl.exp(tl.load(line + tl.load(end_rows + end) - 1))
            more = tl.load(contributions + end * (HEADS * SIZE) + own, mask=mask, other=0.0)
            state = before * decay + more
            slot = tl.load(end_slots + end)
            if slot >= 0:
                target = ssm_state + slot * slot_stride + own
                tl.store(target, state.to(ssm_state.dtype.element_ty), mask=mask)
    tl.store(running, state.to(ssm_state.dtype.element_ty), mask=mask)


@triton.jit
def mamba2_keys(
    x_head: tl.tensor,
    b_group: tl.tensor,
    steps: tl.tensor,
    decays: tl.tensor,
    queries: tl.tensor,
    decay: tl.tensor,
    keys: tl.tensor,
    stop: tl.tensor,
    x_row: tl.tensor,
    b_row: tl.tensor,
    members: tl.tensor,
    acc: tl.tensor,
    P: tl.constexpr,
    N: tl.constexpr,
    NP: tl.constexpr,
    BM: tl.constexpr,
    WHOLE: tl.constexpr,
) -> tl.tensor:
    """acc [BM, BP] plus what BM tokens `keys` add: all before the rows with WHOLE, else the rows'."""
    columns = tl.arange(0, NP)
    there = keys < stop
    mask = there[None, :] & (columns < N)[:, None]
    transposed = tl.load(b_group + (keys * b_row)[None, :] + columns[:, None], mask=mask, other=0.0)
    key_decay = tl.load(decays + keys, mask=there, other=0.0)
    step = tl.load(steps + keys, mask=there, other=0.0)
    scores = tl.dot(queries, transposed, input_precision="ieee")
    scores *= tl.exp(decay[:, None] - key_decay[None, :]) * step[None, :]
    x_mask = there[:, None] & (members < P)[None, :]
    values = tl.load(x_head + (keys * x_row)[:, None] + members[None, :], mask=x_mask, other=0.0)
    if WHOLE:
        return tl.dot(scores.to(values.dtype), values, acc, input_precision="ieee")
    # Chosen, not multiplied by 0: a later token's key or step may be NaN.
    places = tl.arange(0, BM)
    scores = tl.where(places[None, :] <= places[:, None], scores, 0.0)
    return causal_product(scores, values, acc, places, places)


@triton.jit
def mamba2_start(
    queries: tl.tensor,
    start_state: tl.tensor,
    columns: tl.tensor,
    members: tl.tensor,
    acc: tl.tensor,
    P: tl.constexpr,
    N: tl.constexpr,
) -> tl.tensor:
    """acc [BM, BP] plus queries [BM, columns] times those columns of a head's start state [P, N]."""
    mask = (columns < N)[:, None] & (members < P)[None, :]
    state = tl.load(start_state + columns[:, None] + (members * N)[None, :], mask=mask, other=0.0)
    return tl.dot(queries, state, acc, input_precision="ieee")


@triton.jit(do_not_specialize=["num_tokens"])
def mamba2_outputs(
    x: tl.tensor,
    B: tl.tensor,
    C: tl.tensor,
    D: tl.tensor,
    steps: tl.tensor,
    decays: tl.tensor,
    starts: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    end_offsets: tl.tensor,
    end_rows: tl.tensor,
    x_row: tl.tensor,
    b_row: tl.tensor,
    c_row: tl.tensor,
    num_tokens: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    P: tl.constexpr,
    BP: tl.constexpr,
    N: tl.constexpr,
    NP: tl.constexpr,
    BN: tl.constexpr,
    CHUNK: tl.constexpr,
    BM: tl.constexpr,
    HAS_D: tl.constexpr,
) -> None:
    """Program (BM rows of a chunk, head, BP of its P channels): from the chunk's start state and its tokens.

    `out` [T, heads, P].
    """
    chunk = tl.program_id(0) // (CHUNK // BM)
    part = tl.program_id(0) % (CHUNK // BM)
    head = tl.program_id(1)
    first = tl.load(rows + chunk)
    stop = tl.load(end_rows + tl.load(end_offsets + chunk + 1) - 1)
    begin = first + part * BM
    if begin < stop:
        tokens = begin + tl.arange(0, BM)
        inside = tokens < stop
        members = tl.program_id(2) * BP + tl.arange(0, BP)
        columns = tl.arange(0, NP)
        line = head.to(tl.int64) * num_tokens
        group = head // GROUP
        decay = tl.load(decays + line + tokens, mask=inside, other=0.0)
        c_mask = inside[:, None] & (columns < N)[None, :]
        queries = tl.load(
            C + (tokens * c_row)[:, None] + group * N + columns[None, :], mask=c_mask, other=0.0
        )
        start_state = starts + (chunk.to(tl.int64) * HEADS + head) * (P * N)
        acc = tl.zeros((BM, BP), tl.float32)
        if BN == NP:
            acc = mamba2_start(queries, start_state, columns, members, acc, P, N)
        else:
            # Queries are read again by parts: with all of a start state at once, registers would spill.
            for column in range(0, NP, BN):
                some = column + tl.arange(0, BN)
                some_mask = inside[:, None] & (some < N)[None, :]
                some_queries = tl.load(
                    C + (tokens * c_row)[:, None] + group * N + some[None, :], mask=some_mask, other=0.0
                )
                acc = mamba2_start(some_queries, start_state, some, members, acc, P, N)
        acc *= tl.exp(decay)[:, None]
        for key_begin in range(first, begin, BM):
            acc = mamba2_keys(
                x + head * P,
                B + group * N,
                steps + line,
                decays + line,
                queries,
                decay,
                key_begin + tl.arange(0, BM),
                stop,
                x_row,
                b_row,
                members,
                acc,
                P,
                N,
                NP,
                BM,
                True,
            )
        acc = mamba2_keys(
            x + head * P,
            B + group * N,
            steps + line,
            decays + line,
            queries,
            decay,
            tokens,
            stop,
            x_row,
            b_row,
            members,
            acc,
            P,
            N,
            NP,
            BM,
            False,
        )
        mask = inside[:, None] & (members < P)[None, :]
        if HAS_D:
            own = tl.load(x + (tokens * x_row)[:, None] + head * P + members[None, :], mask=mask, other=0.0)
            acc += own.to(tl.float32) * tl.load(D + head).to(tl.float32)
        places = (tokens * HEADS + head)[:, None] * P + members[None, :]
        tl.store(out + places, acc.to(out.dtype.element_ty), mask=mask)


@triton.jit
def mamba2_token_by_token(
    x: tl.tensor,
    dt: tl.tensor,
    A: tl.tensor,
    B: tl.tensor,
    C: tl.tensor,
    D: tl.tensor,
    dt_bias: tl.tensor,
    out: tl.tensor,
    ssm_state: tl.tensor,
    sequences: tl.tensor,
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
    slot_stride: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    P: tl.constexpr,
    BP: tl.constexpr,
    N: tl.constexpr,
    NP: tl.constexpr,
    HAS_D: tl.constexpr,
    HAS_BIAS: tl.constexpr,
) -> None:
    """Program (sequence, head, BP of its P channels): the recurrence itself, states emitted on its way."""
    sequence = tl.load(sequences + tl.program_id(0))
    head = tl.program_id(1)
    members = tl.program_id(2) * BP + tl.arange(0, BP)
    columns = tl.arange(0, NP)
    mask = (members < P)[:, None] & (columns < N)[None, :]
    own = head * (P * N) + (members * N)[:, None] + columns[None, :]
    running = ssm_state + tl.load(slots + sequence) * slot_stride + own
    known = tl.load(has_state + sequence) != 0
    state = tl.where(known, tl.load(running, mask=mask, other=0.0).to(tl.float32), 0.0)
    rate = tl.load(A + head).to(tl.float32)
    emit = tl.load(emit_offsets + sequence)
    last_emit = tl.load(emit_offsets + sequence + 1)
    first = tl.load(cu_seqlens + sequence)
    group = head // GROUP
    for row in range(first, tl.load(cu_seqlens + sequence + 1)):
        raw = tl.load(dt + row * dt_row + head).to(tl.float32)
        if HAS_BIAS:
            raw += tl.load(dt_bias + head).to(tl.float32)
        step = bounded(softplus(raw), low, high)
        value = tl.load(x + row * x_row + head * P + members, mask=members < P, other=0.0).to(tl.float32)
        b = tl.load(B + row * b_row + group * N + columns, mask=columns < N, other=0.0).to(tl.float32)
        c = tl.load(C + row * c_row + group * N + columns, mask=columns < N, other=0.0).to(tl.float32)
        state = state * tl.exp(step * rate) + (step * value)[:, None] * b[None, :]
        y = tl.sum(state * c[None, :], axis=1)
        if HAS_D:
            y += value * tl.load(D + head).to(tl.float32)
        places = (row * HEADS + head) * P + members
        tl.store(out + places, y.to(out.dtype.element_ty), mask=members < P)
        if tl.load(emit_counts + emit, mask=emit < last_emit, other=-1) == row + 1 - first:
            target = ssm_state + tl.load(emit_slots + emit) * slot_stride + own
            tl.store(target, state.to(ssm_state.dtype.element_ty), mask=mask)
            emit += 1
    tl.store(running, state.to(ssm_state.dtype.element_ty), mask=mask)
