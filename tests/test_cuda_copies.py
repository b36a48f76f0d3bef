"""The CUDA copies, run on the CPU by the emulation, against torch's."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from hybridcache.attention_layer import Attention
from hybridcache.copier import TorchCopier
from hybridcache.kernels.build import find_compiler
from hybridcache.kernels.cuda.copies import CudaCopies, independent
from hybridcache.kernels.state_int8 import pack_states, unpack_states
from hybridcache.lease import BlockCopy, StateCopy
from hybridcache.mamba_layer import Mamba2
from hybridcache.spec import ModelSpec
from hybridcache.storage import Storage
from tests.cuda_emulator import EmulatedKernels

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="the emulation needs g++")


@pytest.fixture(scope="module")
def cuda() -> CudaCopies:
    return CudaCopies(EmulatedKernels())


def noise(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


CHAIN = [(0, 1), (2, 3), (1, 4), (5, 0), (6, 0), (0, 7)]
"""Reads what was written, overwrites a source, writes one target twice."""


@pytest.mark.parametrize("num_bytes", [1, 63, 64, 100, 16_384, 16_400, 40_003])
def test_entries(cuda: CudaCopies, num_bytes: int) -> None:
    memory = noise(8, num_bytes)
    twin = memory.clone()
    cuda.copy_entries(memory, CHAIN)
    TorchCopier().copy_entries(twin, CHAIN)
    assert torch.equal(memory, twin)


@pytest.mark.parametrize(
    ("tensors", "tokens", "row_bytes"), [(3, 16, 64), (1, 4, 6), (2, 5, 1), (2, 64, 512)]
)
def test_rows(cuda: CudaCopies, tensors: int, tokens: int, row_bytes: int) -> None:
    arena = noise(8, tensors * tokens * row_bytes + 32)
    twin = arena.clone()
    copies = [(*copy, 1 + i * (tokens - 1) // 5) for i, copy in enumerate(CHAIN)] + [(1, 2, 0)]
    for memory, copier in ((arena, cuda), (twin, TorchCopier())):
        rows = memory.as_strided(
            (8, tensors, tokens, row_bytes), (arena.shape[1], tokens * row_bytes, row_bytes, 1), 16
        )
        copier.copy_rows(rows, copies)
    assert torch.equal(arena, twin)


def test_no_copies(cuda: CudaCopies) -> None:
    memory = noise(2, 16)
    before = memory.clone()
    cuda.copy_entries(memory, [])
    for copies in ([], [(0, 1, 0)]):
        cuda.copy_rows(memory.view(2, 1, 4, 4), copies)
    assert torch.equal(memory, before)


def test_groups_keep_the_order() -> None:
    assert independent([]) == []
    assert independent(CHAIN) == [[(0, 1), (2, 3)], [(1, 4), (5, 0)], [(6, 0)], [(0, 7)]]
    assert independent([(0, 1), (1, 0)]) == [[(0, 1)], [(1, 0)]]
    assert [len(group) for group in independent([(0, i) for i in range(1, 65_537)])] == [65_535, 1]


def test_storage_copies_the_same_with_either() -> None:
    attention = Attention(d_model=8, num_heads=2, num_kv_heads=1, head_dim=4, kv_dtype="bfloat16")
    mamba = Mamba2(d_model=8, nheads=2, headdim=4, d_state=4, ngroups=1, d_conv=4, conv_width_stored=3)
    spec = ModelSpec("toy", (attention, mamba, attention), d_model=8, vocab_size=16)
    results = []
    for copier in (None, CudaCopies(EmulatedKernels())):
        torch.manual_seed(0)
        storage = Storage(spec, 1 << 16, 4, copier=copier)
        for arena in (storage.slots, storage.blocks):
            arena.memory[:8] = noise(8, arena.bytes_per_id)
            arena.write(np.arange(8))
        before = storage.slots.memory[:8].clone()
        blocks = [BlockCopy(*copy, 1 + i % 4) for i, copy in enumerate(CHAIN)]
        storage.perform([StateCopy(*copy) for copy in CHAIN], blocks)
        assert not torch.equal(storage.slots.memory[:8], before)
        results.append((storage.slots.memory[:8], storage.blocks.memory[:8]))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


Pack = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Sequence[tuple[int, int]]], None]


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.full)])
@pytest.mark.parametrize("shape", [(3, 5, 7), (2, 64, 65), (1, 1)])
def test_states_in_8_bits(cuda: CudaCopies, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    states = (torch.randn(4, *shape) * torch.tensor([1e-20, 1.0, 300.0, 0.0]).view(-1, *[1] * len(shape))).to(
        dtype
    )
    pairs = [(slot, 4 - slot) for slot in range(4)]
    back, results = [], []
    for pack, unpack in ((cuda.pack_states, cuda.unpack_states), (pack_states, unpack_states)):
        packed, scales = torch.full((6, *shape), 99, dtype=torch.int8), torch.full((6, shape[0]), torch.nan)
        pack(states, packed, scales, pairs)
        restored = torch.full_like(states, torch.nan)
        unpack(restored, packed, scales, pairs)
        results.append((packed, scales))
        back.append(restored)
    assert torch.equal(results[0][1].nan_to_num(-1), results[1][1].nan_to_num(-1))
    # A value half way between two steps may fall to either side.
    assert (results[0][0].int() - results[1][0].int()).abs().max() <= 1
    assert (results[0][0][[0, 5]] == 99).all() and results[0][1][[0, 5]].isnan().all()
    for slot, target in pairs:
        for restored in back:
            error = (restored[slot].float() - states[slot].float()).abs().flatten(1).amax(1)
            assert (error <= (0.5 + 1e-3 + 127 * torch.finfo(dtype).eps) * results[0][1][target]).all()
    assert not back[0][3].any()


@pytest.mark.parametrize("most", [1e-45, 1e-41, 1e-38, 1.2e-36, 3e-36])
def test_a_state_of_denormal_numbers(cuda: CudaCopies, most: float) -> None:
    """127 over such a magnitude, or 1 over its scale, is infinite."""
    states = torch.linspace(-1, 1, 600).view(1, 2, 300) * most
    for pack, unpack in ((cuda.pack_states, cuda.unpack_states), (pack_states, unpack_states)):
        packed, scales = torch.zeros(1, 2, 300, dtype=torch.int8), torch.zeros(1, 2)
        pack(states, packed, scales, [(0, 0)])
        assert (scales >= torch.finfo(torch.float32).tiny).all()
        restored = torch.full_like(states, torch.nan)
        unpack(restored, packed, scales, [(0, 0)])
        error = (restored - states).abs().flatten(2).amax(2)
        assert (error <= 0.51 * scales).all()


def test_blocks_in_8_bits(cuda: CudaCopies) -> None:
    """K or V [blocks, tokens, heads, head dim] too: each token's head has a scale of its own."""
    cache = torch.randn(3, 16, 2, 20) * torch.logspace(-3, 3, 16)[:, None, None]
    packed, scales = torch.zeros(2, 32, 20, dtype=torch.int8), torch.zeros(2, 32)
    twin_packed, twin_scales = torch.zeros_like(packed), torch.zeros_like(scales)
    pairs = [(0, 1), (2, 0)]
    cuda.pack_states(cache.flatten(1, 2), packed, scales, pairs)
    pack_states(cache.flatten(1, 2), twin_packed, twin_scales, pairs)
    assert torch.equal(scales, twin_scales) and (packed.int() - twin_packed.int()).abs().max() <= 1
    restored = torch.zeros_like(cache)
    cuda.unpack_states(restored.flatten(1, 2), packed, scales, pairs)
    error = (restored - cache)[[0, 2]].abs().amax(-1)
    assert (error <= 0.51 * cache[[0, 2]].abs().amax(-1) / 127).all()
    assert not restored[1].any()


