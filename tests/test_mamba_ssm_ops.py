"""Decoding through mamba-ssm's and causal-conv1d's calls, with stand-ins that compute what those promise."""

import sys
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hybridcache.kernels.dispatch import build_ops
from hybridcache.kernels.reference import ReferenceOps
from tests.kernel_cases import Case, Piece, conv, mamba1, mamba2

pytest.importorskip("triton", reason="needs triton: pip install triton")


def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
) -> Tensor:
    """state [slots, (heads,) dim, N], x, dt [batch, (heads,) dim], A [(heads,) dim, N], B and C by group."""
    assert (
        dt_bias is not None and state_batch_indices is not None and state_batch_indices.dtype == torch.int32
    )
    assert dt.shape == x.shape and A.shape == state.shape[1:] and dt_bias.shape == x.shape[1:]
    if x.dim() == 3:
        B, C = (t.repeat_interleave(x.shape[1] // t.shape[1], dim=1)[:, :, None] for t in (B, C))
    else:
        B, C = B[:, None], C[:, None]
    step = F.softplus(dt + dt_bias) if dt_softplus else dt + dt_bias
    new = state[state_batch_indices] * torch.exp(step[..., None] * A) + (step * x)[..., None] * B
    state[state_batch_indices] = new
    y = (new * C).sum(-1)
    y = y if D is None else y + D * x
    return y if z is None else y * F.silu(z)


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
) -> Tensor:
    assert cache_seqlens is None and conv_state_indices is not None
    window = torch.cat([conv_state[conv_state_indices], x[:, :, None]], dim=2)
    conv_state[conv_state_indices] = window[:, :, 1:]
    y = (window * weight).sum(-1)
    y = y if bias is None else y + bias
    return F.silu(y) if activation == "silu" else y


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, function in (
        ("mamba_ssm.ops.triton.selective_state_update", selective_state_update),
        ("causal_conv1d", causal_conv1d_update),
    ):
        module = ModuleType(name)
        setattr(module, function.__name__, function)
        monkeypatch.setitem(sys.modules, name, module)


def unlimited(case: Case) -> Case:
    """Mamba-2 with a bias and no bounds of the step."""
    return Case(
        case.name,
        case.inputs,
        case.fixed,
        case.states,
        lambda ops, x, w, s, batch: ops.mamba2_scan(
            x[0], x[1], w[0], x[2], x[3], w[1], w[2], (0.0, float("inf")), s[0], batch
        ),
    )


@pytest.mark.parametrize("name", ["conv", "mamba1", "mamba2", "bounded"])
def test_decoding(packages: None, name: str) -> None:
    """Two decoding sequences in any slots are theirs; a prefill before, and emitted states, are not."""
    bounded = mamba2(6, 4, 8, 16, 2)
    case = {
        "conv": conv(6, 10, 4),
        "mamba1": mamba1(6, 8, 16),
        "bounded": bounded,
        "mamba2": unlimited(bounded),
    }[name]
    ops = build_ops("mamba_ssm")
    states = case.storage(5)
    twins = [state.double() for state in states]
    theirs = []
    for pieces in (
        (Piece(0, 3, 4), Piece(0, 2, 1)),
        (Piece(3, 4, 4), Piece(2, 3, 1)),
        (Piece(4, 5, 4, ((1, 0),)), Piece(3, 4, 1)),
    ):
        truth = case.run(ReferenceOps(), twins, pieces, lambda x: x.double())
        out = case.run(ops, states, pieces)
        assert (out - truth).abs().max() < 1e-5 * (1 + truth.abs().max())
        theirs.append(ops.updates)  # type: ignore[attr-defined]
        for state, twin in zip(states, twins, strict=True):
            assert torch.allclose(state.double(), twin, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert theirs == ([0, 0, 0] if name == "bounded" else [0, 1, 1])


def test_without_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mamba_ssm.ops.triton.selective_state_update", None)
    with pytest.raises(ValueError, match="backend mamba_ssm needs mamba-ssm: pip install"):
        build_ops("mamba_ssm")
