"""The same bits from the Triton backend for cuts, packing and emission, as docs/numerics.md says for GPUs."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from hybridcache.kernels.dispatch import build_ops
from hybridcache.kernels.ops import Ops
from tests.kernel_cases import Case, Piece, attention, conv, gated_delta, mamba1, mamba2

product = pytest.importorskip(
    "hybridcache.experiments.interpreted_product", reason="needs triton: pip install triton"
)

TOKENS = 44
CHUNK = 32
"""Tokens of a chunk in these tests; 16 of the gated delta rule."""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("hybridcache.kernels.triton.mamba2.CHUNK", CHUNK)
    monkeypatch.setattr("hybridcache.kernels.triton.gated_delta.CHUNK", CHUNK // 2)
    with product.rows_alike():
        yield


def case_of(name: str, tokens: int = TOKENS) -> Case:
    return {
        "conv": lambda: conv(tokens, 5, 4),
        "mamba1": lambda: mamba1(tokens, 3, 4),
        "mamba2": lambda: mamba2(tokens, 1, 5, 9, 1),
        "gated_delta": lambda: gated_delta(tokens, 1, 1, 7, 5),
        "attention": lambda: attention(tokens, 3, 1, 16),
        "window": lambda: attention(tokens, 2, 1, 16, window=37, soft_cap=5.0),
    }[name]()


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit: NaN equals NaN, and 0 is not -0."""
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


