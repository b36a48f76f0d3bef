"""Every CUDA kernel compiles for every architecture, without spills, and uses the registers recorded."""

from pathlib import Path

import pytest

from hybridcache.cli import main
from hybridcache.experiments.cuda_registers import HEADER, row
from hybridcache.kernels.build import BuildError
from hybridcache.kernels.cuda import build
from hybridcache.kernels.cuda.build import (
    ARCHITECTURES,
    RAW,
    SIZES,
    Kernels,
    Variant,
    find_nvcc,
    nvcc_release,
    variants,
)
from hybridcache.kernels.cuda.resources import resources

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cuda_registers.md"
COMMON = {
    "selective_scan": 16,
    "selective_update": 16,
    "selective_pass": 1,
    "mamba2_recurrence": 128,
    "gated_delta_recurrence": 128,
    "causal_conv1d": 4,
    "entry_copy": 1,
    "state_int8": 1,
}
"""Sizes of common models, which the quick run compiles."""

needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="no nvcc: CUDA kernels are not compiled here")


def check(variant: Variant) -> None:
    nvcc = find_nvcc()
    assert nvcc is not None
    found = resources(nvcc, variant, ARCHITECTURES)
    assert [r.architecture for r in found] == list(ARCHITECTURES)
    assert all(r.spills == r.stack == 0 for r in found), found
    text = PAGE.read_text(encoding="utf-8")
    if f"by nvcc {nvcc_release(nvcc)};" in text:
        assert row(variant, found) in text.splitlines()


@needs_nvcc
@pytest.mark.parametrize("source", SIZES)
def test_common_kernels(source: str) -> None:
    check(Variant(source, "raw" if source in RAW else "bf16", COMMON[source]))


@needs_nvcc
@pytest.mark.full
@pytest.mark.parametrize("variant", variants(), ids=lambda v: f"{v.source}-{v.element}-{v.size}")
def test_every_kernel(variant: Variant) -> None:
    check(variant)


def test_the_page_lists_every_kernel_once() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert HEADER in lines
    cells = [[cell.strip() for cell in line.split("|")[1:4]] for line in lines if line.startswith("| ")]
    assert cells[2:] == [[v.source, v.element, str(v.size)] for v in variants()]


def test_every_source_has_sizes() -> None:
    headers = {"device", "selective_step"}
    assert {path.stem for path in build.SOURCES.glob("*.cuh")} == SIZES.keys() | headers


@needs_nvcc
def test_a_library_loads_without_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HYBRIDCACHE_CACHE", str(tmp_path))
    variant = Variant("selective_update", "f16", 16)
    kernels = Kernels.of_this_machine()
    assert kernels.load(variant).hc_selective_update
    assert kernels.compiled == 1
    assert Kernels.of_this_machine().build(variant) == next(tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 1


def test_without_nvcc(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HYBRIDCACHE_NVCC", "")
    monkeypatch.setenv("HYBRIDCACHE_NVRTC", "")
    assert main(["doctor", "--backend", "reference"]) == 0
    assert "nvcc          none on PATH" in capsys.readouterr().out
    with pytest.raises(BuildError, match="HYBRIDCACHE_NVCC"):
        Kernels.of_this_machine()
    monkeypatch.setenv("HYBRIDCACHE_NVCC", "/bin/false")
    with pytest.raises(BuildError, match="--version fails"):
        Kernels.of_this_machine()
    assert main(["doctor", "--backend", "reference"]) == 0
    assert "--version fails" in capsys.readouterr().out


@needs_nvcc
def test_messages_of_nvcc_are_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken.cuh").write_text("int one() { return undeclared_name; }\n")
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    monkeypatch.setenv("HYBRIDCACHE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(BuildError, match=r"broken\.cuh.*(\n.*)*undeclared_name"):
        Kernels.of_this_machine().build(Variant("broken", "f32", 1))
    with pytest.raises(BuildError, match=r"no absent\.cuh"):
        Kernels.of_this_machine().build(Variant("absent", "f32", 1))
