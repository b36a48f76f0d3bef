"""The shape of the repository: links, imports that point down, commands that exist."""

import ast
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CODE_FOLDERS = ("models", "policies", "kernels", "experiments")
LINKS = (*CODE_FOLDERS, "conf")

# Parts that may not be known, by part. A name stands for itself and all below it.
SPEC = ["hybridcache.spec", "hybridcache.geometry", "hybridcache.layers"]
TREE = ["hybridcache.tree", "hybridcache.node"]
POOL = [f"hybridcache.pool.{name}" for name in ("IdPool", "BlockPool", "SlotPool", "MemoryBudget")]
CACHE = ["hybridcache.prefix_cache", "hybridcache.cached_tree", "hybridcache.lease", "hybridcache.reclaimer"]
POLICIES = ["hybridcache.policies"]
SERVER = ["hybridcache.server"]
OUTER = [
    "hybridcache.experiments",
    "hybridcache.models",
    "hybridcache.kernels",
    "hybridcache.conf",
    *SERVER,
]
ENGINE = [f"hybridcache.{name}" for name in ("engine", "scheduler", "storage", "runner", "engine_thread")]
HEAVY = ["torch", "hydra", "omegaconf", "pyarrow", "matplotlib", "tqdm", "wandb"]
CLOCK = ["time", "datetime"]
TENSORS = [
    f"hybridcache.{name}"
    for name in ("arena", "copier", "storage", "runner", "served_model", "worker", "cli")
]

UNKNOWN_TO = {
    "hybridcache.tree": [*SPEC, *POOL, *CACHE, *POLICIES],
    "hybridcache.pool": ["hybridcache"],
    "hybridcache.spec": [*TREE, *POOL, *CACHE, *POLICIES],
    "hybridcache.storage": [*TREE, *CACHE[:2], *POLICIES, *OUTER],
    "hybridcache.runner": [*CACHE[:2], *POLICIES, "hybridcache.experiments", "hybridcache.models"],
    "hybridcache.step": [*CACHE[:2], *POLICIES, *OUTER],
    "hybridcache.arena": [*TREE, *CACHE, *POLICIES, *OUTER],
    "hybridcache.policies": [*TREE, *POOL, *CACHE],
    "hybridcache.models": [*TREE, *POOL, *CACHE, *POLICIES, "hybridcache.experiments"],
    "hybridcache.kernels": [*SPEC, *TREE, *POOL, *CACHE, *POLICIES, "hybridcache.experiments"],
    "hybridcache.worker": [*SERVER, "hybridcache.experiments"],
    # The server knows the worker's calls and what they give, and nothing below.
    "hybridcache.server": [*TREE, *POOL, *CACHE, *POLICIES, *ENGINE, *OUTER[:4]],
}


def within(name: str, parts: list[str]) -> bool:
    return any(name == part or name.startswith(part + ".") for part in parts)


@cache
def imports() -> dict[str, set[str]]:
    """Module -> names it imports, `from x import y` as x and as x.y; type-checking imports too."""
    found: dict[str, set[str]] = {}
    own = [*ROOT.glob("hybridcache/*.py"), *ROOT.glob("hybridcache/server/*.py")]
    for path in [*own, *(p for name in LINKS for p in (ROOT / name).rglob("*.py"))]:
        parts = path.relative_to(ROOT).with_suffix("").parts
        module = ".".join(parts if parts[0] == "hybridcache" else ("hybridcache", *parts))
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                names.add(str(node.module))
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
        found[module.removesuffix(".__init__")] = names
    return found


def core() -> list[str]:
    return [name for name in imports() if not within(name, [*OUTER, *TENSORS])]


def commands(text: str) -> Iterator[list[str]]:
    """Lines of the shell code blocks of a Markdown text, split into words."""
    for block in re.findall(r"```(?:bash|sh)\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip() and not line.startswith("#"):
                yield shlex.split(line, comments=True)


@pytest.mark.parametrize("name", LINKS)
def test_links_lead_to_the_top_level(name: str) -> None:
    link = ROOT / "hybridcache" / name
    assert link.is_symlink()
    assert os.readlink(link) == f"../{name}"
    assert link.is_dir()


def test_code_folders_are_not_packages() -> None:
    # A regular package called "kernels" on sys.path is what transformers would import for PyPI's.
    assert not [name for name in CODE_FOLDERS if list((ROOT / name).rglob("__init__.py"))]
    assert (ROOT / "conf" / "__init__.py").is_file()


def test_the_core_knows_neither_clock_nor_heavy_packages() -> None:
    assert len(core()) > 20
    wrong = {
        (module, name)
        for module in core()
        for name in imports()[module]
        if within(
            name, [*CLOCK, *HEAVY, "hybridcache.experiments", "hybridcache.models", "hybridcache.kernels"]
        )
    }
    assert not wrong


@pytest.mark.parametrize("part", UNKNOWN_TO)
def test_a_part_does_not_know(part: str) -> None:
    modules = [name for name in imports() if within(name, [part])]
    wrong = {(m, name) for m in modules for name in imports()[m] if within(name, UNKNOWN_TO[part])}
    assert not wrong


def test_data_files_are_packaged() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (patterns,) = project["tool"]["setuptools"]["package-data"].values()
    files = [path for name in ("hybridcache", *LINKS) for path in (ROOT / name).rglob("*") if path.is_file()]
    data = [path for path in files if path.suffix not in (".py", ".pyc")]
    assert {path.suffix for path in data} >= {".yaml", ".cpp", ".json"}
    assert not [path for path in data if not any(fnmatch(path.name, pattern) for pattern in patterns)]


def test_imports_have_no_cycle() -> None:
    known = imports()
    below = {module: {name for name in names if name in known} for module, names in known.items()}
    while below:
        leaves = {module for module, names in below.items() if not names & below.keys()}
        assert leaves, f"import each other: {sorted(below)}"
        below = {module: names for module, names in below.items() if module not in leaves}


def test_no_file_is_too_long() -> None:
    folders = ("hybridcache", *LINKS, "tests")
    files = {path.resolve() for name in folders for path in (ROOT / name).rglob("*.py")}
    assert not {str(path) for path in files if len(path.read_text().splitlines()) > 400}


@pytest.mark.parametrize("page", ["README.md", "docs/structures.md"])
def test_commands_of_the_pages_exist(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for words in commands((ROOT / page).read_text(encoding="utf-8")):
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), words
        if words[1:2] == ["-m"]:
            file = ROOT.joinpath(*words[2].split(".")).with_suffix(".py")
            assert file.is_file(), words


def test_settings_on_the_command_lines_of_the_readme_exist(values: Callable[..., dict[str, object]]) -> None:
    replays = [
        words[3:]
        for words in commands((ROOT / "README.md").read_text(encoding="utf-8"))
        if words[1:3] == ["-m", "hybridcache.experiments.replay"]
    ]
    assert replays
    for words in replays:
        settings = [
            word.partition(",")[0] for word in words if word != "-m" and not word.startswith("hydra.")
        ]
        assert values(*settings)


def test_every_file_is_named_in_the_docs() -> None:
    page = (ROOT / "docs" / "structures.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./-]+\.py)`", page))
    packages = ("hybridcache", "hybridcache.conf", "hybridcache.server")
    modules = {name for name in imports() if name not in packages}
    files = {
        name.removeprefix("hybridcache.").replace(".", "/") + ".py"
        if (ROOT / (name.removeprefix("hybridcache.").replace(".", "/") + ".py")).is_file()
        else name.replace(".", "/") + ".py"
        for name in modules
    }
    assert files - named == set()
    assert {name for name in named if not (ROOT / name).is_file()} == set()
