"""Several sequences' new tokens laid end to end, and where their states and KV live."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class PackedSequence(NamedTuple):
    """One sequence of a batch, in plain numbers."""

    start: int
    """Row of its first new token."""
    stop: int
    """Row behind its last new token."""
    slot: int
    """Its running slot, read (with `has_state`) and written in place; -1: no recurrent layers."""
    has_state: bool
    num_computed: int
    """Tokens before this pass."""
    emits: tuple[tuple[int, int], ...]
    """(tokens of this pass, slot), ascending: the state after that many tokens goes to that slot too."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedBatch:
    """S sequences, T new tokens in all, no padding between them. All tensors are contiguous, on the CPU.

    Sequence s owns the rows [cu_seqlens[s], cu_seqlens[s + 1]); a sequence without new tokens is allowed, it
    leaves its state as it is (zero without `has_state`). Slots of a batch are distinct, running and emitted
    ones together. Made by `build`, which checks all of this once, so that kernels compare a few numbers only.
    """

    cu_seqlens: Tensor
    """int64 [S + 1]: rows."""
    slots: Tensor
    """int64 [S]: running slots."""
    has_state: Tensor
    """bool [S]: False starts from zero whatever the slot holds."""
    emit_offsets: Tensor
    """int64 [S + 1]: the emits of sequence s are [emit_offsets[s], emit_offsets[s + 1])."""
    emit_counts: Tensor
    """int64 [E]: tokens of this pass, 1 to the sequence's length, ascending per sequence."""
    emit_slots: Tensor
    """int64 [E]."""
    num_computed: Tensor
    """int64 [S]: tokens before this pass."""
    positions: Tensor
    """int64 [T]: absolute positions of the new tokens."""
    block_tables: Tensor
    """int64 [S, max_blocks], padded with -1."""
    block_size: int
    """Tokens of a KV block."""
    slot_mapping: Tensor
    """int64 [T]: block_id * block_size + offset; -1: the token's KV is in its block already."""
    sequences: tuple[PackedSequence, ...]
    min_slot: int = field(init=False)
    """Smallest slot of the batch; 0 for an empty one."""
    max_slot: int = field(init=False)
    """Largest slot of the batch; -1 for an empty one."""
    max_block: int = field(init=False)
    """Largest block id of the batch; -1 without blocks."""
    without_blocks: int | None = field(init=False)
    """The first sequence that has new tokens and no blocks."""
    num_pairs: int = field(init=False)
    """(query, key) pairs of full causal attention."""

    def __post_init__(self) -> None:
        used = [slot for s in self.sequences for slot in (s.slot, *(emit[1] for emit in s.emits))]
        object.__setattr__(self, "min_slot", min(used, default=0))
        object.__setattr__(self, "max_slot", max(used, default=-1))
        tables = self.block_tables.numpy()
        object.__setattr__(self, "max_block", int(tables.max(initial=-1)))
        bare = (i for i, s in enumerate(self.sequences) if s.stop > s.start and tables[i].max(initial=-1) < 0)
        object.__setattr__(self, "without_blocks", next(bare, None))
        pairs = (
            _triangle(s.num_computed + s.stop - s.start) - _triangle(s.num_computed) for s in self.sequences
        )
        object.__setattr__(self, "num_pairs", sum(pairs))

    @property
    def num_sequences(self) -> int:
        """S."""
        return len(self.sequences)

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.sequences[-1].stop if self.sequences else 0

    @property
    def last_rows(self) -> Tensor:
        """int64 [S]: row of each sequence's last new token (of the one before for an empty sequence)."""
        return self.cu_seqlens[1:] - 1

    def check_slots(self, states: Tensor, name: str) -> None:
        """Raises ValueError unless every sequence has a slot and all slots are rows of `states`."""
        if self.min_slot < 0:
            raise ValueError(f"{name}: slot {self.min_slot}; a recurrent layer needs a running slot")
        if self.max_slot >= len(states):
            raise ValueError(f"{name}: slot {self.max_slot} of a pool of {len(states)} slots")

    def check_blocks(self, cache: Tensor, name: str) -> None:
        """Raises ValueError unless all sequences have blocks and all of them are rows of `cache`."""
        if cache.shape[1] != self.block_size:
            raise ValueError(f"{name}: blocks of {cache.shape[1]} tokens; the batch has {self.block_size}")
        if self.max_block >= len(cache):
            raise ValueError(f"{name}: block {self.max_block} of a pool of {len(cache)} blocks")
        if self.without_blocks is not None:
            raise ValueError(f"{name}: sequence {self.without_blocks} has no blocks; give block_tables")

    @classmethod
    def build(
        cls,
        lengths: Sequence[int],
        *,
        slots: Sequence[int] | None = None,
        has_state: Sequence[bool] | None = None,
        num_computed: Sequence[int] | None = None,
        emits: Sequence[Sequence[tuple[int, int]]] | None = None,
        block_tables: Sequence[Sequence[int]] | None = None,
        block_size: int = 16,
        kv_start: Sequence[int] | None = None,
    ) -> Self:
        """Builds a batch from one entry per sequence.

        `lengths`: new tokens. `slots`: running slots (default: none). `has_state`: default, whether anything
        was computed before. `num_computed`: tokens before this pass (default 0). `emits`: (tokens of this
        pass, slot) pairs. `block_tables`: block ids from position 0 to at least the last new token's, or
        nothing for a model without attention. `kv_start`: KV of the positions [0, kv_start) is in its blocks
        already (default: num_computed).

        Raises ValueError naming the sequence and the value that cannot be.
        """
        count = len(lengths)
        slots = [-1] * count if slots is None else slots
        num_computed = [0] * count if num_computed is None else num_computed
        has_state = [n > 0 for n in num_computed] if has_state is None else has_state
        emits = [()] * count if emits is None else emits
        block_tables = [()] * count if block_tables is None else block_tables
        kv_start = num_computed if kv_start is None else kv_start
        columns = {
            "slots": slots,
            "has_state": has_state,
            "num_computed": num_computed,
            "emits": emits,
            "block_tables": block_tables,
            "kv_start": kv_start,
        }
        for name, column in columns.items():
            if len(column) != count:
                raise ValueError(f"{name} has {len(column)} entries for {count} sequences; give one for each")
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; it must be at least 1 token")
        sequences, rows = [], 0
        for i, length in enumerate(lengths):
            pairs = tuple((int(n), int(slot)) for n, slot in emits[i])
            sequence = PackedSequence(
                rows, rows + int(length), int(slots[i]), bool(has_state[i]), int(num_computed[i]), pairs
            )
            _check_sequence(i, sequence)
            rows = sequence.stop
            sequences.append(sequence)
        _check_distinct(sequences)
        lens = np.array([s.stop - s.start for s in sequences], np.int64)
        before = np.array([s.num_computed for s in sequences], np.int64)
        starts = np.array([s.start for s in sequences], np.int64)
        positions = np.arange(rows) + np.repeat(before - starts, lens)
        tables = _padded(block_tables, before + lens, block_size)
        places = _slot_mapping(tables, positions, lens, np.array(kv_start, np.int64), block_size)
        emitted = [emit for s in sequences for emit in s.emits]
        return cls(
            cu_seqlens=_int64([0, *(s.stop for s in sequences)]),
            slots=_int64([s.slot for s in sequences]),
            has_state=torch.from_numpy(np.array([s.has_state for s in sequences], np.bool_)),
            emit_offsets=_int64([0, *itertools.accumulate(len(s.emits) for s in sequences)]),
            emit_counts=_int64([tokens for tokens, _ in emitted]),
            emit_slots=_int64([slot for _, slot in emitted]),
            num_computed=torch.from_numpy(before),
            positions=torch.from_numpy(positions),
            block_tables=torch.from_numpy(tables),
            block_size=block_size,
            slot_mapping=torch.from_numpy(places),
            sequences=tuple(sequences),
        )