def in_passes(ops: Ops, case: Case, cuts: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
    """Output of all tokens computed from cut to cut, and what the slot holds in the end."""
    states = case.storage(3)
    outs = [case.run(ops, states, (Piece(*piece, 1),)) for piece in pairwise([0, *cuts, case.num_tokens])]
    return torch.cat(outs), states


def check_cuts(ops: Ops, case: Case, cuts: Sequence[Sequence[int]]) -> None:
    whole, states = in_passes(ops, case, ())
    assert not whole.isnan().any()
    for cut in cuts:
        out, ends = in_passes(ops, case, cut)
        assert same(out, whole), (case.name, cut)
        assert all(same(end, state) for end, state in zip(ends, states, strict=True)), (case.name, cut)


@pytest.mark.parametrize("name", ["conv", "attention", "window"])
def test_cut_anywhere(name: str) -> None:
    tokens = 44 if name == "conv" else 80  # more than one tile of keys
    check_cuts(build_ops("triton"), case_of(name, tokens), [(2, 35), (17, tokens - 2)])


@pytest.mark.parametrize(("name", "cut"), [("mamba2", CHUNK), ("gated_delta", 16), ("gated_delta", 32)])
def test_scans_cut_at_a_multiple_of_their_chunk(name: str, cut: int) -> None:
    check_cuts(build_ops("triton"), case_of(name), [(cut,)])


@pytest.mark.parametrize("name", ["mamba2", "gated_delta"])
def test_chunks_end_at_places_of_the_sequence_and_not_of_the_pass(name: str) -> None:
    """Resumed in the middle of a chunk, a pass may still be cut at the next multiple."""
    ops, case = build_ops("triton"), case_of(name)
    once, again = in_passes(ops, case, (21,)), in_passes(ops, case, (21, CHUNK))
    assert same(once[0], again[0])
    assert all(same(a, b) for a, b in zip(once[1], again[1], strict=True))


@pytest.mark.parametrize("name", ["mamba2", "gated_delta"])
def test_scans_cut_elsewhere_differ_by_rounding_only(name: str) -> None:
    ops, case = build_ops("triton"), case_of(name)
    whole = in_passes(ops, case, ())[0]
    for cut in (1, 19, 43):
        out = in_passes(ops, case, (cut,))[0]
        assert (out - whole).abs().max() <= 2e-6 * (1 + whole.abs().max())


@pytest.mark.parametrize("name", ["conv", "mamba1", "mamba2", "gated_delta", "attention", "window"])
def test_invariant_mode_is_exact_at_every_cut_and_in_decoding(name: str) -> None:
    ops = build_ops("triton", linear="invariant")
    assert ops.numerics == "exact"
    check_cuts(ops, case_of(name, 9), [(7,), tuple(range(1, 9))])


@pytest.mark.parametrize("name", ["mamba2", "gated_delta"])
def test_an_emitted_state_is_the_one_that_the_pass_goes_on_from(name: str) -> None:
    """An emitted state has the bits of a pass that ends there; emission changes nothing else."""
    ops, case = build_ops("triton"), case_of(name)
    counts = (1, 31, 32, 33, TOKENS)
    states, plain = case.storage(len(counts) + 1), case.storage(1)
    emits = tuple((count, index + 1) for index, count in enumerate(counts))
    out = case.run(ops, states, (Piece(0, TOKENS, 0, emits),))
    assert same(out, case.run(ops, plain, (Piece(0, TOKENS, 0),)))
    assert all(same(state[0], alone[0]) for state, alone in zip(states, plain, strict=True))
    for index, count in enumerate(counts[1:], 2):
        solo = case.storage(1)
        case.run(ops, solo, (Piece(0, count, 0),))
        assert all(same(state[index], alone[0]) for state, alone in zip(states, solo, strict=True)), count


@pytest.mark.parametrize("name", ["conv", "mamba1", "mamba2", "gated_delta", "attention", "window"])
def test_a_mixed_batch(name: str) -> None:
    """Prefills, resumed chunks and single tokens of one batch, against each alone."""
    ops, case = build_ops("triton"), case_of(name, 20)
    spans = [(0, 17), (18, 19), (0, 1), (4, 9), (5, 5)]
    batch, alone, outs = case.storage(5), case.storage(5), []
    for slot, (start, stop) in enumerate(spans):
        for states in (batch, alone):
            case.run(ops, states, (Piece(0, start, slot),))
        outs.append(case.run(ops, alone, (Piece(start, stop, slot),)))
    pieces = [Piece(start, stop, slot) for slot, (start, stop) in enumerate(spans)]
    assert same(case.run(ops, batch, pieces), torch.cat(outs))
    assert all(same(a, b) for a, b in zip(batch, alone, strict=True))


@pytest.mark.parametrize(
    ("x_dtype", "dtype"), [(torch.float32, torch.float16), (torch.float16, torch.float32)]
)
def test_a_product_of_two_types_is_that_of_the_wider(
    monkeypatch: pytest.MonkeyPatch, x_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    """The weight is widened tile by tile in the kernel: a call makes no copy of it."""
    x, weight = torch.randn(5, 40).to(x_dtype), torch.randn(33, 40).to(dtype)
    linear = build_ops("triton", linear="invariant").linear(weight)
    wide = build_ops("triton", linear="invariant").linear(weight.float())(x.float())
    made: list[int] = []
    to = Tensor.to

    def spy(self: Tensor, *arguments: Any) -> Tensor:
        made.append(self.numel())
        return to(self, *arguments)

    monkeypatch.setattr(Tensor, "to", spy)
    out = linear(x)
    monkeypatch.undo()
    assert weight.numel() not in made
    assert out.dtype == x_dtype and torch.equal(out, wide.to(x_dtype))


def test_rows_of_the_invariant_product() -> None:
    ops = build_ops("triton", linear="invariant")
    x, weight, bias = torch.randn(70, 40), torch.randn(33, 40), torch.randn(33)
    linear = ops.linear(weight, bias)
    assert linear.method == "invariant"
    whole = linear(x)
    truth = x.double() @ weight.double().T + bias
    assert (whole - truth).abs().max() < 2e-6 * (1 + truth.abs().max())
    for count in (1, 2, 31, 33):
        assert same(linear(x[:count]), whole[:count])
        assert same(linear(x[-count:]), whole[-count:])
