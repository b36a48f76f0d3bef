"""The CUDA kernels, run on the CPU by the emulation, against their plain torch twins in float64."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from hybridcache.kernels.build import find_compiler
from hybridcache.kernels.packed import PackedBatch
from hybridcache.kernels.reference import ReferenceOps
from tests.cuda_emulator import EmulatedOps
from tests.kernel_cases import Case, Piece, full_cases, gated_delta, mamba1, mamba2, quick_cases
from tests.test_kernels_exact import same
from tests.test_kernels_twins import PIECES, assert_close, check

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="the emulation needs g++")

TOKENS = 70
EDGES = (1, 31, 32, 33, 63, 64, 65, TOKENS)
"""Where states are taken: at the first token, at the edges of tiles and beside them, at the end."""
OPERATIONS = ("conv", "mamba1", "mamba2", "gated_delta")


def of_scans(build: Callable[[int], list[Case]]) -> list[int]:
    """Cases of the operations that CUDA has, by index."""
    return [i for i, case in enumerate(build(1)) if case.name.startswith(OPERATIONS)]


@pytest.fixture(scope="module")
def cuda() -> EmulatedOps:
    return EmulatedOps()


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are full of NaN until a kernel has written them."""
    empty = torch.empty

    def poisoned(*args: object, **kwargs: object) -> Tensor:
        out: Tensor = empty(*args, **kwargs)  # type: ignore[call-overload]
        return out.fill_(torch.nan) if out.is_floating_point() else out

    monkeypatch.setattr("torch.empty", poisoned)


@pytest.mark.parametrize("index", of_scans(quick_cases))
def test_against_the_twin(cuda: EmulatedOps, index: int) -> None:
    check(cuda, quick_cases(TOKENS)[index])


@pytest.mark.full
@pytest.mark.parametrize("index", of_scans(full_cases))
def test_against_the_twin_at_awkward_sizes(cuda: EmulatedOps, index: int) -> None:
    check(cuda, full_cases(TOKENS)[index])


@pytest.mark.full
@pytest.mark.parametrize("d_state", [24, 40, 100, 128, 200, 256])
def test_every_width_of_a_state(cuda: EmulatedOps, d_state: int) -> None:
    """Each tiling of the kernels, with several blocks of channels, rows or columns."""
    check(cuda, mamba1(TOKENS, 45, d_state))
    check(cuda, mamba2(TOKENS, 2, 70, d_state, 1))
    check(cuda, gated_delta(TOKENS, 1, 2, d_state, 40))


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.full)])
@pytest.mark.parametrize("index", of_scans(quick_cases)[::2])
def test_half_precision(cuda: EmulatedOps, index: int, dtype: torch.dtype) -> None:
    case = quick_cases(TOKENS)[index]
    states = [state.to(dtype) for state in case.storage(9)]
    twins = [state.clone() for state in states]
    out = case.run(cuda, states, PIECES[:1], lambda x: x.to(dtype))
    expected = case.run(ReferenceOps(), twins, PIECES[:1], lambda x: x.to(dtype))
    assert out.dtype == dtype
    for actual, twin in zip([out, *states], [expected, *twins], strict=True):
        assert_close(actual, twin, torch.finfo(dtype).eps)


@pytest.mark.parametrize("index", of_scans(quick_cases))
def test_cuts_states_and_company_change_no_bit(cuda: EmulatedOps, index: int) -> None:
    """Cold against resumed at every edge, where the cold pass stores states too; and token by token."""
    case = quick_cases(TOKENS)[index]
    states = case.storage(len(EDGES) + 1)
    emits = tuple((count, slot + 1) for slot, count in enumerate(EDGES))
    whole = case.run(cuda, states, (Piece(0, TOKENS, 0, emits),))
    plain = case.storage(1)
    assert same(case.run(cuda, plain, (Piece(0, TOKENS, 0),)), whole)
    for slot, count in enumerate(EDGES):
        alone = case.storage(1)
        assert same(case.run(cuda, alone, (Piece(0, count, 0),)), whole[:count])
        assert all(same(a[0], s[slot + 1]) for a, s in zip(alone, states, strict=True)), count
        if count < TOKENS:
            assert same(case.run(cuda, alone, (Piece(count, TOKENS, 0),)), whole[count:])
            assert all(same(a[0], s[0]) for a, s in zip(alone, states, strict=True)), count
    pieces = [Piece(start, stop, slot + 1) for slot, (start, stop) in enumerate(pairwise(EDGES))]
    together = case.run(cuda, states, pieces)  # each from the state that the cold pass left
    assert same(together, whole[1:])
    alone = case.storage(1)
    singles = [case.run(cuda, alone, (Piece(t, t + 1, 0),)) for t in range(TOKENS)]
    assert same(torch.cat(singles), whole)
    assert all(same(a[0], s[-1]) for a, s in zip(alone, states, strict=True))


def test_a_pass_of_nothing_and_a_sequence_without_tokens(cuda: EmulatedOps) -> None:
    for index in of_scans(quick_cases):
        case = quick_cases(4)[index]
        states = case.storage(2)
        empty = [x[:0] for x in case.inputs]
        assert case.apply(cuda, empty, case.fixed, states, case.batch(())).shape[0] == 0
        assert all(state.isnan().all() for state in states)
        case.run(cuda, states, (Piece(0, 0, 1),))
        assert all(state[0].isnan().all() and not state[1].any() for state in states)


