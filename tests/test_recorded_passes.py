"""Passes that are recorded and repeated: the bits of one that is not, and what ends a recording."""

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hybridcache.kernels.cpu import CpuOps
from hybridcache.kernels.dispatch import build_ops
from hybridcache.kernels.recording import OtherWork, Scratch
from hybridcache.models.load import LoadedModel, load_model
from hybridcache.models.recorded import MAX_TOKENS
from tests.hybrid_runs import Memory, Part, prompt_of, quick_for, run

Checkpoint = Callable[[str], Path]
RECORDED = {"bamba", "granitemoehybrid", "llama", "mamba", "mamba2", "falcon_mamba", "jamba"}
CUTS = (7, 14, 21, 28)


@pytest.fixture(scope="module")
def cpu() -> CpuOps:
    ops = build_ops("cpu", linear="fixed")
    assert isinstance(ops, CpuOps)
    return ops


def loaded_from(checkpoint: Checkpoint, family: str, cpu: CpuOps) -> LoadedModel:
    return load_model(checkpoint(family), ops=cpu)


def in_sevens(loaded: LoadedModel, memory: Memory, tokens: Tensor) -> Tensor:
    """The prompt in passes of 7 tokens each."""
    parts = [Part(tokens[stop - 7 : stop], stop - 7, blocks=range(2)) for stop in CUTS]
    return torch.cat([run(loaded, memory, part)[0] for part in parts])


@quick_for("bamba", "jamba", "nemotron_h")
def test_a_repeated_pass_has_the_bits_of_the_first(family: str, checkpoint: Checkpoint, cpu: CpuOps) -> None:
    """The first pass of 7 tokens is seen, the second recorded, the others repeated; the whole is neither."""
    loaded = loaded_from(checkpoint, family, cpu)
    tokens, memory, other = prompt_of(loaded.spec, CUTS[-1]), Memory(loaded.spec), Memory(loaded.spec)
    (whole,) = run(loaded, other, Part(tokens, blocks=range(2)))
    assert torch.equal(in_sevens(loaded, memory, tokens), whole)
    assert loaded.model.recorded.num_recorded == (family in RECORDED)
    assert all(torch.equal(a, b) for a, b in zip(memory.slot(0), other.slot(0), strict=True))


def test_as_many_tokens_of_other_sequences(checkpoint: Checkpoint, cpu: CpuOps) -> None:
    """Recorded as one sequence of 7 tokens, repeated for 7 of one token each, and for 3 and 4 with emits."""
    loaded = loaded_from(checkpoint, "bamba", cpu)
    memory, other = Memory(loaded.spec, num_slots=10), Memory(loaded.spec, num_slots=10)
    prompts = [prompt_of(loaded.spec, 12, seed) for seed in range(7)]
    in_sevens(loaded, memory, prompt_of(loaded.spec, CUTS[-1]))
    memory.poison()
    for index, prompt in enumerate(prompts):
        run(loaded, memory, Part(prompt[:5], slot=index, blocks=[index]))
        run(loaded, other, Part(prompt[:5], slot=index, blocks=[index]))
    for parts in (
        [Part(p[5:6], 5, slot=i, blocks=[i]) for i, p in enumerate(prompts)],
        [
            Part(prompts[2][6:9], 6, slot=2, blocks=[2], emits=((1, 8), (3, 9))),
            Part(prompts[0][6:10], 6, slot=0, blocks=[0]),
        ],
    ):
        together = run(loaded, memory, *parts)
        alone = [run(loaded, other, part)[0] for part in parts]
        assert all(torch.equal(a, b) for a, b in zip(together, alone, strict=True))
    for slot in (*range(7), 8, 9):
        assert all(torch.equal(a, b) for a, b in zip(memory.slot(slot), other.slot(slot), strict=True)), slot


def test_what_does_not_fit_is_refused_as_ever(checkpoint: Checkpoint, cpu: CpuOps) -> None:
    loaded = loaded_from(checkpoint, "jamba", cpu)
    memory, tokens = Memory(loaded.spec), prompt_of(loaded.spec, CUTS[-1])
    in_sevens(loaded, memory, tokens)
    assert loaded.model.recorded.num_recorded == 1
    with pytest.raises(ValueError, match="slot 8 of a pool of 8 slots"):
        run(loaded, memory, Part(tokens[:7], slot=8, blocks=[0]))
    with pytest.raises(ValueError, match="block 64 of a pool of 64 blocks"):
        run(loaded, memory, Part(tokens[:7], blocks=[64]))
    with pytest.raises(ValueError, match="no blocks"):
        run(loaded, memory, Part(tokens[:7]))


def test_a_recording_ends_with_its_storage(checkpoint: Checkpoint, cpu: CpuOps) -> None:
    loaded = loaded_from(checkpoint, "bamba", cpu)
    tokens = prompt_of(loaded.spec, CUTS[-1])
    (whole,) = run(loaded, Memory(loaded.spec), Part(tokens, blocks=range(2)))
    for _ in range(3):
        memory = Memory(loaded.spec)
        assert torch.equal(in_sevens(loaded, memory, tokens), whole)
        assert loaded.model.recorded.num_recorded == 1
        del memory
        gc.collect()
        assert loaded.model.recorded.num_recorded == 0


def test_long_passes_are_not_recorded(checkpoint: Checkpoint, cpu: CpuOps) -> None:
    loaded = loaded_from(checkpoint, "bamba", cpu)
    memory, tokens = Memory(loaded.spec), prompt_of(loaded.spec, MAX_TOKENS + 1)
    for _ in range(3):
        run(loaded, memory, Part(tokens, blocks=range(5)))
    assert loaded.model.recorded.num_recorded == 0
    for _ in range(3):
        run(loaded, memory, Part(tokens[1:], blocks=range(4)))
    assert loaded.model.recorded.num_recorded == 1


def test_work_outside_of_kernels_cannot_be_recorded(cpu: CpuOps) -> None:
    x, scratch = torch.randn(3, 10), Scratch()
    out, recording = cpu.record(lambda: cpu.silu(cpu.add(x, x[:, :10].view(3, 10), 2.0)), scratch)
    assert recording is not None
    assert torch.equal(out, cpu.silu(cpu.add(x, x, 2.0)))
    for work in (
        lambda: cpu.silu(x * 2),
        lambda: cpu.silu(x.T.contiguous()),
        lambda: cpu.silu(x.bfloat16()).float(),
        lambda: cpu.silu(x.mul_(2)),
        lambda: cpu.silu(x) if float(x[0, 0]) > 0 else x,
    ):
        assert cpu.record(work, scratch)[1] is None


def test_memory_of_results_is_used_again(cpu: CpuOps) -> None:
    x, scratch = torch.randn(4, 100), Scratch()

    def chain() -> Tensor:
        y = x
        for _ in range(20):
            y = cpu.silu(y)
        return y

    out, recording = cpu.record(chain, scratch)
    assert recording is not None
    assert scratch.num_bytes <= 3 * 2_048
    truth = chain()
    assert torch.equal(out, truth)
    kept = [scratch.empty((4, 100), torch.float32).fill_(0) for _ in range(5)]
    assert len({tensor.data_ptr() for tensor in (*kept, out)}) == 6
    assert torch.equal(out, truth)


def test_recording_does_not_load_torchs_compiler() -> None:
    """That takes seconds, and the first request would wait for it."""
    assert not hasattr(OtherWork.__torch_dispatch__, "__wrapped__")
    with OtherWork() as other:
        _ = torch.ones(3) + 1
    assert other.names
