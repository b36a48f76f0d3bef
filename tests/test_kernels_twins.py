"""Every operation of the CPU backend against its plain torch twin run in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hybridcache.kernels.cpu import CpuOps
from hybridcache.kernels.dispatch import build_ops
from hybridcache.kernels.ops import Activation, Ops
from hybridcache.kernels.reference import ReferenceOps
from tests.kernel_cases import Case, Piece, full_cases, quick_cases

TOLERANCE = 2e-6
"""Of float32 results, relative to the largest magnitude plus 1; sums of up to 256 terms are part of them."""

PIECES = (
    Piece(0, 66, 2, ((1, 6), (64, 5))),
    Piece(66, 66, 7),
    Piece(0, 3, 0),
    Piece(0, 1, 4, ((1, 8),)),
)
RESUMED = (Piece(3, 70, 0, ((7, 3),)), Piece(1, 2, 4))


@pytest.fixture(scope="module")
def cpu() -> CpuOps:
    ops = build_ops("cpu")
    assert isinstance(ops, CpuOps)
    return ops


def assert_close(actual: Tensor, truth: Tensor, tolerance: float = TOLERANCE) -> None:
    assert torch.equal(actual.isnan(), truth.isnan())
    known = ~truth.isnan()
    if known.any():
        error = (actual.double() - truth.double())[known].abs().max().item()
        assert error <= tolerance * (1 + truth[known].abs().max().item())


def check(ops: Ops, case: Case, tolerance: float = TOLERANCE) -> None:
    """Two passes: outputs and every slot, those that were not named still NaN, equal the truth's."""
    states = case.storage(9)
    twins = [state.double() for state in states]
    for pieces in (PIECES, RESUMED):
        if not case.kv:
            for state, twin in zip(states, twins, strict=True):
                state[7] = 0.5  # the empty sequence resumes at token 66 from this
                twin[7] = 0.5
        truth = case.run(ReferenceOps(), twins, pieces, lambda x: x.double())
        assert_close(case.run(ops, states, pieces), truth, tolerance)
        for state, twin in zip(states, twins, strict=True):
            assert_close(state, twin, tolerance)


def cases(build: Callable[[int], list[Case]]) -> list[str]:
    return [case.name for case in build(1)]


@pytest.mark.parametrize("index", range(len(quick_cases(1))), ids=cases(quick_cases))
def test_against_the_twin(cpu: CpuOps, index: int) -> None:
    check(cpu, quick_cases(70)[index])


@pytest.mark.full
@pytest.mark.parametrize("index", range(len(full_cases(1))))
def test_against_the_twin_at_awkward_sizes(cpu: CpuOps, index: int) -> None:
    check(cpu, full_cases(70)[index])


@pytest.mark.parametrize("index", range(len(quick_cases(1))), ids=cases(quick_cases))
def test_the_twin_in_float32_is_as_close(index: int) -> None:
    check(ReferenceOps(), quick_cases(70)[index])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("index", range(len(quick_cases(1))), ids=cases(quick_cases))
def test_half_precision(cpu: CpuOps, index: int, dtype: torch.dtype) -> None:
    """Operands, results and states of 16 bits, float32 in between: only roundings part it from the twin."""
    case = quick_cases(70)[index]
    states = [state.to(dtype) for state in case.storage(9)]
    twins = [state.clone() for state in states]
    out = case.run(cpu, states, PIECES[:1], lambda x: x.to(dtype))
    expected = case.run(ReferenceOps(), twins, PIECES[:1], lambda x: x.to(dtype))
    assert out.dtype == dtype
    epsilon = torch.finfo(dtype).eps
    assert_close(out, expected, epsilon)
    for state, twin in zip(states, twins, strict=True):
        assert_close(state, twin, epsilon)


def test_a_pass_of_nothing(cpu: CpuOps) -> None:
    for case in quick_cases(4):
        assert case.num_tokens == 4
        states = case.storage(2)
        empty = [x[:0] for x in case.inputs]
        out = case.apply(cpu, empty, case.fixed, states, case.batch(()))
        assert out.shape[0] == 0
        assert all(state.isnan().all() for state in states)


