"""Storage: what an id stands for, copies, and what is left of released ids."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from hybridcache.attention_layer import Attention
from hybridcache.flops import FlopTerm
from hybridcache.id_layout import IdLayout
from hybridcache.layer_kind import LayerKind
from hybridcache.lease import BlockCopy, StateCopy
from hybridcache.mamba_layer import Mamba2
from hybridcache.node import NO_IDS
from hybridcache.spec import ModelSpec
from hybridcache.state_tensor import StateTensor
from hybridcache.storage import Storage

BLOCK = 4
"""Tokens."""
BUDGET = 1 << 20
"""Bytes."""
ATTENTION = Attention(d_model=8, num_heads=2, num_kv_heads=1, head_dim=4, kv_dtype="float32")
WIDE = Attention(d_model=8, num_heads=2, num_kv_heads=2, head_dim=4, kv_dtype="bfloat16")
MAMBA = Mamba2(d_model=8, nheads=2, headdim=4, d_state=4, ngroups=1, d_conv=4, conv_width_stored=3)


@dataclass(frozen=True, slots=True)
class AnyState(LayerKind):
    """A layer with whatever tensors a test gives it."""

    kind: ClassVar[str] = "any"
    states: tuple[StateTensor, ...] = ()
    kv: tuple[StateTensor, ...] = ()

    @property
    def state_tensors(self) -> tuple[StateTensor, ...]:
        return self.states

    @property
    def kv_tensors(self) -> tuple[StateTensor, ...]:
        return self.kv

    @property
    def flop_terms(self) -> tuple[FlopTerm, ...]:
        return ()


ONE = AnyState((StateTensor("memory", (3, 5), "float32"),))
FOUR = AnyState(
    (
        StateTensor("half", (7, 2), "float16"),
        StateTensor("sums", (3,), "float64"),
        StateTensor("counts", (4, 2), "int8"),
        StateTensor("gates", (2, 3, 2), "float32"),
    )
)
SPECS = {
    "hybrid": (MAMBA, ATTENTION, MAMBA, WIDE, ATTENTION),
    "recurrent": (MAMBA, ONE, FOUR),
    "attention": (ATTENTION, WIDE),
    "any": (ONE, MAMBA, FOUR, ATTENTION),
}


def spec_of(*layers: LayerKind) -> ModelSpec:
    return ModelSpec("toy", layers, d_model=8, vocab_size=16)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("name", SPECS)
def test_every_byte_of_an_id_belongs_to_one_tensor(name: str) -> None:
    spec = spec_of(*SPECS[name])
    storage = Storage(spec, BUDGET, BLOCK)
    assert storage.slots.bytes_per_id == spec.checkpoint_bytes
    assert storage.blocks.bytes_per_id == BLOCK * spec.kv_bytes_per_token
    touched = {arena.name: torch.zeros_like(arena.memory) for arena in (storage.slots, storage.blocks)}
    for layer, views in zip(spec.layers, storage.states(), strict=True):
        declared = {t.name: (t.shape, t.dtype) for t in layer.state_tensors}
        declared |= {t.name: ((BLOCK, *t.shape), t.dtype) for t in layer.kv_tensors}
        assert views.keys() == declared.keys()
        for key, view in views.items():
            arena = storage.blocks if key in ("key", "value") else storage.slots
            assert view.shape == (arena.num_ids, *declared[key][0])
            assert str(view.dtype) == f"torch.{declared[key][1]}"
            assert view[0].is_contiguous() and view.data_ptr() % view.element_size() == 0
            arena.memory.zero_()
            bits_of_two = bits(torch.full_like(view[2], 1)) != 0
            view[2].fill_(1)
            assert int((arena.memory[2] != 0).sum()) == int(bits_of_two.sum())
            assert not arena.memory[:2].any() and not arena.memory[3:].any()
            offset = view[2].data_ptr() - arena.memory[2].data_ptr()
            touched[arena.name][2, offset : offset + view[2].nbytes] += 1
    assert all(bool((count[2] == 1).all()) for count in touched.values() if len(count))


def test_wider_elements_come_first_and_what_cannot_be_aligned_is_refused() -> None:
    layout = IdLayout.of_slots(spec_of(FOUR, MAMBA, ONE))
    assert [t.dtype for t in layout.tensors] == ["float64", *["float32"] * 3, "float16", "bfloat16", "int8"]
    odd = AnyState((StateTensor("conv", (3,), "bfloat16"), StateTensor("ssm", (2,), "float32")))
    with pytest.raises(ValueError, match=r"14 bytes .* 4 bytes cannot be aligned"):
        Storage(spec_of(odd), BUDGET)


def test_two_tensors_of_one_name_are_refused() -> None:
    tensor = StateTensor("key", (4,), "float32")
    with pytest.raises(ValueError, match="two tensors called 'key'"):
        Storage(spec_of(AnyState((tensor, tensor))), BUDGET)
    with pytest.raises(ValueError, match="state and KV called 'key'"):
        Storage(spec_of(AnyState((tensor,), (tensor,))), BUDGET)


def filled(name: str, *, debug_poison: bool = False) -> Storage:
    """Storage whose ids 0 to 7 hold random bytes."""
    storage = Storage(spec_of(*SPECS[name]), BUDGET, BLOCK, debug_poison=debug_poison)
    generator = torch.Generator().manual_seed(0)
    for arena in (storage.slots, storage.blocks):
        if arena.num_ids:
            shape = (8, arena.bytes_per_id)
            arena.memory[:8] = torch.randint(0, 255, shape, generator=generator, dtype=torch.uint8)
            arena.write(np.arange(8))
    return storage


@pytest.mark.parametrize("name", ["hybrid", "recurrent", "any"])
def test_a_state_copy_copies_every_bit_and_nothing_else(name: str) -> None:
    storage = filled(name)
    before = storage.slots.memory.clone()
    storage.perform([StateCopy(3, 9)], [])
    assert torch.equal(storage.slots.memory[9], before[3])
    before[9] = before[3]
    assert torch.equal(storage.slots.memory, before)


@pytest.mark.parametrize("name", ["hybrid", "attention"])
@pytest.mark.parametrize("num_tokens", [1, 3, BLOCK])
def test_a_block_copy_copies_the_first_tokens_of_every_layer(name: str, num_tokens: int) -> None:
    storage = filled(name)
    before = storage.blocks.memory.clone()
    old = [{key: view[2].clone() for key, view in views.items()} for views in storage.states()]
    storage.perform([], [BlockCopy(5, 2, num_tokens)])
    for views, was, layer in zip(storage.states(), old, SPECS[name], strict=True):
        for tensor in layer.kv_tensors:
            now, source = views[tensor.name][2], views[tensor.name][5]
            assert torch.equal(bits(now[:num_tokens]), bits(source[:num_tokens]))
            assert torch.equal(bits(now[num_tokens:]), bits(was[tensor.name][num_tokens:]))
    before[2] = storage.blocks.memory[2]
    assert torch.equal(storage.blocks.memory, before)


def test_copies_are_performed_in_order() -> None:
    # The first source was freed by its request and handed to the second one in the same schedule.
    storage = filled("hybrid")
    before = storage.slots.memory[:12].clone()
    storage.perform([StateCopy(3, 9), StateCopy(7, 3), StateCopy(3, 10)], [])
    assert torch.equal(storage.slots.memory[[9, 3, 10]], before[[3, 7, 7]])


@pytest.mark.parametrize(
    ("states", "blocks", "message"),
    [
        ([StateCopy(0, 1), StateCopy(0, 10**6)], [], r"state ids \[1000000\] are none"),
        ([StateCopy(0, 1), StateCopy(-1, 2)], [], r"state ids \[-1\] are none"),
        ([StateCopy(0, 1), StateCopy(2, 2)], [], "onto itself"),
        ([StateCopy(0, 1)], [BlockCopy(0, 1, 0)], "1 to 4 tokens"),
        ([StateCopy(0, 1)], [BlockCopy(0, 1, BLOCK + 1)], "1 to 4 tokens"),
        ([StateCopy(0, 1)], [BlockCopy(-1, 1, 1)], r"kv ids \[-1\] are none"),
        ([StateCopy(8, 1)], [], "state id 8 is read, but nothing was written"),
    ],
)
def test_a_wrong_copy_is_refused_before_anything_is_copied(
    states: list[StateCopy], blocks: list[BlockCopy], message: str
) -> None:
    storage = filled("hybrid")
    before = storage.slots.memory.clone(), storage.blocks.memory.clone()
    with pytest.raises(ValueError, match=message):
        storage.perform(states, blocks)
    assert torch.equal(storage.slots.memory, before[0]) and torch.equal(storage.blocks.memory, before[1])


def test_a_model_without_a_pool_has_no_ids_of_it() -> None:
    with pytest.raises(ValueError, match=r"state ids .* storage has 0"):
        filled("attention").perform([StateCopy(0, 1)], [])
    with pytest.raises(ValueError, match=r"kv ids .* storage has 0"):
        filled("recurrent").perform([], [BlockCopy(0, 1, 1)])


def test_released_ids_are_poisoned_and_cannot_be_read() -> None:
    storage = filled("hybrid", debug_poison=True)
    before = storage.slots.memory.clone()
    storage.released(np.array([2]), np.array([1, 9]))
    for views, layer in zip(storage.states(), SPECS["hybrid"], strict=True):
        for tensor in layer.state_tensors:
            assert views[tensor.name][1].isnan().all()
        for tensor in layer.kv_tensors:
            assert views[tensor.name][2].isnan().all()
    assert torch.equal(storage.slots.memory[2:], before[2:]), "9 was never written and stays as it was"
    with pytest.raises(ValueError, match="state id 1 is read"):
        storage.perform([StateCopy(1, 4)], [])
    storage.perform([StateCopy(2, 1), StateCopy(1, 4)], [])
    assert torch.equal(storage.slots.memory[4], before[2])


def test_released_twice_is_counted_once() -> None:
    storage = filled("hybrid")
    storage.released(np.array([2, 3]), NO_IDS)
    storage.released(np.array([2]), NO_IDS)
    assert storage.blocks.num_written == 6 and storage.slots.num_written == 8


def test_bad_settings_say_what_to_do() -> None:
    spec = spec_of(MAMBA, ATTENTION)
    with pytest.raises(ValueError, match="finite budget"):
        Storage(spec, float("inf"))
    with pytest.raises(ValueError, match="holds at least one"):
        Storage(spec, spec.checkpoint_bytes - 1)
    with pytest.raises(ValueError, match="block_size=0"):
        Storage(spec, BUDGET, 0)
    with pytest.raises(ValueError, match=r"the system refuses .* lower the budget"):
        Storage(spec, 1 << 62)
    with pytest.raises(ValueError, match=r"no shared arena there yet.*use memory='split'"):
        Storage(spec, BUDGET, device="cuda")


def test_split_memory_gives_each_pool_its_share() -> None:
    spec = spec_of(MAMBA, ATTENTION)
    storage = Storage(spec, BUDGET, BLOCK, memory="split", kv_fraction=0.25, device="meta")
    assert storage.blocks.num_ids == BUDGET // 4 // storage.blocks.bytes_per_id
    assert storage.slots.num_ids == BUDGET * 3 // 4 // storage.slots.bytes_per_id
    assert storage.states()[0]["ssm_state"].device.type == "meta"
    unified = Storage(spec, BUDGET, BLOCK)
    assert unified.slots.num_ids == BUDGET // unified.slots.bytes_per_id
    assert unified.blocks.num_ids == BUDGET // unified.blocks.bytes_per_id
