"""A token whose numbers are not finite reaches its own sequence from itself on, and nothing else."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hybridcache.kernels.build import find_compiler
from hybridcache.kernels.dispatch import build_ops
from hybridcache.kernels.ops import Ops
from tests.cuda_emulator import EmulatedOps
from tests.kernel_cases import Case, Piece, attention, conv, gated_delta, mamba1, mamba2
from tests.test_kernels_exact import same

TOKENS = 24
CASES: Sequence[Case] = (
    conv(TOKENS, 5, 4),
    mamba1(TOKENS, 3, 4),
    mamba2(TOKENS, 1, 5, 9, 1),
    gated_delta(TOKENS, 1, 1, 7, 5),
    attention(TOKENS, 3, 1, 16),
    attention(TOKENS, 2, 1, 16, window=7, soft_cap=5.0),
)
PIECES = (Piece(3, 20, 0, ((4, 3), (9, 4))), Piece(5, 24, 1), Piece(7, 8, 2))
"""Resumed and cut, so that tokens lie across tiles; the first is poisoned at its 10th token of 17."""
BAD, LAST = 9, 17


def emulated() -> Ops:
    if find_compiler() is None:
        pytest.skip("the emulation needs g++")
    return EmulatedOps()


def emulated_chunks() -> Ops:
    ops = emulated()
    assert isinstance(ops, EmulatedOps)
    ops.chunk_below = 1 << 60
    return ops


def triton(linear: str) -> Callable[[], Ops]:
    def build() -> Ops:
        pytest.importorskip("triton", reason="needs triton: pip install triton")
        return build_ops("triton", linear=linear)  # type: ignore[arg-type]

    return build


BACKENDS: dict[str, Callable[[], Ops]] = {
    "reference": lambda: build_ops("reference"),
    "cpu": lambda: build_ops("cpu"),
    "triton": triton("auto"),
    "triton-invariant": triton("invariant"),
    "cuda": emulated,
    "cuda-chunks": emulated_chunks,
}


def poisoned(case: Case, operand: int, bad: float) -> Case:
    """The case with every number of one operand's token not finite, that of PIECES[0]."""
    inputs = [x.clone() for x in case.inputs]
    inputs[operand][PIECES[0].start + BAD] = bad
    return replace(case, inputs=tuple(inputs))


def run(ops: Ops, case: Case, bad: Case) -> tuple[Tensor, list[Tensor]]:
    """Outputs of the pieces, each of which goes on from what `case` left; then all states."""
    states = case.storage(5)
    for piece in PIECES:
        case.run(ops, states, (Piece(0, piece.start, piece.slot),))
    # What two sequences share is their tokens, so that the poisoned one's are its own only here.
    rows = [
        torch.cat([b[p.start : p.stop] if p.slot == 0 else x[p.start : p.stop] for p in PIECES])
        for x, b in zip(case.inputs, bad.inputs, strict=True)
    ]
    return case.apply(ops, rows, case.fixed, states, case.batch(PIECES)), states


@pytest.mark.parametrize("bad", [torch.nan, pytest.param(torch.inf, marks=pytest.mark.full)])
@pytest.mark.parametrize("index", range(len(CASES)), ids=[case.name for case in CASES])
@pytest.mark.parametrize("backend", BACKENDS)
def test_earlier_tokens_and_other_sequences(backend: str, index: int, bad: float) -> None:
    case = CASES[index]
    ops = BACKENDS[backend]()
    clean, states = run(ops, case, case)
    assert clean.isfinite().all()
    for operand in range(len(case.inputs)):
        out, kept = run(ops, case, poisoned(case, operand, bad))
        assert same(out[:BAD], clean[:BAD]), (operand, "earlier tokens")
        assert same(out[LAST:], clean[LAST:]), (operand, "other sequences")
        assert not out[BAD:LAST].isfinite().all() or bad == torch.inf, operand
        if not case.kv:
            for state, unharmed in zip(kept, states, strict=True):
                assert same(state[1:], unharmed[1:]), (operand, "other states, and those stored before")


ACTIVATIONS = ("silu", "sigmoid", "softplus", "gelu", "gelu_tanh", "relu2", "softmax")


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("backend", ["reference", "cpu", "triton"])
def test_activations_keep_what_is_no_number(backend: str, name: str) -> None:
    """A layer that made 0 of it would answer as if nothing had happened."""
    apply = getattr(BACKENDS[backend](), name)
    x = torch.linspace(-3, 30, 3 * 70).view(3, 70)
    clean = apply(x)
    x[1, 33] = torch.nan
    out = apply(x)
    bad = torch.zeros_like(x, dtype=torch.bool)
    bad[1, slice(None) if name == "softmax" else 33] = True
    assert torch.equal(out.isnan(), bad) and same(out[~bad], clean[~bad])
