"""The mark of a run on its folder. One that was killed leaves it unlocked, and the next run takes it over."""

import fcntl
import os
import platform
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class RunClaim:
    """A file that its owner keeps locked as long as it lives, however it ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: int | None = None
        """The file while it is claimed."""

    def take(self) -> bool:
        """Claim the file; False when a run has it, or may have it on another machine."""
        assert self._held is None
        held = self._create()
        while held is None:
            try:
                held = os.open(self._path, os.O_RDWR)
            except FileNotFoundError:
                held = self._create()
                continue
            if not _lock(held, wait=False) or (self._is_named(held) and not _made_here(held)):
                os.close(held)
                return False
            if not self._is_named(held):
                # Its owner ended it meanwhile.
                os.close(held)
                held = None
        self._held = held
        return True

    def end(self) -> None:
        """Remove the file. It must be claimed."""
        assert self._held is not None
        self._path.unlink(missing_ok=True)
        os.close(self._held)
        self._held = None

    def _create(self) -> int | None:
        """The new file, locked; None when it is there already."""
        try:
            made = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
        except FileExistsError:
            return None
        # Whoever finds the file before the next two lines are done finds it empty, and leaves it.
        if _lock(made, wait=True):
            os.write(made, _machine())
        return made

    def _is_named(self, file: int) -> bool:
        """Whether the open file is still the one at the path."""
        try:
            return os.path.samestat(os.fstat(file), self._path.stat())
        except FileNotFoundError:
            return False


def _lock(file: int, *, wait: bool) -> bool:
    """Whether the file is locked now; it never is on a file system without locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _made_here(file: int) -> bool:
    """Whether the open file was written on this machine since it started: its lock is to be trusted then."""
    return os.pread(file, 1_024, 0) == _machine()


def _machine() -> bytes:
    """This machine since it started, where that can be told; others may not see its locks."""
    try:
        return _BOOT_ID.read_bytes()
    except OSError:
        return platform.node().encode()