def test_a_sequence_without_tokens_starts_from_zero(cpu: CpuOps) -> None:
    for case in quick_cases(4):
        if not case.kv:
            states = case.storage(2)
            case.run(cpu, states, (Piece(0, 0, 1),))
            assert all(state[0].isnan().all() and not state[1].any() for state in states)


ROW_OPS: dict[str, Callable[[Ops, Tensor, Tensor, Tensor], Tensor]] = {
    "silu": lambda ops, x, y, w: ops.silu(x),
    "sigmoid": lambda ops, x, y, w: ops.sigmoid(x),
    "softplus": lambda ops, x, y, w: ops.softplus(x),
    "gelu": lambda ops, x, y, w: ops.gelu(x),
    "gelu_tanh": lambda ops, x, y, w: ops.gelu_tanh(x),
    "relu2": lambda ops, x, y, w: ops.relu2(x),
    "silu_mul": lambda ops, x, y, w: ops.silu_mul(x, y),
    "gelu_mul": lambda ops, x, y, w: ops.gelu_mul(x, y),
    "gelu_tanh_mul": lambda ops, x, y, w: ops.gelu_tanh_mul(x, y),
    "softmax": lambda ops, x, y, w: ops.softmax(x),
    "add": lambda ops, x, y, w: ops.add(x, y),
    "add_part": lambda ops, x, y, w: ops.add(x, y, 0.22),
    "rms_norm": lambda ops, x, y, w: ops.rms_norm(x, w, 1e-5),
    "rms_norm_plain": lambda ops, x, y, w: ops.rms_norm(x, None, 1e-5),
    "rms_norm_unit": lambda ops, x, y, w: ops.rms_norm(x, w, 1e-5, add_unit_offset=True),
    "rms_norm_gate": lambda ops, x, y, w: ops.rms_norm(x, w, 1e-5, gate=y),
    "rms_norm_then_gate": lambda ops, x, y, w: ops.rms_norm(x, w, 1e-5, gate=y, norm_before_gate=True),
    "rope": lambda ops, x, y, w: ops.rope(
        x[:, None], y[:, : x.shape[1] // 2], w[: x.shape[1] // 2] * y[:, :1]
    ),
}


@pytest.mark.parametrize("width", [1, 63, 64, 65, 100])
@pytest.mark.parametrize("name", ROW_OPS)
def test_row_operations(cpu: CpuOps, name: str, width: int) -> None:
    x, y, w = torch.randn(9, width) * 5, torch.randn(9, width) * 3, torch.randn(width)
    truth = ROW_OPS[name](ReferenceOps(), x.double(), y.double(), w.double())
    actual = ROW_OPS[name](cpu, x, y, w)
    assert_close(actual, truth)
    wide = torch.cat([y, x], dim=1)  # rows of a wider tensor are taken where they lie
    assert torch.equal(ROW_OPS[name](cpu, wide[:, width:], wide[:, :width], w), actual)
    ones = [ROW_OPS[name](cpu, x[i : i + 1], y[i : i + 1], w) for i in range(len(x))]
    assert torch.equal(torch.cat(ones), actual)


@pytest.mark.parametrize("name", [name for name in ROW_OPS if name != "rope"])
def test_heads_of_a_wider_tensor(cpu: CpuOps, name: str) -> None:
    # Such rows have no common stride: they are copied, and both copies must live until the kernel is done.
    heads, w = torch.randn(9, 7, 24) * 3, torch.randn(24)
    x, y = heads[:, :3], heads[:, 3:6]
    actual = ROW_OPS[name](cpu, x, y, w)
    assert torch.equal(actual, ROW_OPS[name](cpu, x.contiguous(), y.contiguous(), w))


@pytest.mark.parametrize(("act", "gated"), [("silu", True), ("gelu_tanh", True), ("relu2", False)])
@pytest.mark.parametrize("width", [1, 63, 64, 65, 100])
def test_experts(cpu: CpuOps, act: Activation, gated: bool, width: int) -> None:
    """Against the twin over the same products; rows alone, and experts that are not all our own product."""
    inner, count, top_k = 37, 5, 2
    weights = [(torch.randn((1 + gated) * inner, width), torch.randn(width, inner)) for _ in range(count)]
    x, shares = torch.randn(9, width), torch.rand(9, top_k)
    chosen = torch.stack([torch.randperm(count)[:top_k] for _ in range(9)])
    chosen[chosen == 3] = 4  # one expert has nothing to do
    chosen[:, 1] = torch.where(chosen[:, 0] == chosen[:, 1], 0, chosen[:, 1])
    twin = ReferenceOps()
    wide = [(twin.linear(into.double()), twin.linear(out.double())) for into, out in weights]
    truth = twin.experts(x.double(), shares.double(), chosen, wide, act, gated=gated)
    own = CpuOps(cpu.library, "fixed")
    packed = [(own.linear(into), own.linear(out)) for into, out in weights]
    actual = own.experts(x, shares, chosen, packed, act, gated=gated)
    assert_close(actual, truth, 4 * TOLERANCE)
    ones = [
        own.experts(x[i : i + 1], shares[i : i + 1], chosen[i : i + 1], packed, act, gated=gated)
        for i in range(len(x))
    ]
    assert torch.equal(torch.cat(ones), actual)
    mixed = [(twin.linear(into), out) for (into, _), (_, out) in zip(weights, packed, strict=True)]
    assert_close(own.experts(x, shares, chosen, mixed, act, gated=gated), truth, 4 * TOLERANCE)


def test_functions_over_the_whole_range(cpu: CpuOps) -> None:
    x = torch.cat([torch.linspace(-100, 80, 4001), torch.tensor([0.0, -0.0, 1e-30, -1e-7, torch.nan])])
    twin = ReferenceOps()
    for name in ("silu", "sigmoid", "softplus", "gelu", "gelu_tanh"):
        truth = getattr(twin, name)(x.double())
        actual = getattr(cpu, name)(x).double()
        assert torch.equal(actual.isnan(), x.isnan()), name
        error = (actual - truth).abs() / (truth.abs() + 1e-6)
        assert error[~x.isnan()].max() < 2e-6, name


def test_groups_of_a_norm(cpu: CpuOps) -> None:
    x, gate, weight = torch.randn(5, 90), torch.randn(5, 90), torch.randn(90)
    actual = cpu.rms_norm(x, weight, 1e-6, gate=gate, groups=9)
    assert_close(actual, ReferenceOps().rms_norm(x.double(), weight, 1e-6, gate=gate.double(), groups=9))


def test_equal_values_go_by_index(cpu: CpuOps) -> None:
    x = torch.tensor(
        [[1.0, 3.0, 3.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0, 0.0], [-1.0, -2.0, torch.nan, 5.0, 5.0]]
    )
    values, indices = cpu.top_k(x, 3)
    assert indices.tolist() == [[1, 2, 4], [0, 1, 2], [2, 3, 4]]
    assert torch.equal(values[:2], x.gather(1, indices)[:2])
    x = torch.randint(0, 4, (50, 33)).float()
    for actual, expected in zip(cpu.top_k(x, 7), ReferenceOps().top_k(x, 7), strict=True):
        assert torch.equal(actual, expected)


def test_rotary_table(cpu: CpuOps) -> None:
    positions, inv_freq = torch.tensor([0, 1, 63, 4_096, 100_000]), torch.rand(7)
    angles = (positions[:, None].float() * inv_freq).double()
    cos, sin = cpu.rope_table(positions, inv_freq, 1.5)
    assert_close(cos, angles.cos() * 1.5, 1e-7)
    assert_close(sin, angles.sin() * 1.5, 1e-7)
