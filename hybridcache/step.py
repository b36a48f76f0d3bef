"""One step of the engine in plain numbers, and what runs it: a model, or a model's timing."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from hybridcache.lease import BlockCopy, Lease, StateCopy, StateEmit
from hybridcache.node import NO_IDS
from hybridcache.pool import Ids
from hybridcache.tokens import TokenIds, as_token_ids


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledSequence:
    """The tokens that one sequence computes in a step: a chunk of its prompt, or the last sampled one.

    Raises ValueError for positions, emits or logits outside of these tokens.
    """

    tokens: TokenIds
    """uint32 [n], n >= 1, at the positions [start, start + n)."""
    start: int = 0
    """Tokens computed before."""
    slot: int | None = None
    """The running slot, whose state stands at `start`; None for a model without recurrent layers."""
    block_ids: Ids = field(default_factory=lambda: NO_IDS)
    """Blocks of the tokens from position 0 to the last new one at least; empty without attention."""
    kv_start: int = 0
    """KV of [0, kv_start) is in its blocks already and is not written again."""
    emits: Sequence[StateEmit] = ()
    """States to write on the way, ascending; the last may be the one at the end."""
    num_logits: int = 1
    """Logits are wanted of this many of the last tokens; 0 for a chunk that does not end the prompt."""

    def __post_init__(self) -> None:
        if self.start < 0 or not len(self.tokens):
            raise ValueError(f"{len(self.tokens)} tokens from {self.start}: give one or more")
        if self.slot is not None and self.slot < 0:
            raise ValueError(f"slot {self.slot}: slots count from 0, and None stands for no slot")
        if not 0 <= self.num_logits <= len(self.tokens):
            raise ValueError(f"logits of {self.num_logits} tokens; the step has {len(self.tokens)}")
        position = self.start
        for emit in self.emits:
            if not position < emit.position <= self.stop:
                raise ValueError(f"{emit}: positions ascend within ({self.start}, {self.stop}]")
            position = emit.position
        if self.emits and self.slot is None:
            raise ValueError(f"{self.emits[0]} without a running slot: there is no state to write")

    @property
    def stop(self) -> int:
        """The position behind the last new token."""
        return self.start + len(self.tokens)

    @property
    def has_state(self) -> bool:
        """Whether the running slot holds a state; at position 0 the state is zero whatever the slot holds."""
        return self.slot is not None and self.start > 0

    @classmethod
    def of(
        cls,
        lease: Lease,
        tokens: Sequence[int] | TokenIds,
        block_size: int,
        *,
        emits: Sequence[StateEmit] = (),
        num_logits: int = 1,
    ) -> Self:
        """The next `tokens` of a lease: blocks are reserved, copies performed or part of the step."""
        return cls(
            as_token_ids(tokens),
            lease.num_computed,
            lease.slot,
            lease.block_table(block_size),
            lease.kv_start,
            emits,
            num_logits,
        )


@dataclass(frozen=True, slots=True, eq=False)
class StepBatch:
    """What happens in a step, in this order: copies, release of freed ids, the sequences together."""

    sequences: Sequence[ScheduledSequence] = ()
    state_copies: Sequence[StateCopy] = ()
    """In the order in which the cache asked for them: a later one may overwrite an earlier one's source."""
    block_copies: Sequence[BlockCopy] = ()
    freed_blocks: Ids = field(default_factory=lambda: NO_IDS)
    """Ids whose content nobody needs once the copies are performed (`PrefixCache.drain_freed`)."""
    freed_slots: Ids = field(default_factory=lambda: NO_IDS)


NO_TOKEN, NOT_A_NUMBER = -1, -2
"""In place of tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """What a step gave, sequence by sequence in the order of the batch."""

    tokens: NDArray[np.int64]
    """[S]: the greedy next token (of equal logits the lowest id); NO_TOKEN where no logits were wanted.

    NOT_A_NUMBER where the logits of the last token are NaN, wanted or not: that sequence's states and KV are
    of no use, the others' are as ever.
    """
    logits: NDArray[np.float32]
    """[R, vocab_size]: the wanted rows; [0, 0] from a runner that has no logits."""
    offsets: NDArray[np.int64]
    """[S + 1]: the rows of sequence s are [offsets[s], offsets[s + 1])."""

    def logits_of(self, index: int) -> NDArray[np.float32]:
        """[num_logits, vocab_size] of one sequence."""
        return self.logits[self.offsets[index] : self.offsets[index + 1]]


class Runner(Protocol):
    """Runs steps. It speaks in ids and knows neither requests nor the cache."""

    @abstractmethod
    def execute(self, step: StepBatch) -> StepResult:
        """Run one step. After an exception no state of the batch's slots may be read again."""

    @abstractmethod
    def release(self, freed_blocks: Ids, freed_slots: Ids) -> None:
        """Give up the memory of ids freed since the last step, between steps: all copies are performed."""

    @abstractmethod
    def copy(self, state_copies: Sequence[StateCopy]) -> None:
        """Copy states between steps: `PrefixCache.checkpoint`, where a chunk ended at the position."""