def test_a_state_that_is_not_finite_stays_so(cuda: CudaCopies) -> None:
    for bad in (torch.nan, torch.inf):
        states = torch.ones(1, 2, 300)
        states[0, 1, 299] = bad
        packed, scales = torch.zeros(1, 2, 300, dtype=torch.int8), torch.zeros(1, 2)
        for pack, unpack in ((cuda.pack_states, cuda.unpack_states), (pack_states, unpack_states)):
            pack(states, packed, scales, [(0, 0)])
            restored = torch.zeros_like(states)
            unpack(restored, packed, scales, [(0, 0)])
            assert (restored[0, 0] == 1).all() and restored[0, 1].isnan().all()


def test_tensors_that_do_not_fit(cuda: CudaCopies) -> None:
    states, packed, scales = torch.ones(1, 2, 8), torch.zeros(1, 2, 8, dtype=torch.int8), torch.zeros(1, 2)
    with pytest.raises(ValueError, match="packed is torch"):
        cuda.pack_states(states, states, scales, [(0, 0)])
    with pytest.raises(ValueError, match="scales are"):
        cuda.pack_states(states, packed, scales[:, :1], [(0, 0)])
    with pytest.raises(ValueError, match="states have strides"):
        cuda.pack_states(torch.ones(1, 8, 2).transpose(1, 2), packed, scales, [(0, 0)])
    for pair in ((1, 0), (0, 1), (-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="there are 1 states and 1 packed ones"):
            cuda.unpack_states(states, packed, scales, [(0, 0), pair])
    with pytest.raises(ValueError, match="packed are on meta"):
        cuda.pack_states(states, packed.to("meta"), scales, [(0, 0)])
