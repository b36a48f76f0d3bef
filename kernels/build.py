"""Compiles csrc/ with g++ on first use, into a cache folder of the user's."""

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).resolve().parent / "csrc"
COMPILE_FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    # A multiply-add is fused where the source says so, never by the optimiser's choice; -ffast-math stays
    # out too: linked with it, a library makes its whole process flush subnormal numbers to zero.
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp",
    "-fPIC",
    "-fvisibility=default",
    "-Wno-psabi",
)
LINK_FLAGS = ("-shared", "-fopenmp")


class BuildError(RuntimeError):
    """The kernels cannot be compiled here; the message says why and what to do."""


class Library(NamedTuple):
    """The compiled kernels."""

    path: Path
    compiler: str
    """First line of the compiler's --version."""
    compiled_now: bool
    """Whether this call compiled it, rather than finding it."""


def cache_folder() -> Path:
    """HYBRIDCACHE_CACHE, else hybridcache/ in XDG_CACHE_HOME, else in ~/.cache."""
    if chosen := os.environ.get("HYBRIDCACHE_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hybridcache"


def find_compiler() -> str | None:
    """Path of the C++ compiler: HYBRIDCACHE_CXX (empty: none) or g++."""
    return shutil.which(os.environ.get("HYBRIDCACHE_CXX", "g++"))


def build_library() -> Library:
    """Finds or compiles the library for this source, these flags, this compiler and this CPU.

    Several processes may do so at once: each compiles in a folder of its own and renames the result.
    Raises BuildError without a compiler, when it fails, or when the folder cannot be written.
    """
    compiler = find_compiler()
    if compiler is None:
        name = os.environ.get("HYBRIDCACHE_CXX", "g++")
        raise BuildError(f"no compiler {name!r} on PATH; install g++ or set HYBRIDCACHE_CXX")
    version = _compiler_version(compiler)
    folder = cache_folder()
    path = folder / f"kernels-{_key(version)}.so"
    if path.exists():
        return Library(path, version, compiled_now=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="building-") as scratch:
            _compile(compiler, Path(scratch)).replace(path)
    except OSError as error:
        raise BuildError(
            f"cannot write {folder}: {error}; set HYBRIDCACHE_CACHE to a folder that can"
        ) from error
    return Library(path, version, compiled_now=True)


@functools.cache
def _compiler_version(compiler: str) -> str:
    try:
        run = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{compiler} --version fails: {error}; set HYBRIDCACHE_CXX to a compiler") from error
    return run.stdout.partition("\n")[0]


def _key(version: str) -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.glob("*.*")):
        digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    digest.update("\0".join((*COMPILE_FLAGS, *LINK_FLAGS, version, _cpu_features())).encode())
    return digest.hexdigest()[:24]


def _cpu_features() -> str:
    """What -march=native depends on: model and feature flags of the first processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        lines = []
    told = [line for line in lines if line.startswith(("flags", "Features", "model", "cpu family", "CPU"))]
    return "\n".join((platform.machine(), platform.processor(), *told))


def _compile(compiler: str, scratch: Path) -> Path:
    sources = sorted(SOURCES.glob("*.cpp"))
    if not sources:
        raise BuildError(
            f"no sources in {SOURCES}; the installation is incomplete, install hybridcache again"
        )
    objects = [scratch / f"{source.stem}.o" for source in sources]
    running = [
        subprocess.Popen(
            [compiler, *COMPILE_FLAGS, "-c", str(source), "-o", str(target)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for source, target in zip(sources, objects, strict=True)
    ]
    ends = [(process.communicate()[1], process.returncode) for process in running]
    for source, (messages, code) in zip(sources, ends, strict=True):
        if code:
            raise BuildError(f"{compiler} fails on {source.name}:\n{messages[-2000:]}")
    library = scratch / "kernels.so"
    link = [compiler, *LINK_FLAGS, *map(str, objects), "-o", str(library)]
    done = subprocess.run(link, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{compiler} fails to link:\n{done.stderr[-2000:]}")
    return library
