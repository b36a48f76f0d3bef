"""Compiling, falling back, packing linears, and what is refused before a kernel runs."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hybridcache.cli import main
from hybridcache.kernels import build
from hybridcache.kernels.build import BuildError, build_library, cache_folder
from hybridcache.kernels.cpu import CpuOps
from hybridcache.kernels.dispatch import build_ops
from hybridcache.kernels.huge_pages import HUGE_PAGE, HugePages
from hybridcache.kernels.linear import (
    TEST_PANELS,
    FixedLinear,
    LinearMethod,
    OneDnnLinear,
    RowByRowLinear,
    rows_agree,
)
from hybridcache.kernels.ops import Linear
from hybridcache.kernels.packed import PackedBatch


@pytest.fixture(scope="module")
def cpu() -> CpuOps:
    ops = build_ops("cpu")
    assert isinstance(ops, CpuOps)
    return ops


@pytest.fixture
def small_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """One short source file in place of csrc/, and an empty cache folder."""
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "one.cpp").write_text('extern "C" int one() { return 1; }\n')
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setenv("HYBRIDCACHE_CACHE", str(tmp_path / "cache"))
    return sources


def test_the_library_is_kept_and_follows_its_source(small_sources: Path) -> None:
    first = build_library()
    assert first.compiled_now
    assert first.path.parent == small_sources.parent / "cache"
    assert build_library() == first._replace(compiled_now=False)
    (small_sources / "one.cpp").write_text('extern "C" int one() { return 2; }\n')
    assert build_library().path != first.path
    assert [path.suffix for path in first.path.parent.iterdir()] == [".so", ".so"]  # nothing else is left


def test_two_processes_build_at_once(small_sources: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from hybridcache.kernels import build\n"
        "build.SOURCES = Path(sys.argv[1])\n"
        "import ctypes; print(ctypes.CDLL(str(build.build_library().path)).one())"
    )
    command = [sys.executable, "-c", program, str(small_sources)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0].strip() for process in running] == ["1", "1"]


def test_messages_of_the_compiler_are_passed_on(small_sources: Path) -> None:
    (small_sources / "one.cpp").write_text("int one() { return undeclared_name; }\n")
    with pytest.raises(BuildError, match=r"one\.cpp.*(\n.*)*undeclared_name"):
        build_library()


def test_a_folder_that_cannot_be_written(small_sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDCACHE_CACHE", str(small_sources / "one.cpp"))
    with pytest.raises(BuildError, match="HYBRIDCACHE_CACHE"):
        build_library()


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYBRIDCACHE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/hybridcache")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "hybridcache"


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HYBRIDCACHE_CXX", "")
    with pytest.warns(UserWarning, match="reference instead of cpu"):
        ops = build_ops()
    assert (ops.name, ops.numerics) == ("reference", "tolerant")
    with pytest.raises(BuildError, match="install g\\+\\+"):
        build_ops("cpu")
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "reference on cpu, tolerant numerics: plain torch" in shown
    assert "tolerant" in shown


def test_doctor_with_a_compiler(cpu: CpuOps, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--backend", "cpu"]) == 0
    shown = capsys.readouterr().out
    for fact in (str(cpu.library.path), cpu.library.compiler, torch.__version__.partition("+")[0], "exact"):
        assert fact in shown
    with pytest.raises(SystemExit):
        main(["doctor", "--backend", "gpu"])
    assert "backend is 'gpu'" in capsys.readouterr().err


def test_choice_of_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDCACHE_BACKEND", "reference")
    assert build_ops().name == "reference"
    assert build_ops("cpu").name == "cpu"
    with pytest.raises(ValueError, match="'gpu'"):
        build_ops("gpu")


SHAPES = [(1, 1), (1, 384), (65, 100), (64, 63), (200, 33), (256, 2_048)]


@pytest.mark.parametrize("method", ["onednn", "fixed"])
@pytest.mark.parametrize("shape", SHAPES)
def test_linears(method: str, shape: tuple[int, int]) -> None:
    ops = build_ops("cpu", linear=method)  # type: ignore[arg-type]
    weight, bias, x = torch.randn(shape), torch.randn(shape[0]), torch.randn(2, 5, shape[1])
    linear = ops.linear(weight, bias)
    assert linear.method == method
    truth = x.double() @ weight.double().T + bias.double()
    assert (linear(x) - truth).abs().max() < 2e-6 * (1 + truth.abs().max())
    assert linear(x[:0]).shape == (0, 5, shape[0])
    assert linear(x.bfloat16()).dtype == torch.bfloat16
    assert rows_agree(linear)
    with pytest.raises(ValueError, match=f"width {shape[1] + 1}"):
        linear(torch.zeros(1, shape[1] + 1))


def test_bfloat16_weights_stay_small_and_rows_agree(cpu: CpuOps) -> None:
    weight, x = torch.randn(70, 129).bfloat16(), torch.randn(5, 129).bfloat16()
    linear = cpu.linear(weight)
    assert linear.method == "fixed"
    assert rows_agree(linear)
    truth = x.double() @ weight.double().T
    assert (linear(x).double() - truth).abs().max() < 2**-8 * truth.abs().max()


class Dependent(Linear):
    """A product whose rows depend on how many there are."""

    def __init__(self, linear: Linear) -> None:
        self.in_features, self.out_features, self.method = linear.in_features, linear.out_features, "bad"
        self._linear = linear

    def __call__(self, x: Tensor) -> Tensor:
        return self._linear(x) * (1 + 1e-6 * (len(x) == 17))


def failing(methods: set[str], tried: list[tuple[str, int]]) -> Callable[[Linear], bool]:
    """A self-test that sees the products of these methods go wrong at 17 rows, and notes what was tried."""

    def self_test(linear: Linear) -> bool:
        tried.append((linear.method, linear.out_features))
        return rows_agree(Dependent(linear) if linear.method in methods else linear)

    return self_test


def test_a_mismatch_takes_our_own_product(cpu: CpuOps) -> None:
    tried: list[tuple[str, int]] = []
    ops = CpuOps(cpu.library, "tested", failing({"onednn"}, tried))
    weight = torch.randn(40, 30)
    for _ in range(3):
        assert isinstance(ops.linear(weight), FixedLinear)
    assert tried == [("onednn", 40), ("fixed", 40)]  # once a shape
    assert isinstance(CpuOps(cpu.library, "tested").linear(weight), OneDnnLinear)
    x = torch.randn(9, 30)
    assert torch.allclose(ops.linear(weight)(x), x @ weight.T, atol=1e-5)


@pytest.mark.parametrize("method", ["fixed", "tested"])
def test_a_mismatch_of_our_own_product_takes_rows_one_by_one(cpu: CpuOps, method: LinearMethod) -> None:
    ops = CpuOps(cpu.library, method, failing({"onednn", "fixed"}, []))
    weight, bias, x = torch.randn(40, 30), torch.randn(40), torch.randn(2, 9, 30)
    linear = ops.linear(weight, bias)
    assert isinstance(linear, RowByRowLinear)
    assert rows_agree(linear)
    assert torch.allclose(linear(x), x @ weight.T + bias, atol=1e-5)
    assert linear(x[:0]).shape == (0, 9, 40)
    assert isinstance(CpuOps(cpu.library, "fixed").linear(weight, bias), FixedLinear)


@pytest.mark.parametrize("outs", [(64, 32), (64, 64, 7), (7, 64), (64, 1)])
def test_joined_weights_are_one_weight(cpu: CpuOps, outs: tuple[int, ...]) -> None:
    """In whole panels or not; every method gives the bits of the weights joined beforehand."""
    parts, bias, x = [torch.randn(n, 33) for n in outs], torch.randn(sum(outs)), torch.randn(5, 33)
    for method in ("fixed", "tested"):
        ops = CpuOps(cpu.library, method)
        joined, whole = ops.joined_linear(parts, bias), ops.linear(torch.cat(parts), bias)
        assert joined.method == whole.method and joined.out_features == sum(outs)
        assert torch.equal(joined(x), whole(x))
    half = [part.half() for part in parts]
    assert torch.equal(cpu.joined_linear(half, bias)(x), cpu.linear(torch.cat(half), bias)(x))


def test_of_a_wide_weight_a_few_panels_are_tried(cpu: CpuOps) -> None:
    tried: list[tuple[str, int]] = []
    ops = CpuOps(cpu.library, "fixed", failing(set(), tried))
    linear = ops.linear(torch.randn(1_003, 30))
    assert isinstance(linear, FixedLinear)
    assert tried == [("fixed", TEST_PANELS * linear.panel + 1_003 % linear.panel)]
    ops.linear(torch.randn(1_003, 30))
    ops.linear(torch.randn(1_003, 31))
    assert len(tried) == 2


def test_torch_without_the_private_operators(cpu: CpuOps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OneDnnLinear, "available", staticmethod(lambda weight: False))
    assert isinstance(CpuOps(cpu.library, "tested").linear(torch.randn(4, 4)), FixedLinear)
    with pytest.raises(ValueError, match="onednn"):
        CpuOps(cpu.library, "onednn").linear(torch.randn(4, 4))


def test_errors_name_the_value(cpu: CpuOps) -> None:
    batch = PackedBatch.build([2, 1], slots=[0, 3], block_tables=[[0], [1]], block_size=4)
    state, x, w = torch.zeros(4, 8, 3), torch.zeros(3, 8), torch.zeros(8, 4)
    cpu.causal_conv1d(x, w, None, state, batch)
    with pytest.raises(ValueError, match="slot 3 of a pool of 3 slots"):
        cpu.causal_conv1d(x, w, None, state[:3], batch)
    with pytest.raises(ValueError, match=r"x has shape \(2, 8\); expected \(3, 8\)"):
        cpu.causal_conv1d(x[:2], w, None, state, batch)
    with pytest.raises(ValueError, match=r"x is torch\.float64"):
        cpu.causal_conv1d(x.double(), w, None, state, batch)
    with pytest.raises(ValueError, match=r"conv_state has strides .*contiguous"):
        cpu.causal_conv1d(x, w, None, torch.zeros(4, 3, 8).transpose(1, 2), batch)
    with pytest.raises(ValueError, match="activation is 'tanh'"):
        cpu.causal_conv1d(x, w, None, state, batch, "tanh")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="slot -1"):
        cpu.causal_conv1d(x, w, None, state, PackedBatch.build([3]))
    q, cache = torch.zeros(3, 3, 8), torch.zeros(2, 4, 2, 8)
    with pytest.raises(ValueError, match="3 query heads are no multiple of 2"):
        cpu.paged_attention(q, cache, cache, batch, 1.0)
    with pytest.raises(ValueError, match="block 1 of a pool of 1"):
        cpu.paged_attention(q[:, :2], cache[:1], cache[:1], batch, 1.0)
    with pytest.raises(ValueError, match="blocks of 5 tokens"):
        cpu.paged_attention(q[:, :2], torch.zeros(2, 5, 2, 8), cache, batch, 1.0)
    with pytest.raises(ValueError, match="window is 0"):
        cpu.paged_attention(q[:, :2], cache, cache, batch, 1.0, window=0)
    with pytest.raises(ValueError, match="sequence 0 has no blocks"):
        cpu.paged_attention(q[:, :2], cache, cache, PackedBatch.build([3], block_size=4), 1.0)


def test_batches_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="slot 5 of sequence 1 is used twice"):
        PackedBatch.build([1, 1], slots=[5, 5])
    with pytest.raises(ValueError, match="slot 5 of sequence 1 is used twice"):
        PackedBatch.build([1, 1], slots=[4, 5], emits=[[(1, 5)], []])
    with pytest.raises(ValueError, match="after 4 tokens"):
        PackedBatch.build([3], slots=[0], emits=[[(4, 1)]])
    with pytest.raises(ValueError, match="after 2 tokens"):
        PackedBatch.build([3], slots=[0], emits=[[(2, 1), (2, 2)]])
    with pytest.raises(ValueError, match="2 blocks of 16 tokens for 33"):
        PackedBatch.build([3], num_computed=[30], block_tables=[[0, 1]])
    with pytest.raises(ValueError, match="block id -2"):
        PackedBatch.build([3], block_tables=[[-2]])
    with pytest.raises(ValueError, match="slots has 1 entries for 2 sequences"):
        PackedBatch.build([1, 1], slots=[0])


def test_a_batch_in_numbers() -> None:
    batch = PackedBatch.build(
        [3, 0, 2],
        slots=[4, 2, 9],
        num_computed=[15, 3, 0],
        emits=[[(1, 0), (3, 1)], [], [(2, 5)]],
        block_tables=[[7, 3], [], [1]],
        kv_start=[16, 3, 0],
    )
    assert batch.cu_seqlens.tolist() == [0, 3, 3, 5]
    assert batch.has_state.tolist() == [True, True, False]
    assert batch.emit_offsets.tolist() == [0, 2, 2, 3]
    assert batch.positions.tolist() == [15, 16, 17, 0, 1]
    assert batch.slot_mapping.tolist() == [-1, 48, 49, 16, 17]
    assert batch.block_tables.tolist() == [[7, 3], [-1, -1], [1, -1]]
    assert (batch.num_tokens, batch.max_slot, batch.min_slot, batch.max_block) == (5, 9, 0, 7)
    assert batch.num_pairs == 16 + 17 + 18 + 1 + 2


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this system joins no pages"
)
def test_weights_ask_for_huge_pages_once_they_are_filled() -> None:
    pages = HugePages(3 * HUGE_PAGE // 4, torch.float32)
    address = pages.tensor.data_ptr()

    def asked() -> bool:
        inside = False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if span := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
                inside = int(span[1], 16) <= address < int(span[2], 16)
            elif inside and line.startswith("VmFlags:"):
                return "hg" in line.split()
        raise AssertionError("the tensor lies nowhere")

    pages.tensor.copy_(torch.arange(len(pages.tensor)))
    assert not asked()
    pages.filled()
    assert asked()
    assert torch.equal(pages.tensor, torch.arange(len(pages.tensor), dtype=torch.float32))
