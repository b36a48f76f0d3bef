"""The arrays of a native trace file, read and checked."""

import tokenize
import zipfile
import zlib
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from hybridcache.experiments.traces.fields import MAX_TIME
from hybridcache.experiments.traces.files import check_file
from hybridcache.experiments.traces.pool import FilePool, MemoryPool, TokenPool

FORMAT = "hybridcache-trace-1"
UNREADABLE = (ValueError, OverflowError, MemoryError, SyntaxError, tokenize.TokenError)
"""What numpy raises for a header that is none, or that promises more than there can be."""

_npy: Any = np.lib.format  # not annotated by numpy
_Ints = NDArray[np.integer[Any]]


class NpzArrays:
    """All arrays of one file, known to fit each other: R requests, S segments of the token pool."""

    arrival: NDArray[np.float64]  # [R] float64, seconds, never decreasing
    session: _Ints  # [R]
    turn: _Ints  # [R]
    input_offsets: NDArray[np.int64]  # [R + 1] int64, places in input_segments
    input_segments: _Ints  # [input_offsets[R]], segment numbers
    output_segment: _Ints  # [R], segment numbers
    segment_offsets: NDArray[np.int64]  # [S + 1] int64, tokens of the pool
    pool: TokenPool

    def __init__(self, path: str | None, memory_limit_bytes: int) -> None:
        """Reads `path`; a pool of more than `memory_limit_bytes` (as stored) goes to a temporary file.

        Raises:
            ValueError, OSError: `path` is no such file; the message names path, array and place (from 0).
        """
        self.path = check_file(path)
        try:
            with zipfile.ZipFile(self.path) as archive:
                self._read(archive, memory_limit_bytes)
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # encrypted: RuntimeError
            raise ValueError(f"{self.path}: no .npz file, or damaged ({error}); fetch it again") from error

    def _read(self, archive: zipfile.ZipFile, memory_limit_bytes: int) -> None:
        kind = str(self._array(archive, "format", "U", 0))
        if kind != FORMAT:
            self._fail("format", f"is {kind!r:.60}; this reader knows {FORMAT!r}")
        self.arrival = self._array(archive, "arrival", "f").astype(np.float64)
        rows = len(self.arrival)
        if not rows:
            self._fail("arrival", "holds no requests; fetch the file again")
        self._check_arrivals()
        self.session = self._array(archive, "session", "iu", size=rows)
        self.turn = self._array(archive, "turn", "iu", size=rows)
        for name, array in (("session", self.session), ("turn", self.turn)):
            if (large := np.flatnonzero(array > np.iinfo(np.int64).max)).size:
                self._fail(name, f"is {array[large[0]]}; numbers lie below 2**63", int(large[0]))
        if not np.abs(self.arrival).max() <= MAX_TIME:
            self._fail("arrival", f"reaches beyond {MAX_TIME:.0e} s; no clock shows that")
        self.output_segment = self._array(archive, "output_segment", "iu", size=rows)
        self.input_segments = self._array(archive, "input_segments", "iu")
        self.input_offsets = self._array(archive, "input_offsets", "iu", size=rows + 1).astype(np.int64)
        self._check_offsets("input_offsets", self.input_offsets, len(self.input_segments), "input_segments")
        self.segment_offsets = self._array(archive, "segment_offsets", "iu").astype(np.int64)
        self.pool = self._read_pool(archive, memory_limit_bytes)
        self._check_offsets("segment_offsets", self.segment_offsets, len(self.pool), "tokens")
        self._check_segments("input_segments", self.input_segments)
        self._check_segments("output_segment", self.output_segment)
        self._check_lengths()

    def _array(
        self, archive: zipfile.ZipFile, name: str, kinds: str, ndim: int = 1, size: int | None = None
    ) -> NDArray[Any]:
        """The array `name`, of a dtype kind in `kinds`, with `ndim` dimensions and `size` entries."""
        try:
            with archive.open(f"{name}.npy") as stream:
                array: NDArray[Any] = _npy.read_array(stream, allow_pickle=False)
        except KeyError:
            self._missing(archive, name)
        except UNREADABLE as error:
            self._fail(name, f"cannot be read ({error}); fetch the file again")
        self._check_kind(name, array.shape, array.dtype, kinds, ndim)
        if size is not None and len(array) != size:
            self._fail(name, f"must have {size} entries to fit 'arrival', got {len(array)}")
        return array

    def _read_pool(self, archive: zipfile.ZipFile, memory_limit_bytes: int) -> TokenPool:
        try:
            size = archive.getinfo("tokens.npy").file_size  # bytes
        except KeyError:
            self._missing(archive, "tokens")
        if size <= memory_limit_bytes:
            tokens = self._array(archive, "tokens", "iu")
            try:
                return MemoryPool(tokens)
            except ValueError as error:
                self._fail("tokens", str(error))
        with archive.open("tokens.npy") as stream:
            try:
                new = _npy.read_magic(stream) != (1, 0)
                header = _npy.read_array_header_2_0 if new else _npy.read_array_header_1_0
                shape, _, dtype = header(stream)
            except UNREADABLE as error:
                self._fail("tokens", f"cannot be read ({error}); fetch the file again")
            self._check_kind("tokens", shape, dtype, "iu", 1)
            try:
                return FilePool(stream, dtype, shape[0])
            except ValueError as error:
                self._fail("tokens", str(error))

    def _check_kind(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic], kinds: str, ndim: int
    ) -> None:
        if dtype.kind not in kinds or len(shape) != ndim or min(shape, default=0) < 0:
            wanted = {"iu": "integers", "f": "floats", "U": "a string"}[kinds]
            self._fail(name, f"must be {wanted} with {ndim} dimensions, got {dtype} of shape {shape}")

    def _check_arrivals(self) -> None:
        finite = np.isfinite(self.arrival)
        if not finite.all():
            row = int(np.flatnonzero(~finite)[0])
            self._fail("arrival", f"is {self.arrival[row]}, must be seconds; drop the request", row)
        if (late := np.flatnonzero(np.diff(self.arrival) < 0)).size:
            row = int(late[0]) + 1
            before = self.arrival[row - 1]
            self._fail("arrival", f"is {self.arrival[row]} s, after {before} s; sort the requests", row)

    def _check_offsets(self, name: str, offsets: NDArray[np.int64], total: int, of: str) -> None:
        if (down := np.flatnonzero(np.diff(offsets) < 0)).size:
            row = int(down[0]) + 1
            self._fail(name, f"must ascend, falls from {offsets[row - 1]} to {offsets[row]}", row)
        if not len(offsets) or offsets[0] != 0 or offsets[-1] != total:
            ends = f"{offsets[0]} to {offsets[-1]}" if len(offsets) else "nothing"
            self._fail(name, f"must run from 0 to {total}, the length of '{of}', got {ends}")

    def _check_segments(self, name: str, segments: _Ints) -> None:
        count = len(self.segment_offsets) - 1
        if (wrong := np.flatnonzero((segments < 0) | (segments >= count))).size:
            self._fail(name, f"must lie in [0, {count}), got {segments[wrong[0]]}", int(wrong[0]))

    def _check_lengths(self) -> None:
        """Every request has an input and an output of at least one token."""
        sizes = np.diff(self.segment_offsets)
        if (empty := np.flatnonzero(sizes[self.output_segment] == 0)).size:
            self._fail("output_segment", "names an empty segment; drop the request", int(empty[0]))
        ends = np.append(0, np.cumsum(sizes[self.input_segments]))[self.input_offsets]
        if (empty := np.flatnonzero(np.diff(ends) == 0)).size:
            self._fail("input_offsets", "gives an input without tokens; drop the request", int(empty[0]))

    def _missing(self, archive: zipfile.ZipFile, name: str) -> NoReturn:
        present = ", ".join(archive.namelist()) or "nothing"
        self._fail(name, f"missing (the file has: {present}); write it again")

    def _fail(self, name: str, problem: str, row: int | None = None) -> NoReturn:
        where = "" if row is None else f", row {row}"
        raise ValueError(f"{self.path}{where}, array '{name}': {problem}")