def test_operands_of_mixed_types_are_not_rounded(cuda: EmulatedOps) -> None:
    case = mamba1(5, 8, 5, plain=True)
    x, dt, _, b, c = case.inputs
    state, twin = case.storage(1)[0], case.storage(1)[0].double()
    batch = case.batch((Piece(0, 5, 0),))
    out = cuda.mamba1_scan(x.bfloat16(), dt, case.fixed[0], b, c, None, None, None, state, batch)
    assert out.dtype == torch.bfloat16
    wide, a = [t.double() for t in (x.bfloat16(), dt, b, c)], case.fixed[0].double()
    ReferenceOps().mamba1_scan(wide[0], wide[1], a, wide[2], wide[3], None, None, None, twin, batch)
    assert_close(state, twin)


def test_what_does_not_fit_is_named(cuda: EmulatedOps) -> None:
    case = mamba1(5, 8, 5)
    x, dt, z, b, c = case.inputs
    a, d, bias = case.fixed
    state, batch = case.storage(2)[0], case.batch((Piece(0, 5, 0),))
    with pytest.raises(ValueError, match=r"dt has shape \(4, 8\); expected \(5, 8\)"):
        cuda.mamba1_scan(x, dt[1:], a, b, c, d, z, bias, state, batch)
    with pytest.raises(ValueError, match=r"d_state is 257; the kernels take 1 to 256"):
        cuda.mamba1_scan(x, dt, torch.zeros(8, 257), b, c, d, z, bias, state, batch)
    with pytest.raises(ValueError, match="slot 4 of a pool of 2"):
        cuda.mamba1_scan(x, dt, a, b, c, d, z, bias, state, PackedBatch.build([5], slots=[4]))
    with pytest.raises(ValueError, match="an operand is torch"):
        cuda.mamba1_scan(x.long(), dt, a, b, c, d, z, bias, state, batch)
    with pytest.raises(ValueError, match="entries must be contiguous"):
        cuda.mamba1_scan(x, dt, a, b, c, d, z, bias, torch.zeros(2, 5, 8).transpose(1, 2), batch)
    with pytest.raises(ValueError, match="x is on meta"):
        cuda.mamba1_scan(x.to("meta"), dt, a, b, c, d, z, bias, state, batch)


@pytest.fixture(scope="module")
def chunked() -> EmulatedOps:
    ops = EmulatedOps()
    ops.chunk_below = 1 << 60
    return ops


def test_chunks_against_the_twin(chunked: EmulatedOps) -> None:
    check(chunked, mamba1(TOKENS, 13, 16))
    check(chunked, mamba1(TOKENS, 8, 5, plain=True))
    case = mamba1(300, 37, 9)
    counts = (1, 127, 128, 129, 255, 256, 257, 300)
    states, twins = case.storage(12), [state.double() for state in case.storage(12)]
    pieces = (
        Piece(0, 300, 0, tuple((n, i + 1) for i, n in enumerate(counts))),
        Piece(0, 130, 9),
        Piece(5, 5, 10),
    )
    for state in (*states, *twins):
        state[10] = 0.5
    truth = case.run(ReferenceOps(), twins, pieces, lambda x: x.double())
    assert_close(case.run(chunked, states, pieces), truth)
    assert_close(states[0], twins[0])
    resumed = (Piece(130, 300, 9),)
    truth = case.run(ReferenceOps(), twins, resumed, lambda x: x.double())
    assert_close(case.run(chunked, states, resumed), truth)
    assert_close(states[0], twins[0])


def test_more_chunks_than_a_grid_takes_are_refused_each_time(
    chunked: EmulatedOps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridcache.kernels.cuda.scans.MAX_SEQUENCES", 1)
    case = mamba1(130, 3, 4)
    batch, states = case.batch((Piece(0, 130, 0),)), case.storage(1)
    for _ in range(2):
        with pytest.raises(ValueError, match="2 chunks of tokens in a batch; at most 1"):
            case.apply(chunked, case.inputs, case.fixed, states, batch)


def test_a_cut_at_the_edge_of_chunks_changes_no_bit(chunked: EmulatedOps) -> None:
    case = mamba1(300, 5, 16)
    states = case.storage(6)
    whole = case.run(chunked, states, (Piece(0, 300, 0, ((128, 1), (200, 2), (256, 3))),))
    plain = case.storage(6)
    assert same(case.run(chunked, plain, (Piece(0, 300, 0),)), whole)
    for slot, cut in ((1, 128), (3, 256)):
        first = case.run(chunked, plain, (Piece(0, cut, slot),))
        assert same(plain[0][slot], states[0][slot])
        rest = case.run(chunked, plain, (Piece(cut, 300, slot),))
        assert same(torch.cat([first, rest]), whole)
        assert same(plain[0][slot], states[0][0])
    # Beside others, and resumed from what the cold pass stored.
    together = case.run(chunked, states, (Piece(0, 130, 4), Piece(128, 300, 1), Piece(256, 300, 3)))
    assert same(together, torch.cat([whole[:130], whole[128:], whole[256:]]))
