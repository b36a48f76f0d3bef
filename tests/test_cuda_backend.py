"""Backend `cuda`: which operations go to CUDA (here: its emulation) and which to Triton (its interpreter)."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hybridcache.kernels.build import find_compiler
from hybridcache.kernels.cpu import CpuOps
from hybridcache.kernels.cuda.build import Variant
from hybridcache.kernels.cuda.copies import CudaCopies
from hybridcache.kernels.dispatch import build_ops
from hybridcache.kernels.reference import ReferenceOps
from tests.cuda_emulator import EmulatedKernels
from tests.kernel_cases import Case, Piece, attention, conv, gated_delta, mamba1, mamba2
from tests.test_kernels_exact import same
from tests.test_kernels_twins import assert_close
from tests.worker_setup import MakeWorker, given, make_worker, serve, tokens

__all__ = ["make_worker"]

cuda_ops = pytest.importorskip("hybridcache.kernels.cuda.ops", reason="needs triton: pip install triton")
pytestmark = pytest.mark.skipif(find_compiler() is None, reason="the emulation needs g++")

TOKENS = 20
PREFILL = (Piece(0, TOKENS - 1, 0, ((7, 2),)), Piece(0, 3, 1))
DECODE = (Piece(TOKENS - 1, TOKENS, 0), Piece(3, 4, 1))


class RecordingKernels(EmulatedKernels):
    """Keeps the names of the sources that were launched."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[str] = []

    def load(self, variant: Variant) -> ctypes.CDLL:
        self.launched.append(variant.source)
        return super().load(variant)


def launched(case: Case, linear: str, pieces: tuple[Piece, ...]) -> list[str]:
    """Sources launched by `pieces`, whose results are those of the twin; DECODE computes PREFILL first."""
    kernels = RecordingKernels()
    ops = cuda_ops.CudaOps(torch.device("cpu"), linear, kernels)
    states = case.storage(4)
    if pieces is DECODE:
        case.run(ops, states, PREFILL)
    twins = [state.double() for state in states]
    kernels.launched.clear()
    out = case.run(ops, states, pieces)
    assert_close(out, case.run(ReferenceOps(), twins, pieces, lambda x: x.double()), 4e-6)
    for state, twin in zip(states, twins, strict=True):
        assert_close(state, twin, 4e-6)
    return kernels.launched


@pytest.mark.parametrize(
    ("case", "linear", "prefill", "decode"),
    [
        (conv(TOKENS, 9, 4), "auto", ["causal_conv1d"], ["causal_conv1d"]),
        (
            mamba1(TOKENS, 9, 16),
            "auto",
            ["selective_scan", "selective_pass", "selective_scan"],
            ["selective_update"],
        ),
        (mamba1(TOKENS, 9, 16), "invariant", ["selective_scan"], ["selective_update"]),
        (mamba2(TOKENS, 2, 5, 16, 1), "auto", [], ["mamba2_recurrence"]),
        (mamba2(TOKENS, 2, 5, 16, 1), "invariant", ["mamba2_recurrence"], ["mamba2_recurrence"]),
        (gated_delta(TOKENS, 1, 2, 8, 6), "auto", [], ["gated_delta_recurrence"]),
        (
            gated_delta(TOKENS, 1, 2, 8, 6),
            "invariant",
            ["gated_delta_recurrence"],
            ["gated_delta_recurrence"],
        ),
        (attention(TOKENS, 2, 1, 16), "auto", [], []),
    ],
    ids=lambda value: value.name if isinstance(value, Case) else None,
)
def test_where_operations_go(case: Case, linear: str, prefill: list[str], decode: list[str]) -> None:
    assert launched(case, linear, PREFILL) == prefill
    assert launched(case, linear, DECODE) == decode


def test_a_sequence_without_tokens_does_not_make_a_prefill_go_by_token() -> None:
    """Two tokens and none are two tokens of two sequences, as in decoding."""
    for case in (mamba2(TOKENS, 2, 5, 16, 1), gated_delta(TOKENS, 1, 2, 8, 6)):
        assert launched(case, "auto", (Piece(0, 2, 0), Piece(5, 5, 1))) == []
        assert launched(case, "auto", (Piece(0, 1, 0), Piece(5, 5, 1))) != []


def test_an_invariant_backend_decodes_the_bits_of_a_prefill() -> None:
    ops = cuda_ops.CudaOps(torch.device("cpu"), "invariant", EmulatedKernels())
    assert ops.numerics == "exact"
    for case in (mamba2(TOKENS, 2, 5, 16, 1), gated_delta(TOKENS, 1, 2, 8, 6)):
        whole = case.run(ops, case.storage(1), (Piece(0, TOKENS, 0),))
        states = case.storage(1)
        singles = [case.run(ops, states, (Piece(t, t + 1, 0),)) for t in range(TOKENS)]
        assert same(torch.cat(singles), whole)


def test_it_needs_a_gpu() -> None:
    with pytest.raises(ValueError, match="backend cuda on a CPU"):
        build_ops("cuda")


def test_a_worker_copies_as_its_backend_does(
    monkeypatch: pytest.MonkeyPatch, make_worker: MakeWorker, checkpoint: Callable[[str], Path]
) -> None:
    assert cuda_ops.CudaOps(torch.device("cpu"), "auto", EmulatedKernels()).copier.kernels
    kernels = RecordingKernels()
    monkeypatch.setattr(CpuOps, "copier", CudaCopies(kernels))
    worker = make_worker(checkpoint("nemotron_h"))
    cold, hit = serve(worker, [tokens(40)] * 2, together=False)
    assert hit.num_cached_tokens and "entry_copy" in kernels.launched
    assert given([hit]) == given([cold])
