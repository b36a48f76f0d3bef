"""Read a JSONL file, plain or gzip, one row at a time."""

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from hybridcache.experiments.traces.fields import Row
from hybridcache.experiments.traces.files import check_file

_GZIP_MAGIC = b"\x1f\x8b"


def read_rows(path: str) -> Iterator[Row]:
    """The rows of `path` in file order; blank lines are skipped. Gzip is told by content, not by name.

    Raises:
        FileNotFoundError, IsADirectoryError, PermissionError: as `check_file`.
        ValueError: empty, named .gz but not gzip, damaged gzip, or a row that is no JSON object.
    """
    check_file(path)
    empty = True
    with open(path, "rb") as raw:
        is_gzip = raw.read(2) == _GZIP_MAGIC
        raw.seek(0)
        if path.endswith(".gz") and not is_gzip:
            raise ValueError(
                f"{path}: named .gz but not gzip data; rename it if it is JSONL, or fetch it again"
            )
        for number, line in enumerate(_gunzip(path, raw) if is_gzip else raw, start=1):
            if not line.isspace():
                empty = False
                yield _parse(path, number, line)
    if empty:
        raise ValueError(f"{path}: holds no rows; fetch it again")


def _gunzip(path: str, raw: BinaryIO) -> Iterator[bytes]:
    number = 0
    try:
        with gzip.open(raw, "rb") as lines:
            for number, line in enumerate(lines, start=1):  # noqa: B007 (named in the error)
                yield line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path}, row {number + 1}: gzip data damaged or cut off ({error}); fetch the file again"
        ) from error


def _parse(path: str, number: int, line: bytes) -> Row:
    try:
        values = json.loads(line)
    except ValueError as error:  # broken JSON and broken UTF-8 alike
        raise ValueError(f"{path}, row {number}: not JSON ({error}); each line must be an object") from error
    except RecursionError as error:
        raise ValueError(f"{path}, row {number}: no trace row, it is nested too deeply") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path}, row {number}: must be a JSON object, got {type(values).__name__}")
    return Row(path, number, values)
