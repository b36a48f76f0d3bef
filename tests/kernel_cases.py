"""Every operation on a packed batch, at awkward sizes, in a form that any backend and any dtype can run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hybridcache.kernels.ops import Ops
from hybridcache.kernels.packed import PackedBatch

BLOCK_SIZE = 16  # tokens


class Piece(NamedTuple):
    """Tokens [start, stop) of one sequence, computed in one pass."""

    start: int
    stop: int
    slot: int
    emits: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Case:
    """One operation: inputs of a whole sequence by row, and how to run rows of them."""

    name: str
    inputs: tuple[Tensor, ...]
    """[tokens, ...] each."""
    fixed: tuple[Tensor, ...]
    """Weights: the same for every token."""
    states: tuple[tuple[int, ...], ...]
    """Shape of an entry of each state tensor; with `kv`, of each cache's block."""
    apply: Callable[[Ops, Sequence[Tensor], Sequence[Tensor], Sequence[Tensor], PackedBatch], Tensor]
    kv: bool = False

    @property
    def num_tokens(self) -> int:
        return len(self.inputs[0])

    def storage(self, count: int, fill: float = torch.nan) -> list[Tensor]:
        """States of `count` slots (of `count` sequences' blocks), strided, every element `fill`."""
        blocks = count * (-(-self.num_tokens // BLOCK_SIZE) if self.kv else 1)
        sizes = [torch.Size(shape).numel() for shape in self.states]
        arena = torch.full((blocks, sum(sizes) + 3), fill)  # id-first: all tensors of an id side by side
        views, begin = [], 0
        for shape, size in zip(self.states, sizes, strict=True):
            views.append(arena[:, begin : begin + size].unflatten(1, shape))  # type: ignore[no-untyped-call]
            begin += size
        return views

    def batch(self, pieces: Sequence[Piece]) -> PackedBatch:
        per_sequence = -(-self.num_tokens // BLOCK_SIZE)
        return PackedBatch.build(
            [piece.stop - piece.start for piece in pieces],
            slots=[piece.slot for piece in pieces],
            num_computed=[piece.start for piece in pieces],
            emits=[piece.emits for piece in pieces],
            block_tables=[[p.slot * per_sequence + i for i in range(per_sequence)] for p in pieces],
            block_size=BLOCK_SIZE,
        )

    def run(
        self,
        ops: Ops,
        states: Sequence[Tensor],
        pieces: Sequence[Piece],
        convert: Callable[[Tensor], Tensor] = lambda x: x,
    ) -> Tensor:
        rows = [torch.cat([x[p.start : p.stop] for p in pieces]) for x in self.inputs]
        weights = [convert(x) for x in self.fixed]
        return self.apply(ops, [convert(x) for x in rows], weights, states, self.batch(pieces))


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape)


def conv(tokens: int, channels: int, width: int, *, silu: bool = True) -> Case:
    return Case(
        f"conv-{channels}-{width}",
        (randn(tokens, channels),),
        (randn(channels, width), randn(channels)),
        ((channels, width - 1),),
        lambda ops, x, w, s, batch: ops.causal_conv1d(
            x[0], w[0], w[1] if silu else None, s[0], batch, "silu" if silu else None
        ),
    )


def mamba1(tokens: int, channels: int, d_state: int, *, plain: bool = False) -> Case:
    return Case(
        f"mamba1-{channels}-{d_state}",
        (*(randn(tokens, channels) for _ in range(3)), randn(tokens, d_state), randn(tokens, d_state)),
        (-torch.rand(channels, d_state) * 4, randn(channels), randn(channels)),
        ((channels, d_state),),
        lambda ops, x, w, s, batch: ops.mamba1_scan(
            x[0],
            x[1],
            w[0],
            x[3],
            x[4],
            None if plain else w[1],
            None if plain else x[2],
            None if plain else w[2],
            s[0],
            batch,
        ),
    )


def mamba2(tokens: int, heads: int, head_dim: int, d_state: int, groups: int, *, plain: bool = False) -> Case:
    limit = (0.0, float("inf")) if plain else (0.3, 1.5)
    return Case(
        f"mamba2-{heads}-{head_dim}-{d_state}-{groups}",
        (
            randn(tokens, heads, head_dim),
            randn(tokens, heads),
            randn(tokens, groups, d_state),
            randn(tokens, groups, d_state),
        ),
        (-torch.rand(heads) * 4, randn(heads), randn(heads)),
        ((heads, head_dim, d_state),),
        lambda ops, x, w, s, batch: ops.mamba2_scan(
            x[0],
            x[1],
            w[0],
            x[2],
            x[3],
            None if plain else w[1],
            None if plain else w[2],
            limit,
            s[0],
            batch,
        ),
    )


def gated_delta(
    tokens: int, key_heads: int, value_heads: int, key_dim: int, value_dim: int, *, l2norm: bool = True
) -> Case:
    keys = randn(tokens, key_heads, key_dim)
    return Case(
        f"gated_delta-{key_heads}-{value_heads}-{key_dim}-{value_dim}",
        (
            randn(tokens, key_heads, key_dim),
            keys if l2norm else keys / keys.norm(dim=-1, keepdim=True),
            randn(tokens, value_heads, value_dim),
            -torch.rand(tokens, value_heads),
            torch.rand(tokens, value_heads),
        ),
        (),
        ((value_heads, key_dim, value_dim),),
        lambda ops, x, w, s, batch: ops.gated_delta_scan(
            x[0], x[1], x[2], x[3], x[4], s[0], batch, key_dim**-0.5, l2norm
        ),
    )


def attention(
    tokens: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    window: int | None = None,
    soft_cap: float | None = None,
) -> Case:
    def apply(
        ops: Ops, x: Sequence[Tensor], w: Sequence[Tensor], s: Sequence[Tensor], batch: PackedBatch
    ) -> Tensor:
        ops.store_kv(x[1], x[2], s[0], s[1], batch)
        return ops.paged_attention(x[0], s[0], s[1], batch, 2 * head_dim**-0.5, window, soft_cap)

    block = (BLOCK_SIZE, kv_heads, head_dim)
    return Case(
        f"attention-{heads}-{kv_heads}-{head_dim}-{window}-{soft_cap}",
        (
            randn(tokens, heads, head_dim),
            randn(tokens, kv_heads, head_dim),
            randn(tokens, kv_heads, head_dim),
        ),
        (),
        (block, block),
        apply,
        kv=True,
    )


def quick_cases(tokens: int) -> list[Case]:
    """One or two of each operation; sizes that fill no vector are among them."""
    return [
        conv(tokens, 65, 4),
        conv(tokens, 3, 2, silu=False),
        mamba1(tokens, 13, 16),
        mamba1(tokens, 8, 5, plain=True),
        mamba2(tokens, 4, 24, 64, 1),
        mamba2(tokens, 6, 5, 9, 3, plain=True),
        gated_delta(tokens, 2, 4, 16, 40),
        gated_delta(tokens, 1, 1, 7, 3, l2norm=False),
        attention(tokens, 4, 2, 16),
        attention(tokens, 3, 1, 20, window=37, soft_cap=5.0),
    ]


def full_cases(tokens: int) -> list[Case]:
    """The awkward sizes 1, 63, 64, 65 and 100 in every dimension, and the largest allowed."""
    cases = quick_cases(tokens)
    for size in (1, 63, 64, 65, 100):
        cases += [
            *(conv(tokens, size, width) for width in (2, 3, 4, 5)),
            mamba1(tokens, size, 16),
            mamba1(tokens, 9, size),
            mamba2(tokens, 2, size, 16, 2),
            mamba2(tokens, 2, 16, size, 1),
            gated_delta(tokens, 1, 2, size, 16),
            gated_delta(tokens, 2, 2, 16, size),
            attention(tokens, 2, 1, max(size, 8)),
            attention(tokens, 2, 2, 32, window=size),
        ]
    return [
        *cases,
        mamba1(tokens, 4, 256),
        mamba2(tokens, 2, 16, 256, 1),
        gated_delta(tokens, 1, 1, 128, 128),
        attention(tokens, 70, 1, 8),
        attention(tokens, 2, 1, 256),
        attention(tokens, 4, 4, 64, soft_cap=30.0),
        *(attention(tokens, 2 * group, 2, 32) for group in (3, 4, 5, 8, 9)),  # query heads a KV head
    ]