def _triangle(tokens: int) -> int:
    return tokens * (tokens + 1) // 2


def _check_sequence(index: int, s: PackedSequence) -> None:
    length = s.stop - s.start
    if length < 0:
        raise ValueError(f"sequence {index} has length {length}; it must be 0 tokens or more")
    if s.num_computed < 0:
        raise ValueError(f"sequence {index} has num_computed {s.num_computed}; it must be 0 tokens or more")
    if s.slot < -1:
        raise ValueError(f"sequence {index} has slot {s.slot}; it must be 0 or more, or -1 for none")
    last = 0
    for count, slot in s.emits:
        if not last < count <= length:
            raise ValueError(
                f"sequence {index} emits its state after {count} tokens; counts ascend within 1 to {length}"
            )
        if slot < 0:
            raise ValueError(f"sequence {index} emits to slot {slot}; it must be 0 or more")
        last = count


def _check_distinct(sequences: Sequence[PackedSequence]) -> None:
    seen: set[int] = set()
    for index, s in enumerate(sequences):
        for slot in (s.slot, *(emit[1] for emit in s.emits)):
            if slot >= 0 and slot in seen:
                raise ValueError(
                    f"slot {slot} of sequence {index} is used twice in one batch; slots are exclusive"
                )
            seen.add(slot)


def _padded(tables: Sequence[Sequence[int]], stops: NDArray[np.int64], block_size: int) -> NDArray[np.int64]:
    """Block tables of one width, padded with -1; those given must reach to their sequence's last token."""
    padded = np.full((len(tables), max((len(table) for table in tables), default=0)), -1, np.int64)
    for index, (table, stop) in enumerate(zip(tables, stops.tolist(), strict=True)):
        if not len(table):
            continue
        if len(table) * block_size < stop:
            raise ValueError(
                f"sequence {index} has {len(table)} blocks of {block_size} tokens for {stop}; reserve more"
            )
        padded[index, : len(table)] = table
        lowest = padded[index, : -(-stop // block_size)].min(initial=0)
        if lowest < 0:
            raise ValueError(f"sequence {index} has block id {lowest}; ids must be 0 or more")
    return padded


def _slot_mapping(
    tables: NDArray[np.int64],
    positions: NDArray[np.int64],
    lens: NDArray[np.int64],
    kv_start: NDArray[np.int64],
    block_size: int,
) -> NDArray[np.int64]:
    if not tables.size:
        return np.full(len(positions), -1, np.int64)
    owner = np.repeat(np.arange(len(lens)), lens)
    # A sequence without blocks beside others that have some has -1 in column 0.
    block = tables[owner, np.where(tables[owner, 0] < 0, 0, positions // block_size)]
    place = block * block_size + positions % block_size
    return np.where((positions < kv_start[owner]) | (block < 0), -1, place)


def _int64(values: list[int]) -> Tensor:
    return torch.from_numpy(np.array(values, np.int64))
