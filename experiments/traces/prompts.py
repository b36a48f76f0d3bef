"""Read a log of requests as they were sent: JSONL with the bodies of a chat or completion API.

One JSON object a line: `messages` (a list of `role` and `content`) or `prompt` (text); where known `tools` (a
list of schemas, which come first, as in most templates), `system` (Anthropic's: text, or parts), `output`
(text), `timestamp` (s, or an ISO date and time) and `session`. A field that is null is not there. Contents in
parts are the texts of these; parts of another kind are written as the JSON that they are. Marks for a
provider's cache (`cache_control`) are no part of a prompt.
"""

import json
from array import array
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import numpy as np

from hybridcache.experiments.traces.fields import Row
from hybridcache.experiments.traces.jsonl import read_rows
from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.experiments.traces.sharegpt import read_tokenizer
from hybridcache.experiments.traces.thinning import kept_requests, number_turns
from hybridcache.tokens import TokenIds

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class PromptsTrace:
    """A log of requests; texts are kept, tokens are not.

    A message is one token for its role and the tokens of its text, and the input ends with the assistant's
    role. A row without a time comes a second after the one before (and no later row before it), one without a
    session is one by itself.
    """

    def __init__(
        self,
        path: str | None,
        every_kth_session: int = 1,
        limit: int | None = None,
        *,
        tokenizer: str | None = None,
    ) -> None:
        """Reads and checks the whole file.

        Args:
            path: the file, plain or gzip.
            every_kth_session: keep sessions 0, k, 2k, ...
            limit: then keep the first requests.
            tokenizer: a tokenizer.json; None: the presets' own.

        Raises:
            ValueError, OSError: `path` is no such file; the message names path, row and field.
        """
        self._tokenizer = read_tokenizer(tokenizer)
        self._rows: list[tuple[list[tuple[str, str]], str]] = []  # messages by role, and the output
        self._arrivals, sessions = array("d"), array("q")
        numbers: dict[object, int] = {}
        stated: float | None = None  # the last time that a row states
        for row in map(_without_nulls, read_rows(path or "")):
            output = row.values.get("output", "")
            if not isinstance(output, str):
                raise row.error("output", f"must be a text, got {output!r:.80}")
            last = self._arrivals[-1] if self._arrivals else None
            if "timestamp" in row.values:
                stated = _seconds(row).time_of("timestamp", stated)
                now = stated if last is None else max(stated, last)
            else:
                now = 0.0 if last is None else last + 1
            session = row.values.get("session", ("row", row.number))
            if not isinstance(session, int | str | tuple):
                raise row.error("session", f"must be a text or a whole number, got {session!r:.80}")
            messages = [(role, row.text("messages", text)) for role, text in _messages(row)]
            self._rows.append((messages, row.text("output", output)))
            self._arrivals.append(now)
            sessions.append(numbers.setdefault(session, len(numbers)))
        self._sessions, self._turns = sessions, number_turns(sessions)
        self._kept = kept_requests(sessions, every_kth_session, limit)
        self.name = str(path).rsplit("/", 1)[-1].removesuffix(".gz").removesuffix(".jsonl")
        self.num_requests = len(self._kept)
        self.has_outputs = all(output for _, output in self._rows)

    def __iter__(self) -> Iterator[TraceRequest]:
        for row in self._kept.tolist():
            messages, output = self._rows[row]
            parts = [self._encode(role, text) for role, text in messages]
            ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
            answer = self._encode("assistant", output or "\n")
            num_prompt = int(ends[-1]) + 1  # the token that opens the answer
            yield TraceRequest(
                self._arrivals[row] - self._arrivals[0],
                self._sessions[row],
                int(self._turns[row]),
                np.concatenate([*parts, answer]),
                num_prompt,
                np.append(ends, num_prompt),
            )

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids; those of roles have none."""
        known = self._tokenizer.get_vocab_size()
        text: str = self._tokenizer.decode([token for token in tokens if token < known])
        return text

    def _encode(self, role: str, text: str) -> TokenIds:
        first = self._tokenizer.get_vocab_size() + ROLES.index(role)
        ids: Sequence[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return np.array([first, *(ids or [first])], np.uint32)


def _without_nulls(row: Row) -> Row:
    return row._replace(values={field: value for field, value in row.values.items() if value is not None})


def _seconds(row: Row) -> Row:
    """The row with a date and time as seconds since the epoch; without a zone it is UTC. ValueError."""
    when = row.values["timestamp"]
    if not isinstance(when, str):
        return row
    try:
        moment = datetime.fromisoformat(when.strip())
    except ValueError as error:
        problem = f"must be seconds, or an ISO date and time, got {when!r:.80}"
        raise row.error("timestamp", problem) from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return row._replace(values={**row.values, "timestamp": moment.timestamp()})


def _messages(row: Row) -> list[tuple[str, str]]:
    """Roles and texts of a row. ValueError for anything that is none."""
    tools = row.values.get("tools")
    found = [("system", json.dumps(_unmarked(tools)))] if tools else []
    if system := row.values.get("system"):
        if not isinstance(system, str | list):
            raise row.error("system", f"must be a text or a list of parts, got {system!r:.80}")
        found.append(("system", _text(system)))
    if "messages" not in row.values and "prompt" in row.values:
        prompt = row.get("prompt")
        if not isinstance(prompt, str) or not prompt:
            raise row.error("prompt", f"must be a text, got {prompt!r:.80}")
        return [*found, ("user", prompt)]
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        raise row.error("messages", f"must be a list with a message or more, got {messages!r:.80}")
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ROLES:
            raise row.error("messages", f"has {message!r:.80}; the roles are {', '.join(ROLES)}")
        text = _text(message.get("content"))
        if message.get("tool_calls"):
            text += json.dumps(message["tool_calls"])
        found.append((role, text))
    return found


def _text(content: object) -> str:
    """A message's content as one text; none where there is none, as beside calls of tools."""
    if isinstance(content, list):
        return "\n".join(map(_text, content))  # as the server joins them
    if isinstance(content, dict) and isinstance(content.get("text"), str):
        return str(content["text"])
    if content is None:
        return ""
    return content if isinstance(content, str) else json.dumps(_unmarked(content))


def _unmarked(value: object) -> object:
    """``value`` without the marks that clients set and move from message to message."""
    if isinstance(value, dict):
        return {key: _unmarked(item) for key, item in value.items() if key != "cache_control"}
    return [_unmarked(item) for item in value] if isinstance(value, list) else value
