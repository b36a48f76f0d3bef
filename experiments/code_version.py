"""Which code made a result."""

import subprocess
from pathlib import Path
from typing import NamedTuple

import hybridcache


class CodeVersion(NamedTuple):
    """The package version, and the commit when it runs from a checkout."""

    package: str
    commit: str | None  # 40 hex digits
    modified: bool | None  # whether tracked files differ from the commit


def code_version() -> CodeVersion:
    """The version of the running code; commit and modified are None for an installed copy."""
    folder = Path(hybridcache.__file__).resolve().parent
    top = _git(folder, "rev-parse", "--show-toplevel")
    # A virtual environment inside somebody else's checkout is not a checkout of this package.
    if top is None or Path(top).resolve() != folder.parent:
        return CodeVersion(hybridcache.__version__, None, None)
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return CodeVersion(hybridcache.__version__, commit, None if changes is None else bool(changes))


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints, or None when there is no git or it fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
