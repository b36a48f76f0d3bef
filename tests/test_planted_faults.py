"""Each known fault, planted as a patch, is caught by the tests that its patch names."""

import os
import re
import shutil
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("pyproject.toml", "hybridcache", "models", "policies", "kernels", "experiments", "conf", "tests")
PATCHES = sorted((ROOT / "tests" / "faults").glob("*.patch"))
NAMES = [patch.stem for patch in PATCHES]
CAUGHT_BY = "# caught-by: "
REPLAY = "test_known_faults_replay"
TIMEOUT_SECONDS = 180
stamps = count(1_000_000_000)
"""Seconds, each used once."""

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="patches are applied with git")


def caught_by(patch: Path) -> list[str]:
    """The tests that a patch names: file::function."""
    lines = patch.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix(CAUGHT_BY) for line in lines if line.startswith(CAUGHT_BY)]


def apply(patch: Path, folder: Path, *options: str) -> None:
    """Apply ``patch`` to the tree in ``folder``; AssertionError that names it when it does not fit."""
    done = subprocess.run(
        ["git", "apply", *options, str(patch)],
        cwd=folder,
        # A folder inside somebody's checkout is not to be taken for that checkout.
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, f"{patch.name} no longer applies, make it anew: {done.stderr}"
    if "--check" not in options:
        for name in re.findall(r"^\+\+\+ b/(.+)$", patch.read_text(encoding="utf-8"), re.MULTILINE):
            # Compiled files are told apart by size and by seconds: give each change a second of its own.
            stamp = next(stamps)
            os.utime(folder / name, (stamp, stamp))


def run_tests(
    folder: Path, *names: str, timeout: float = TIMEOUT_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run tests of the tree in ``folder`` against its own code; an error after ``timeout`` seconds."""
    options = ["-x", "-q", "--tb=line", "--assert=plain", "-p", "no:cacheprovider"]
    if not any(REPLAY in name for name in names):
        options.append("--noconftest")  # which loads Hydra and more, for replays alone
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *names],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code and its tests, links kept."""
    folder = tmp_path_factory.mktemp("planted") / "tree"
    folder.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "outputs", "multirun")
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy2(ROOT / name, folder / name)
    where = subprocess.run(
        [sys.executable, "-c", "import hybridcache.tree as m; print(m.__file__)"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(folder), f"{where.stdout} is not the copy's code"
    return folder


def test_there_are_patches_and_each_says_what_it_plants() -> None:
    assert len(PATCHES) >= 50
    for patch in PATCHES:
        said, _, diff = patch.read_text(encoding="utf-8").partition("--- a/")
        assert re.match(r"\d{3}_", patch.name), patch.name
        assert said.strip() and not said.startswith("#"), f"{patch.name}: the first line says what is planted"
        assert 1 <= len(re.findall(r"^[+-](?![+-]{2} )", diff, re.MULTILINE)) <= 14, f"{patch.name}: too long"


@pytest.mark.parametrize("patch", PATCHES, ids=NAMES)
def test_a_patch_names_tests_that_exist(patch: Path) -> None:
    assert caught_by(patch), f"{patch.name}: no line '{CAUGHT_BY}file::test'"
    for name in caught_by(patch):
        file, _, function = name.partition("::")
        assert re.search(rf"^def {function}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), (
            f"{patch.name}: there is no {name}"
        )


@needs_git
def test_all_patches_apply(tmp_path: Path) -> None:
    for name in COPIED:
        if name != "tests" and (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, symlinks=True)
    for patch in PATCHES:
        apply(patch, tmp_path, "--check")


@needs_git
@pytest.mark.full
def test_the_tests_pass_without_a_fault(tree: Path) -> None:
    names = sorted({name for patch in PATCHES for name in caught_by(patch)})
    done = run_tests(tree, *names, timeout=10 * TIMEOUT_SECONDS)  # all of them, on a busy machine too
    assert done.returncode == 0, done.stdout


@needs_git
@pytest.mark.full
@pytest.mark.parametrize("patch", PATCHES, ids=NAMES)
def test_a_planted_fault_is_caught(patch: Path, tree: Path) -> None:
    apply(patch, tree)
    try:
        for name in caught_by(patch):
            done = run_tests(tree, name)
            assert done.returncode == 1 and " failed" in done.stdout, f"{name} did not fail:\n{done.stdout}"
    finally:
        apply(patch, tree, "--reverse")
