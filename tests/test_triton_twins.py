"""Every operation of the Triton backend, interpreted, against its plain torch twin run in float64."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from hybridcache.kernels.dispatch import AnyLinearMethod, build_ops
from hybridcache.kernels.ops import Ops
from hybridcache.kernels.packed import PackedBatch
from hybridcache.kernels.reference import ReferenceOps
from tests.kernel_cases import Case, Piece, attention, conv, full_cases, gated_delta, mamba1, mamba2

triton_ops = pytest.importorskip("hybridcache.kernels.triton.ops", reason="needs triton: pip install triton")

TOLERANCE = 1.5e-5
"""Of float32 results, relative to the largest magnitude plus 1; sums over chunks of 128 are part of them."""
STEPS = (
    Piece(0, 66, 2, ((1, 6), (64, 5), (66, 1))),
    Piece(0, 3, 0),
    Piece(0, 1, 4, ((1, 8),)),
    Piece(5, 5, 7),
)
RESUMED = (Piece(3, 70, 0, ((7, 3),)), Piece(1, 2, 4), Piece(66, 67, 2))


def quick_cases(tokens: int) -> list[Case]:
    """Small in number of programs, which is what costs time in the interpreter."""
    return [
        conv(tokens, 65, 4),
        conv(tokens, 3, 2, silu=False),
        mamba1(tokens, 13, 16),
        mamba1(tokens, 8, 5, plain=True),
        mamba2(tokens, 2, 24, 40, 1),
        mamba2(tokens, 2, 5, 9, 2, plain=True),
        gated_delta(tokens, 1, 2, 16, 20),
        gated_delta(tokens, 1, 1, 7, 3, l2norm=False),
        attention(tokens, 4, 2, 16),
        attention(tokens, 3, 1, 20, window=37, soft_cap=5.0),
    ]


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every tensor that a kernel is given to fill is full of NaN, buffers between kernels too."""
    empty = torch.empty

    def poisoned(*args: object, **kwargs: object) -> Tensor:
        out: Tensor = empty(*args, **kwargs)  # type: ignore[call-overload]
        return out.fill_(torch.nan) if out.is_floating_point() else out

    monkeypatch.setattr("torch.empty", poisoned)
    return iter(())


def assert_close(actual: Tensor, truth: Tensor, tolerance: float) -> None:
    assert torch.equal(actual.isnan(), truth.isnan())
    known = ~truth.isnan()
    if known.any():
        error = (actual.double() - truth.double())[known].abs().max().item()
        assert error <= tolerance * (1 + truth[known].abs().max().item())


def check(ops: Ops, case: Case, dtype: torch.dtype = torch.float32, tolerance: float = TOLERANCE) -> None:
    """Two passes: outputs and every slot, those that were not named still NaN, equal the truth's."""
    states = case.storage(9)
    if case.kv:
        states = [state.to(dtype) for state in states]
    twins = [state.double() for state in states]
    for pieces in (STEPS, RESUMED):
        if not case.kv:
            for state, twin in zip(states, twins, strict=True):
                state[7] = 0.5  # the sequence without tokens keeps this
                twin[7] = 0.5
        truth = case.run(ReferenceOps(), twins, pieces, lambda x: x.to(dtype).double())
        out = case.run(ops, states, pieces, lambda x: x.to(dtype))
        assert out.dtype == dtype
        assert_close(out, truth, tolerance)
        for state, twin in zip(states, twins, strict=True):
            assert_close(state, twin, tolerance)


def names(build: Callable[[int], list[Case]]) -> list[str]:
    return [case.name for case in build(1)]


@pytest.mark.parametrize("index", range(len(quick_cases(1))), ids=names(quick_cases))
def test_against_the_twin(index: int) -> None:
    check(build_ops("triton"), quick_cases(70)[index])


@pytest.mark.parametrize("index", range(0, len(quick_cases(1)), 2), ids=names(quick_cases)[::2])
def test_half_precision(index: int) -> None:
    """float16 operands, products of which are rounded once more than the twin's: weights, scores, states."""
    check(build_ops("triton"), quick_cases(70)[index], torch.float16, 4 * torch.finfo(torch.float16).eps)


@pytest.mark.full
@pytest.mark.parametrize("index", range(len(quick_cases(1))), ids=names(quick_cases))
def test_token_by_token(index: int) -> None:
    """The form whose order of summation is one, which `linear=invariant` takes."""
    check(build_ops("triton", linear="invariant"), quick_cases(70)[index])


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("index", range(len(full_cases(1))))
def test_against_the_twin_at_awkward_sizes(index: int, dtype: torch.dtype) -> None:
    tolerance = TOLERANCE if dtype == torch.float32 else 6 * torch.finfo(dtype).eps
    check(build_ops("triton"), full_cases(70)[index], dtype, tolerance)


@pytest.mark.parametrize("linear", ["auto", "invariant"])
@pytest.mark.parametrize("index", range(0, len(quick_cases(1)), 2), ids=names(quick_cases)[::2])
def test_batches_without_tokens(index: int, linear: AnyLinearMethod) -> None:
    """No sequence; and one without tokens, which starts from zero or keeps the state that it has."""
    ops, case = build_ops("triton", linear=linear), quick_cases(6)[index]
    states = case.storage(3)
    empty = PackedBatch.build([], slots=[], block_tables=[])
    out = case.apply(ops, [x[:0] for x in case.inputs], case.fixed, states, empty)
    assert out.shape[0] == 0 and all(state.isnan().all() for state in states)
    for state in states:
        state[1] = 0.5
    out = case.run(ops, states, (Piece(0, 0, 0), Piece(5, 5, 1)))
    assert out.shape[0] == 0
    for state in states:
        if case.kv:
            assert state[[0, 2]].isnan().all()
        else:
            assert not state[0].any() and (state[1] == 0.5).all() and state[2].isnan().all()
