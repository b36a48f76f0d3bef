"""Bit-equality: the same bits cold, cut anywhere, resumed, token by token, alone or among others."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hybridcache.models.families import FAMILIES
from hybridcache.models.load import LoadedModel, load_model
from tests.hybrid_runs import Memory, Part, prompt_of, quick_for, run

LENGTH = 130
"""Tokens of the prompt."""
BLOCKS = range(9)
Loaded = Callable[..., LoadedModel]

every_family = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(autouse=True, params=[1, pytest.param(2, marks=pytest.mark.full)])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    """Whether all bits agree (NaN equals itself, 0 and -0 differ)."""
    return all(
        torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
        for a, b in zip(left, right, strict=True)
    )


class Cold:
    """A prompt in one pass: logits of every token, the end state, KV, and the states that it emitted."""

    def __init__(self, loaded: LoadedModel, tokens: Tensor, emits: tuple[int, ...] = ()) -> None:
        self.memory = Memory(loaded.spec, num_slots=1 + len(emits))
        pairs = tuple((count, 1 + index) for index, count in enumerate(emits))
        blocks = range(-(-len(tokens) // 16))
        (self.logits,) = run(loaded, self.memory, Part(tokens, blocks=blocks, emits=pairs))
        self.emitted = {count: self.memory.slot(slot) for count, slot in pairs}
        self.end = self.memory.slot(0)
        self.kv = self.memory.kv(blocks, len(tokens))


def in_parts(loaded: LoadedModel, memory: Memory, tokens: Tensor, cuts: tuple[int, ...]) -> Tensor:
    """Runs slot 0 through `tokens`, a pass between two cuts -> logits of all tokens."""
    blocks = range(-(-len(tokens) // 16))
    edges = (0, *cuts, len(tokens))
    return torch.cat(
        [run(loaded, memory, Part(tokens[a:b], a, blocks=blocks))[0] for a, b in pairwise(edges)]
    )


def check_cuts(loaded: LoadedModel, length: int, cuts: tuple[int, ...]) -> None:
    """Every two-way cut: logits, emitted state against the state left behind, end state, KV."""
    tokens = prompt_of(loaded.spec, length)
    cold = Cold(loaded, tokens, cuts)
    blocks = range(-(-length // 16))
    memory = Memory(loaded.spec, num_slots=1)
    for cut in cuts:
        memory.poison()
        (head,) = run(loaded, memory, Part(tokens[:cut], blocks=blocks))
        assert same(memory.slot(0), cold.emitted[cut]), f"state at {cut}"
        (tail,) = run(loaded, memory, Part(tokens[cut:], cut, blocks=blocks))
        assert same([head, tail], [cold.logits[:cut], cold.logits[cut:]]), f"logits, cut at {cut}"
        assert same(memory.slot(0), cold.end), f"end state, cut at {cut}"
        assert same(memory.kv(blocks, length), cold.kv), f"KV, cut at {cut}"


@every_family
def test_some_cuts(family: str, loaded: Loaded) -> None:
    check_cuts(loaded(family), LENGTH, (1, 65, 129))


@pytest.mark.full
@every_family
def test_every_cut(family: str, loaded: Loaded) -> None:
    check_cuts(loaded(family), LENGTH, tuple(range(1, LENGTH)))


@pytest.mark.full
@every_family
def test_cuts_of_a_long_prompt(family: str, loaded: Loaded) -> None:
    check_cuts(loaded(family), 1_000, (62, 63, 64, 65, 66, 254, 255, 256, 257, 258, 999))


@quick_for()
def test_bfloat16_cuts(family: str, loaded: Loaded, checkpoint: Callable[[str], Path]) -> None:
    ours = load_model(checkpoint(family), ops=loaded(family).model.ops, dtype="bfloat16")
    check_cuts(ours, LENGTH, (1, 17, 64, 129))


@quick_for("nemotron_h")
def test_three_parts(family: str, loaded: Loaded) -> None:
    ours = loaded(family)
    tokens = prompt_of(ours.spec, LENGTH)
    cold = Cold(ours, tokens)
    for cuts in ((1, 2), (17, 66), (64, 128), (63, 129)):
        memory = Memory(ours.spec)
        assert same([in_parts(ours, memory, tokens, cuts)], [cold.logits]), cuts
        assert same(memory.slot(0), cold.end), cuts


@quick_for("bamba")
def test_token_by_token(family: str, loaded: Loaded) -> None:
    ours = loaded(family)
    tokens = prompt_of(ours.spec, LENGTH)
    cold = Cold(ours, tokens)
    memory = Memory(ours.spec)
    assert same([in_parts(ours, memory, tokens, tuple(range(1, LENGTH)))], [cold.logits])
    assert same(memory.slot(0), cold.end)


@quick_for("granitemoehybrid")
def test_resuming_from_an_emitted_checkpoint(family: str, loaded: Loaded) -> None:
    ours = loaded(family)
    tokens = prompt_of(ours.spec, LENGTH)
    cold = Cold(ours, tokens, (50, 64, 129))
    for slot, start in enumerate((50, 64, 129), 1):
        cold.memory.copy_slot(slot, 0)
        (tail,) = run(ours, cold.memory, Part(tokens[start:], start, blocks=BLOCKS))
        assert same([tail], [cold.logits[start:]]), start
        assert same(cold.memory.slot(0), cold.end), start


@quick_for("bamba", "nemotron_h")
def test_among_six_others_as_alone(family: str, loaded: Loaded) -> None:
    ours = loaded(family)
    # Cold and resumed prefills, decodes, a single first token; with and without checkpoints on the way.
    starts, lengths = (0, 40, 0, 64, 99, 0, 17), (70, 1, 1, 66, 1, 33, 20)
    emits = ((30, 70), (), (1,), (65,), (), (), (3, 19))
    shared = Memory(ours.spec, num_slots=14)
    parts, alone = [], []
    for index, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        tokens = prompt_of(ours.spec, start + length, seed=index)
        blocks = range(9 * index, 9 * index + 9)
        own = Memory(ours.spec, num_slots=14)
        pairs = tuple((count, 7 + sum(map(len, emits[:index])) + i) for i, count in enumerate(emits[index]))
        part = Part(tokens[start:], start, index, blocks, pairs)
        for memory in (own, shared):
            if start:
                run(ours, memory, Part(tokens[:start], slot=index, blocks=blocks))
        alone.append((run(ours, own, part)[0], own, pairs))
        parts.append(part)
    together = run(ours, shared, *parts)
    for index, (logits, (wanted, own, pairs)) in enumerate(zip(together, alone, strict=True)):
        assert same([logits], [wanted]), index
        for slot in (index, *(slot for _, slot in pairs)):
            assert same(shared.slot(slot), own.slot(slot)), (index, slot)


@quick_for("bamba")
def test_a_checkpoint_is_unchanged_by_fifty_resumptions(family: str, loaded: Loaded) -> None:
    ours = loaded(family)
    tokens = prompt_of(ours.spec, 48)
    memory = Memory(ours.spec, num_slots=3)
    run(ours, memory, Part(tokens, slot=0, blocks=range(3), emits=((40, 1),)))
    kept, kv = memory.slot(1), memory.kv(range(3), 40)
    for seed in range(50):
        suffix = prompt_of(ours.spec, 1 + seed % 5, seed)
        memory.copy_slot(1, 2)
        blocks = (0, 1, 3 + seed % 7, 10)
        _copy_first_tokens(memory, 2, blocks[2], 8)
        run(ours, memory, Part(suffix, 40, 2, blocks))
        for step in range(2):
            run(ours, memory, Part(suffix[:1], 40 + len(suffix) + step, 2, blocks))
        assert same(memory.slot(1), kept), seed
        assert same(memory.kv(range(3), 40), kv), seed


@every_family
def test_a_reused_slot_is_as_new(family: str, loaded: Loaded) -> None:
    ours = loaded(family)
    tokens = prompt_of(ours.spec, 37)
    memory = Memory(ours.spec)
    (first,) = run(ours, memory, Part(tokens, blocks=range(3)))
    state = memory.slot(0)
    memory.poison()
    (second,) = run(ours, memory, Part(tokens, blocks=range(3)))
    assert same([second, *memory.slot(0)], [first, *state])
    assert not second.isnan().any()


def _copy_first_tokens(memory: Memory, source: int, target: int, count: int) -> None:
    for layer, views in zip(memory.spec.layers, memory.states, strict=True):
        for tensor in layer.kv_tensors:
            views[tensor.name][target, :count] = views[tensor.name][source, :count]
