"""Read the JSONL traces of the Marconi paper's artifact (Pan et al., MLSys '25).

One JSON object a line: `session_id`, `turn_id`, `ts` (seconds), `input_tokens` (the whole history) and
`output_tokens` (lists of token ids).
"""

from array import array
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from hybridcache.experiments.traces.fields import MAX_TOKENS, Row
from hybridcache.experiments.traces.jsonl import read_rows
from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.experiments.traces.thinning import kept_requests
from hybridcache.tokens import TokenIds, as_token_ids


class _Fields(NamedTuple):
    session: int | str
    turn: int
    inputs: TokenIds  # [P] uint32
    outputs: TokenIds  # [n] uint32


class _Turn(NamedTuple):
    """What is remembered of a session's last request, to find where its messages end in the next one."""

    ends: list[int]  # tokens: ends of the input's messages, and of the output
    digest: bytes  # of all its tokens


class MarconiTrace:
    """A trace of the Marconi artifact. The file is read once to check it and again in every iteration."""

    def __init__(self, path: str | None, every_kth_session: int = 1, limit: int | None = None) -> None:
        """Reads and checks the whole file; holds a session number a request.

        Raises:
            ValueError, OSError: `path` is no such trace; the message names path, row and field.
        """
        self._path = path or ""
        self._sessions = array("q")
        numbers: dict[int | str, int] = {}  # session_id -> number by first appearance
        self._times = array("d")  # seconds
        for row in read_rows(self._path):
            self._times.append(row.time_of("ts", self._times[-1] if self._times else None))
            fields = _parse(row)
            self._sessions.append(numbers.setdefault(fields.session, len(numbers)))
        self._kept = kept_requests(self._sessions, every_kth_session, limit)
        self.name = self._path.rsplit("/", 1)[-1].removesuffix(".gz").removesuffix(".jsonl")
        self.num_requests = len(self._kept)
        self.has_outputs = True

    def __iter__(self) -> Iterator[TraceRequest]:
        turns: dict[int, _Turn] = {}
        kept = iter(self._kept.tolist())
        wanted = next(kept, None)
        for index, row in enumerate(read_rows(self._path)):
            if wanted is None:
                return
            if index != wanted:
                continue
            wanted = next(kept, None)
            fields = _parse(row)
            session = self._sessions[index]
            tokens = np.concatenate([fields.inputs, fields.outputs])
            ends = _message_ends(turns.get(session), tokens, len(fields.inputs))
            turns[session] = _Turn([*ends, len(tokens)], blake2b(tokens.tobytes()).digest())
            arrival = self._times[index] - self._times[0]
            yield TraceRequest(
                arrival, session, fields.turn, tokens, len(fields.inputs), np.array(ends, np.int64)
            )


def _message_ends(last: _Turn | None, tokens: TokenIds, num_prompt: int) -> list[int]:
    """The ends known from the session's last request where this one goes on from it, then P."""
    if last is None or last.ends[-1] > num_prompt:
        return [num_prompt]
    if blake2b(tokens[: last.ends[-1]].tobytes()).digest() != last.digest:
        return [num_prompt]  # the history was rewritten
    return [end for end in last.ends if end < num_prompt] + [num_prompt]


def _parse(row: Row) -> _Fields:
    session = row.get("session_id")
    if not isinstance(session, (int, str)) or isinstance(session, bool):
        raise row.error("session_id", f"must be an integer or a string, got {session!r:.80}")
    turn = row.integer("turn_id", 0, MAX_TOKENS)
    inputs, outputs = _tokens(row, "input_tokens"), _tokens(row, "output_tokens")
    return _Fields(session, turn, inputs, outputs)


def _tokens(row: Row, field: str) -> TokenIds:
    ids = row.integers(field, 2**32)
    if not ids:
        raise row.error(field, "is empty; a request needs one token or more, drop the row")
    return as_token_ids(ids)
