"""Whether a trace file is there and can be read."""

import os


def check_file(path: str | None, setting: str = "trace.path") -> str:
    """`path`, which `setting` gave, when it names a readable, non-empty file.

    Raises:
        ValueError: no path given, or the file is empty.
        FileNotFoundError, IsADirectoryError, PermissionError: as the names say, with `path` in the message.
    """
    if not path:
        raise ValueError(f"this kind of trace reads a file: set {setting}=FILE")
    if os.path.isdir(path):
        raise IsADirectoryError(f"{path}: is a directory; {setting} must name one file")
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path}: no such file (from {os.getcwd()}); check {setting}")
    if not os.access(path, os.R_OK):
        raise PermissionError(f"{path}: cannot be read; check its permissions")
    if os.path.isfile(path) and os.path.getsize(path) == 0:
        raise ValueError(f"{path}: the file is empty; fetch it again")
    return path
