"""The same bits for every cut, packing, emission and number of threads."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from hybridcache.kernels.cpu import CpuOps
from hybridcache.kernels.dispatch import build_ops
from tests.kernel_cases import Case, Piece, attention, full_cases, quick_cases

TOKENS = 70


@pytest.fixture(scope="module")
def cpu() -> CpuOps:
    ops = build_ops("cpu")
    assert isinstance(ops, CpuOps)
    return ops


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets every call use all threads, however little it does."""
    monkeypatch.setattr("hybridcache.kernels.operands.GRAIN", 1)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit: NaN equals NaN, and 0 is not -0."""
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


def in_passes(ops: CpuOps, case: Case, cuts: Sequence[int], slot: int = 1) -> tuple[Tensor, list[Tensor]]:
    """Output of all tokens computed from cut to cut, and what the slot holds in the end."""
    states = case.storage(3)
    bounds = [0, *cuts, case.num_tokens]
    outs = [case.run(ops, states, (Piece(start, stop, slot),)) for start, stop in pairwise(bounds)]
    return torch.cat(outs), states


def check_cuts(ops: CpuOps, case: Case, cuts: Sequence[Sequence[int]]) -> None:
    whole, states = in_passes(ops, case, ())
    for cut in cuts:
        out, ends = in_passes(ops, case, cut)
        assert same(out, whole), (case.name, cut)
        assert all(same(end, state) for end, state in zip(ends, states, strict=True)), (case.name, cut)


@pytest.mark.parametrize("index", range(len(quick_cases(1))))
def test_every_cut(cpu: CpuOps, index: int) -> None:
    cuts = [(cut,) for cut in range(TOKENS + 1)] + [(1, 1, 64), (2, 5, 33), tuple(range(1, TOKENS))]
    check_cuts(cpu, quick_cases(TOKENS)[index], cuts)


@pytest.mark.full
@pytest.mark.parametrize("index", range(len(full_cases(1))))
def test_every_cut_at_awkward_sizes(cpu: CpuOps, index: int) -> None:
    cuts = [(cut,) for cut in range(131)] + [tuple(range(1, 130)), (31, 64, 65, 129)]
    check_cuts(cpu, full_cases(130)[index], cuts)


def test_cuts_of_a_long_sequence(cpu: CpuOps) -> None:
    cuts = [(64,), (255,), (256, 257), (100, 900)]
    check_cuts(cpu, attention(1_000, 4, 2, 32), cuts)
    check_cuts(cpu, attention(1_000, 2, 2, 16, window=100), cuts)


@pytest.mark.parametrize("index", [i for i, case in enumerate(quick_cases(1)) if not case.kv])
def test_emitted_states_are_those_of_a_run_that_ends_there(cpu: CpuOps, index: int) -> None:
    case = quick_cases(TOKENS)[index]
    counts = (1, 2, 3, 31, 32, 33, 64, TOKENS)
    states = case.storage(len(counts) + 2)
    case.run(cpu, states, (Piece(0, TOKENS, 0, tuple((n, i + 1) for i, n in enumerate(counts))),))
    for i, count in enumerate(counts):
        solo = case.storage(1)
        case.run(cpu, solo, (Piece(0, count, 0),))
        assert all(same(state[i + 1], alone[0]) for state, alone in zip(states, solo, strict=True)), count
    assert all(state[-1].isnan().all() for state in states)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("index", range(len(quick_cases(1))))
def test_a_mixed_batch_and_threads(cpu: CpuOps, threads: None, index: int, num_threads: int) -> None:
    """Seven sequences of one batch, prefills, resumed chunks and single tokens, against each alone."""
    case = quick_cases(TOKENS)[index]
    torch.set_num_threads(1)
    spans = [(0, 70), (33, 34), (0, 1), (64, 70), (5, 5), (1, 66), (69, 70)]
    batch, alone, outs = case.storage(8), case.storage(8), []
    for slot, (start, stop) in enumerate(spans):
        for states in (batch, alone):
            case.run(cpu, states, (Piece(0, start, slot),))
        outs.append(case.run(cpu, alone, (Piece(start, stop, slot),)))
    torch.set_num_threads(num_threads)
    pieces = [Piece(start, stop, slot) for slot, (start, stop) in enumerate(spans)]
    assert same(case.run(cpu, batch, pieces), torch.cat(outs))
    assert all(same(a, b) for a, b in zip(batch, alone, strict=True))


def test_outputs_and_other_slots_are_written_by_nobody_else(
    cpu: CpuOps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results are allocated full of NaN: every element is written; slots not named keep every bit."""
    empty = torch.empty

    def poisoned(*args: object, **kwargs: object) -> Tensor:
        out: Tensor = empty(*args, **kwargs)  # type: ignore[call-overload]
        return out.fill_(torch.nan) if out.is_floating_point() else out

    monkeypatch.setattr("torch.empty", poisoned)
    for case in quick_cases(TOKENS):
        states = case.storage(4, fill=3.25)
        before = [state.clone() for state in states]
        assert not case.run(cpu, states, (Piece(0, TOKENS, 2),)).isnan().any()
        mine = 2 * (len(states[0]) // 4), 3 * (len(states[0]) // 4)
        for state, old in zip(states, before, strict=True):
            others = torch.ones(len(state), dtype=torch.bool)
            others[mine[0] : mine[1]] = False
            assert same(state[others], old[others])
            assert not state.isnan().any()


def test_what_a_slot_held_does_not_matter_without_a_state(cpu: CpuOps) -> None:
    for case in quick_cases(TOKENS):
        clean, dirty = case.storage(1, fill=0.0), case.storage(1)
        piece = (Piece(0, TOKENS, 0),)
        assert same(case.run(cpu, clean, piece), case.run(cpu, dirty, piece))


def test_kv_that_is_there_is_not_written_again(cpu: CpuOps) -> None:
    case = attention(40, 2, 1, 8)
    states = case.storage(1)
    whole = case.run(cpu, states, (Piece(0, 40, 0),))
    kept = [state.clone() for state in states]
    batch = case.batch((Piece(10, 40, 0),))
    rows = [x[10:] for x in case.inputs]
    tables = [row[row >= 0].tolist() for row in batch.block_tables]
    shared = type(batch).build([30], slots=[0], num_computed=[10], block_tables=tables, kv_start=[25])
    assert (shared.slot_mapping[:15] == -1).all()
    for state in states:
        state[1, 9:] = torch.nan  # the tokens from 25 on
        state[2, :8] = torch.nan
    again = case.apply(cpu, rows, (), states, shared)
    assert same(again, whole[10:])
    assert all(same(a, b) for a, b in zip(states, kept, strict=True))
