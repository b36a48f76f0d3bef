"""The runner by itself: what it refuses, in which order it works, and that it reads only what was written."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hybridcache.lease import BlockCopy, StateCopy, StateEmit
from hybridcache.node import NO_IDS
from hybridcache.runner import ModelRunner
from hybridcache.step import NO_TOKEN, NOT_A_NUMBER, ScheduledSequence, StepBatch, StepResult
from hybridcache.storage import Storage
from hybridcache.tokens import as_token_ids
from tests.step_driver import Cold, prompt_of
from tests.toy_hybrid import SPECS, VOCAB, ToyModel

BLOCK = 4
"""Tokens."""
TEXT = prompt_of(40)


def runner_of(name: str = "hybrid", *, poison: bool = True) -> ModelRunner:
    """A runner over storage that is NaN everywhere."""
    spec = SPECS[name]
    storage = Storage(spec, 1 << 18, BLOCK, debug_poison=poison)
    for arena in (storage.blocks, storage.slots):
        arena.memory.fill_(0xFF)
    return ModelRunner(ToyModel(spec), storage)


def cold(name: str = "hybrid") -> Cold:
    return Cold(SPECS[name], lambda: ToyModel(SPECS[name]), BLOCK)


def part(
    start: int, stop: int, slot: int | None = 0, first_block: int = 0, **settings: object
) -> ScheduledSequence:
    """The tokens [start, stop) of TEXT, in consecutive blocks from `first_block`."""
    blocks = np.arange(first_block, first_block + -(-stop // BLOCK))
    values: dict[str, object] = {"slot": slot, "block_ids": blocks, "num_logits": stop - start, **settings}
    return ScheduledSequence(as_token_ids(TEXT[start:stop]), start, **values)  # type: ignore[arg-type]


def run(runner: ModelRunner, *parts: ScheduledSequence, **settings: object) -> StepResult:
    return runner.execute(StepBatch(parts, **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["hybrid", "any"])
def test_any_cut_and_any_company_give_the_same_bits(name: str) -> None:
    want = cold(name).logits(TEXT)
    runner = runner_of(name)
    first = run(runner, part(0, 13), part(0, 1, 1, 20))
    second = run(runner, part(13, 14), part(1, 31, 1, 20), part(0, 40, 2, 40))
    third = run(runner, part(31, 40, 1, 20), part(14, 40))
    got = [
        *(first.logits_of(0), second.logits_of(0), third.logits_of(1)),
        *(first.logits_of(1), second.logits_of(1), third.logits_of(0)),
        second.logits_of(2),
    ]
    assert np.array_equal(np.concatenate(got), np.concatenate([want] * 3))
    memory = runner.storage.slots.memory
    assert torch.equal(memory[0], memory[1]) and torch.equal(memory[0], memory[2])
    assert torch.equal(memory[0], cold(name).state(TEXT))


def test_emits_are_the_states_of_their_positions_and_nothing_else_is_written() -> None:
    runner = runner_of()
    memory = runner.storage.slots.memory
    emits = (StateEmit(6, 7), StateEmit(16, 3), StateEmit(20, 5))
    run(runner, part(0, 5), part(0, 2, 1, 20))
    run(runner, part(5, 20, emits=emits), part(2, 3, 1, 20, emits=(StateEmit(3, 8),)))
    for position, slot in (*emits, StateEmit(20, 0), StateEmit(3, 1), StateEmit(3, 8)):
        assert torch.equal(memory[slot], cold().state(TEXT[:position])), (position, slot)
    assert bool((memory[[2, 4, 6, 9, 10]] == 0xFF).all())
    assert runner.storage.slots.num_written == 6


def test_tokens_are_greedy_and_only_where_logits_are_wanted() -> None:
    runner = runner_of()
    result = run(runner, part(0, 6, num_logits=0), part(0, 9, 1, 20, num_logits=1))
    want = cold().logits(TEXT[:9])[8]
    assert result.tokens.tolist() == [-1, int(want.argmax())]
    assert result.logits.shape == (1, VOCAB) and np.array_equal(result.logits_of(1)[0], want)
    assert run(runner, part(6, 8, num_logits=0)).tokens.tolist() == [-1]
    assert run(runner).tokens.tolist() == []


def test_kv_that_is_there_is_read_and_not_written_again() -> None:
    # Another sequence's blocks hold the KV of the first 10 tokens; the state is recomputed from token 0.
    runner = runner_of()
    run(runner, part(0, 12, 0))
    shared = np.array([0, 1, 2, 20, 21])
    before = runner.storage.blocks.memory.clone()
    result = run(runner, part(0, 20, 1, block_ids=shared, kv_start=12))
    assert np.array_equal(result.logits, cold().logits(TEXT[:20]))
    before[20:22] = runner.storage.blocks.memory[20:22]
    assert torch.equal(runner.storage.blocks.memory, before)
    assert torch.equal(runner.storage.slots.memory[1], cold().state(TEXT[:20]))
    # Writing the same bits again would not show: other KV in the shared blocks has to stay.
    for views in runner.storage.states():
        for name in views.keys() & {"key", "value"}:
            views[name][:3] *= 2
    before = runner.storage.blocks.memory[:3].clone()
    run(runner, part(0, 20, 1, block_ids=shared, kv_start=12))
    assert torch.equal(runner.storage.blocks.memory[:3], before)


def test_copies_come_first_in_order_then_what_was_freed_goes_then_the_model_runs() -> None:
    runner = runner_of()
    run(runner, part(0, 10, 0), part(0, 6, 1, 20))
    # Slot 0 was freed after the first copy was asked for and is the second's target; block 2 is freed.
    copies = [StateCopy(0, 4), StateCopy(1, 0)]
    blocks = np.array([0, 1, 30])
    result = run(
        runner,
        part(10, 14, 4, block_ids=np.append(blocks, 31)),
        part(6, 9, 0, 20),
        state_copies=copies,
        block_copies=[BlockCopy(2, 30, 2)],
        freed_blocks=np.array([2]),
        freed_slots=np.array([1]),
    )
    want = cold().logits(TEXT[:14])
    assert np.array_equal(result.logits_of(0), want[10:14]) and np.array_equal(result.logits_of(1), want[6:9])
    assert bool((runner.storage.blocks.memory[2] == 0xFF).all())
    assert bool((runner.storage.slots.memory[1] == 0xFF).all())


def test_a_copy_between_steps_is_a_checkpoint() -> None:
    runner = runner_of()
    run(runner, part(0, 10))
    runner.copy([StateCopy(0, 6)])
    run(runner, part(10, 12))
    assert torch.equal(runner.storage.slots.memory[6], cold().state(TEXT[:10]))
    result = run(runner, part(10, 15, 6, block_ids=np.array([0, 1, 2, 3])))
    assert np.array_equal(result.logits, cold().logits(TEXT[:15])[10:])


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        (part(10, 12, 2), "slot 2 holds no state"),
        (part(9, 12, 0), "goes on from 9 tokens; slot 0 holds the state at 10"),
        (part(11, 12, 0), "goes on from 11 tokens; slot 0 holds the state at 10"),
        (part(10, 12, 5), "slot 5 holds no state"),
        (part(10, 12, 0, 20), r"reads the blocks \[20, 21, 22\], which nobody wrote"),
        (part(0, 12, 2, 20, kv_start=8), r"reads the blocks \[20, 21\], which nobody wrote"),
    ],
)
def test_what_nobody_wrote_is_not_read(sequence: ScheduledSequence, message: str) -> None:
    runner = runner_of()
    run(runner, part(0, 10, 0), part(0, 10, 5, 40))
    runner.storage.released(NO_IDS, np.array([5]))
    runner._state_at[5] = -1
    with pytest.raises(ValueError, match=message):
        run(runner, sequence)


def test_a_released_slot_holds_no_state() -> None:
    runner = runner_of(poison=False)
    run(runner, part(0, 10, 0))
    run(runner, part(0, 3, 1, 20), freed_slots=np.array([0]))
    with pytest.raises(ValueError, match="slot 0 holds no state"):
        run(runner, part(10, 12, 0))
    with pytest.raises(ValueError, match="state id 0 is read"):
        runner.copy([StateCopy(0, 3)])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((part(0, 4, 0), part(0, 4, 0, 20)), "slot 0 of sequence 1 is used twice"),
        ((part(0, 4, 0, emits=(StateEmit(3, 1),)), part(0, 4, 1, 20)), "slot 1 of sequence 1 is used twice"),
        ((part(0, 4, 0), part(0, 4, 1)), "write the KV of one place"),
        ((part(0, 9, 0, block_ids=np.array([0, 1, 0])),), "write the KV of one place"),
        ((part(0, 9, 0, block_ids=np.array([0, 1])),), "2 blocks of 4 tokens for 9"),
        ((part(0, 9, 10**6),), "state ids .* are none"),
        ((part(0, 9, 0, emits=(StateEmit(3, 10**6),)),), "state ids .* are none"),
        ((part(0, 9, 0, 10**6),), "kv ids .* are none"),
        ((part(0, 9, 0, block_ids=np.array([0, -1, 2])),), "kv ids .* are none"),
        ((part(0, 4, None),), "slot None"),
        ((part(0, 4, 0, block_ids=NO_IDS),), "0 blocks"),
        (
            (replace(part(0, 4), tokens=np.array([1, VOCAB], dtype=np.uint32), num_logits=1),),
            "token 1024; the vocab",
        ),
    ],
)
def test_a_batch_that_cannot_be_changes_nothing(parts: tuple[ScheduledSequence, ...], message: str) -> None:
    runner = runner_of()
    run(runner, part(0, 5, 8, 50))
    before = runner.storage.slots.memory.clone(), runner.storage.blocks.memory.clone()
    with pytest.raises(ValueError, match=message):
        run(runner, *parts, state_copies=[StateCopy(8, 9)], freed_blocks=np.array([50]))
    assert torch.equal(runner.storage.slots.memory, before[0])
    assert torch.equal(runner.storage.blocks.memory, before[1])
    run(runner, part(5, 7, 8, 50))


def test_models_without_a_kind_of_layer_have_no_ids_of_it() -> None:
    runner = runner_of("attention")
    result = run(runner, part(0, 6, None))
    assert np.array_equal(result.logits, cold("attention").logits(TEXT[:6]))
    with pytest.raises(ValueError, match="slot 0, its state 0 bytes"):
        run(runner, part(6, 8))
    runner = runner_of("recurrent")
    result = run(runner, part(0, 6, block_ids=NO_IDS))
    assert np.array_equal(result.logits, cold("recurrent").logits(TEXT[:6]))
    with pytest.raises(ValueError, match="2 blocks, its KV a token 0 bytes"):
        run(runner, part(6, 8))


def test_after_a_failed_pass_no_state_of_it_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of()
    run(runner, part(0, 5, 0), part(0, 5, 1, 20))
    model = runner.model

    def fail(*_: object) -> torch.Tensor:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(model, "forward", fail)
    with pytest.raises(RuntimeError, match="out of luck"):
        run(runner, part(5, 9, 0, emits=(StateEmit(7, 2),)))
    monkeypatch.undo()
    for slot, start in ((0, 5), (0, 9), (2, 7)):
        with pytest.raises(ValueError, match=f"slot {slot} holds no state"):
            run(runner, part(start, start + 1, slot))
    assert np.array_equal(run(runner, part(5, 9, 1, 20)).logits, cold().logits(TEXT[:9])[5:])


def test_logits_that_are_no_numbers_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of()
    monkeypatch.setattr(runner.model, "head", torch.full((VOCAB, 8), torch.nan))
    result = run(runner, part(0, 3, 0, num_logits=0), part(0, 3, 1, 20, num_logits=1))
    assert result.tokens.tolist() == [NOT_A_NUMBER, NOT_A_NUMBER]
    assert result.offsets.tolist() == [0, 0, 1]
    monkeypatch.undo()
    for slot, first in ((0, 0), (1, 20)):
        with pytest.raises(ValueError, match=f"slot {slot} holds no state"):
            run(runner, part(3, 4, slot, first))


def test_rows_that_are_looked_at_for_nan_are_not_given() -> None:
    whole = cold().logits(TEXT[:6])
    parts = [part(0, 4, 0, num_logits=0), part(0, 6, 1, 20, num_logits=2), part(0, 5, 2, 30, num_logits=0)]
    result = run(runner_of(), *parts)
    assert result.tokens.tolist() == [NO_TOKEN, whole[-1].argmax(), NO_TOKEN]
    assert result.offsets.tolist() == [0, 0, 2, 2] and np.array_equal(result.logits, whole[4:])
