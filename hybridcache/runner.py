"""Runs steps with a model on real tensors."""

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridcache.kernels.packed import PackedBatch
from hybridcache.lease import BlockCopy, StateCopy
from hybridcache.pool import Ids
from hybridcache.step import NO_TOKEN, NOT_A_NUMBER, Runner, ScheduledSequence, StepBatch, StepResult
from hybridcache.storage import Storage

NO_STATE = -1
"""Position of a slot that holds no state."""


class Model(Protocol):
    """What a runner needs of a model."""

    def forward(
        self,
        token_ids: Tensor,
        batch: PackedBatch,
        state: Sequence[Mapping[str, Tensor]],
        logits_at: Tensor,
        /,
    ) -> Tensor:
        """Computes `token_ids` int64 [T] -> logits float32 [R, vocab_size] of rows `logits_at` int64 [R].

        Ids, rows and batch are on the CPU, the states where the model runs.
        """


class ModelRunner(Runner):
    """Performs copies, packs the sequences end to end without padding, and runs the model once over all.

    Remembers at which position the state of every slot stands, so that a step never starts from a state that
    nobody wrote, or from another position's; and storage remembers which blocks were written.
    """

    def __init__(self, model: Model, storage: Storage) -> None:
        self.model = model
        self.storage = storage
        self._state_at: NDArray[np.int64] = np.full(storage.slots.num_ids, NO_STATE)
        """Tokens before the state of each slot [num_slots]."""

    def copy(self, state_copies: Sequence[StateCopy]) -> None:
        """Raises ValueError for ids that storage does not have and for slots without a state."""
        self._perform(state_copies, ())

    def release(self, freed_blocks: Ids, freed_slots: Ids) -> None:
        """Raises ValueError for ids that storage does not have."""
        self.storage.released(freed_blocks, freed_slots)
        self._state_at[freed_slots] = NO_STATE

    def execute(self, step: StepBatch) -> StepResult:
        """Raises ValueError, before anything is changed, for a batch whose shapes, ids or tokens cannot be;
        after the copies, for a sequence whose state or KV is not there.
        """
        batch = self._packed(step.sequences)
        self._perform(step.state_copies, step.block_copies)
        self.release(step.freed_blocks, step.freed_slots)
        for index, sequence in enumerate(step.sequences):
            self._check_past(index, sequence)

        slots, places = _written(batch)
        self.storage.slots.write(slots)
        self.storage.blocks.write(places // self.storage.block_size)
        # Until the pass is over these slots hold states of no position.
        self._state_at[slots] = NO_STATE
        counts = np.array([s.num_logits for s in step.sequences], dtype=np.int64)
        # The last token's row always: it is where a NaN of any token before it shows.
        rows = np.maximum(counts, 1)
        result = _result(self._forward(step.sequences, batch, rows), rows, counts)
        for sequence, token in zip(step.sequences, result.tokens.tolist(), strict=True):
            if token == NOT_A_NUMBER:
                continue  # nobody goes on from there
            if sequence.slot is not None:
                self._state_at[sequence.slot] = sequence.stop
            for position, slot in sequence.emits:
                self._state_at[slot] = position
        return result

    def _packed(self, sequences: Sequence[ScheduledSequence]) -> PackedBatch:
        """The batch, all of it checked that can be before the copies are performed."""
        spec, blocks, slots = self.storage.spec, self.storage.blocks, self.storage.slots
        for index, sequence in enumerate(sequences):
            if (token := int(sequence.tokens.max())) >= spec.vocab_size:
                raise ValueError(f"sequence {index} has token {token}; the vocabulary has {spec.vocab_size}")
            if (sequence.slot is None) != (spec.checkpoint_bytes == 0):
                raise ValueError(
                    f"sequence {index} has slot {sequence.slot}, its state {spec.checkpoint_bytes} bytes: "
                    "a running slot is what a model with recurrent layers needs, and no other"
                )
            if (not len(sequence.block_ids)) != (spec.kv_bytes_per_token == 0):
                raise ValueError(
                    f"sequence {index} has {len(sequence.block_ids)} blocks, its KV a token "
                    f"{spec.kv_bytes_per_token} bytes: blocks are what attention needs, and no other layer"
                )
            blocks.check(sequence.block_ids)
        batch = PackedBatch.build(
            [len(s.tokens) for s in sequences],
            slots=[-1 if s.slot is None else s.slot for s in sequences],
            has_state=[s.has_state for s in sequences],
            num_computed=[s.start for s in sequences],
            emits=[[(emit.position - s.start, emit.slot) for emit in s.emits] for s in sequences],
            # Arrays as they are: a list of a long context would take longer than the rest.
            block_tables=[cast(Sequence[int], s.block_ids) for s in sequences],
            block_size=self.storage.block_size,
            kv_start=[s.kv_start for s in sequences],
        )
        written, places = _written(batch)
        slots.check(written)
        if len(places) != len(np.unique(places)):
            raise ValueError("two sequences of the step write the KV of one place: a block has one writer")
        return batch

    def _perform(self, state_copies: Sequence[StateCopy], block_copies: Sequence[BlockCopy]) -> None:
        self.storage.perform(state_copies, block_copies)
        for source, target in state_copies:
            self._state_at[target] = self._state_at[source]

    def _check_past(self, index: int, sequence: ScheduledSequence) -> None:
        """The state at `start` and the KV of all tokens that are not written now must be there."""
        if sequence.has_state and self._state_at[sequence.slot] != sequence.start:
            raise ValueError(
                f"sequence {index} goes on from {sequence.start} tokens; slot {sequence.slot} holds "
                + (f"the state at {at}" if (at := self._state_at[sequence.slot]) >= 0 else "no state")
            )
        known = min(max(sequence.start, sequence.kv_start), sequence.stop)
        past = sequence.block_ids[: -(-known // self.storage.block_size)]
        if not self.storage.blocks.written[past].all():
            missing = past[~self.storage.blocks.written[past]]
            raise ValueError(f"sequence {index} reads the blocks {missing.tolist()}, which nobody wrote")

    def _forward(
        self, sequences: Sequence[ScheduledSequence], batch: PackedBatch, counts: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Logits [R, vocab_size] of the last `counts` [S] tokens of each sequence, at least one of each."""
        if not sequences:
            return np.empty((0, self.storage.spec.vocab_size), dtype=np.float32)
        token_ids = torch.from_numpy(np.concatenate([s.tokens for s in sequences]).astype(np.int64))
        rows = [np.arange(s.stop - n, s.stop) for s, n in zip(batch.sequences, counts.tolist(), strict=True)]
        logits_at = torch.from_numpy(np.concatenate(rows).astype(np.int64))
        logits = self.model.forward(token_ids, batch, self.storage.states(), logits_at)
        assert logits.shape == (len(logits_at), self.storage.spec.vocab_size), logits.shape
        array: NDArray[np.float32] = logits.cpu().numpy()
        return array


def _written(batch: PackedBatch) -> tuple[Ids, NDArray[np.int64]]:
    """The slots that a pass writes, and the places (block * block_size + offset) of the KV that it writes."""
    running, mapping = batch.slots.numpy(), batch.slot_mapping.numpy()
    return np.concatenate((running[running >= 0], batch.emit_slots.numpy())), mapping[mapping >= 0]


def _result(
    logits: NDArray[np.float32], rows: NDArray[np.int64], counts: NDArray[np.int64]
) -> StepResult:
    """Of `rows` [S] rows of `logits` a sequence, what the caller gets: its `counts` [S] wanted ones."""
    tokens = np.full(len(counts), NO_TOKEN, dtype=np.int64)
    if len(counts):
        last = logits[rows.cumsum() - 1]
        wanted = counts > 0
        tokens[wanted] = last[wanted].argmax(axis=1)
        # The greatest of numbers of which one is NaN is NaN.
        tokens[np.isnan(last.max(axis=1))] = NOT_A_NUMBER
        if not wanted.all():
            logits = logits[np.repeat(wanted, rows)]
    return StepResult(tokens, logits, np.concatenate((np.zeros(1, dtype=np.int64), counts.cumsum())))
