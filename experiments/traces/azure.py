"""Read the Azure LLM inference traces: arrivals and lengths, laid over a generator.

Published with Patel et al., Splitwise, ISCA '24, and again in 2024: CSV with the columns TIMESTAMP,
ContextTokens and GeneratedTokens. Contents and sessions are not stated: a generator has them (overlay.py).
"""

import csv
import gzip
import zlib
from array import array
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NoReturn, TextIO

from hybridcache.experiments.traces.fields import MAX_TOKENS
from hybridcache.experiments.traces.files import check_file
from hybridcache.experiments.traces.overlay import Overlay, Shape
from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.experiments.traces.workload import Workload

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_GZIP_MAGIC = b"\x1f\x8b"


class AzureTrace:
    """Rows of an Azure trace with a workload's contents. A row that generated nothing counts as one token."""

    def __init__(
        self,
        path: str | None,
        workload: Workload,
        seed: int = 0,
        every_kth_session: int = 1,
        limit: int | None = None,
    ) -> None:
        """Reads and checks the whole file; holds three numbers a row.

        Args:
            path: the file, plain or gzip.
            workload: whose sessions the rows are laid over.
            seed: of its contents.
            every_kth_session: keep sessions 0, k, 2k, ...
            limit: then keep the first requests.

        Raises:
            ValueError, OSError: `path` is no such file; the message names path, line and column.
        """
        self._path = check_file(path)
        self._overlay = Overlay(workload, seed)
        self._every_kth = every_kth_session
        self._arrivals, self._inputs, self._outputs = array("d"), array("q"), array("q")
        with open(self._path, "rb") as raw:
            packed = raw.read(2) == _GZIP_MAGIC
        try:
            with (
                gzip.open(self._path, "rt", newline="", encoding="utf-8-sig")
                if packed
                else open(self._path, newline="", encoding="utf-8-sig")
            ) as lines:
                self._read(lines)
        except (EOFError, UnicodeDecodeError, csv.Error, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{self._path}: no CSV, or damaged ({error}); fetch it again") from error
        if not self._inputs:
            raise ValueError(f"{self._path}: holds no rows; fetch it again")
        self.name = self._path.rsplit("/", 1)[-1].removesuffix(".gz").removesuffix(".csv")
        self.has_outputs = True
        total = len(self._inputs)
        if every_kth_session > 1:  # how many stay is known only once they are made
            total = sum(1 for _ in self._kept())
        self.num_requests = total if limit is None else min(total, limit)

    def __iter__(self) -> Iterator[TraceRequest]:
        for _, request in zip(range(self.num_requests), self._kept(), strict=False):
            yield request

    def _kept(self) -> Iterator[TraceRequest]:
        shapes = map(Shape, self._arrivals, self._inputs, self._outputs)
        for request in self._overlay.requests(shapes):
            if request.session % self._every_kth == 0:
                yield request

    def _read(self, lines: TextIO) -> None:
        rows = csv.reader(lines)
        header = [name.strip() for name in next(rows, [])]
        places = []
        for name in COLUMNS:
            if name not in header:
                known = ", ".join(header) or "nothing"
                raise ValueError(f"{self._path}, line 1: column '{name}' is missing (the file has: {known})")
            if header.count(name) > 1:
                raise ValueError(f"{self._path}, line 1: column '{name}' comes twice; keep one of them")
            places.append(header.index(name))
        first = last = 0.0
        for row in rows:
            if not row:
                continue
            if len(row) <= max(places):
                raise ValueError(f"{self._path}, line {rows.line_num}: has {len(row)} columns; drop the row")
            when, context, generated = (row[place] for place in places)
            seconds = self._seconds(rows.line_num, when)
            if not self._inputs:
                first = last = seconds
            if seconds < last:
                self._fail(rows.line_num, "TIMESTAMP", f"is {when!r}, before the row above; sort the rows")
            last = seconds
            self._arrivals.append(seconds - first)
            self._inputs.append(self._length(rows.line_num, "ContextTokens", context, 1))
            self._outputs.append(max(self._length(rows.line_num, "GeneratedTokens", generated, 0), 1))

    def _seconds(self, line: int, when: str) -> float:
        try:
            moment = datetime.fromisoformat(when.strip())
        except ValueError:
            self._fail(line, "TIMESTAMP", f"is {when!r:.40}; it must be a date and time")
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()

    def _length(self, line: int, column: str, text: str, low: int) -> int:
        try:
            tokens = int(text)
        except ValueError:
            self._fail(line, column, f"is {text!r:.40}; it must be a whole number of tokens")
        if not low <= tokens <= MAX_TOKENS:
            self._fail(line, column, f"must lie in [{low}, {MAX_TOKENS}], got {tokens}; drop the row")
        return tokens

    def _fail(self, line: int, column: str, problem: str) -> NoReturn:
        raise ValueError(f"{self._path}, line {line}, column '{column}': {problem}")
