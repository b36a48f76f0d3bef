"""Calls of tools, read out of an answer's text while it comes."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Marks(NamedTuple):
    """What a model writes around its calls."""

    begin: str
    end: str
    """Where an answer has none, its end ends the calls."""


MARKS = (
    Marks("<tool_call>", "</tool_call>"),  # Hermes, Qwen, Granite
    Marks("<tool_calls>", "</tool_calls>"),  # Jamba
    Marks("<TOOLCALL>", "</TOOLCALL>"),  # Nemotron
    Marks("<|tool_call|>", "<|/tool_call|>"),  # Granite 3, which leaves the end out; Phi-4-mini
    Marks("[TOOL_CALLS]", "[/TOOL_CALLS]"),  # Mistral, which leaves the end out
)
"""Inside is one call as a JSON object, a list of them, a function in tags with its parameters in tags (as
Qwen3-Coder and Nemotron 3 write them), or a name, ARGUMENTS and an object (Mistral, behind a mark each)."""
ARGUMENTS = "[ARGS]"
"""Between a call's name and its arguments."""

_FUNCTION = re.compile(r"<function=([^>\s]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)


class Call(NamedTuple):
    """A call of a tool, which may be none that the prompt names."""

    name: str
    arguments: dict[str, Any]

    @property
    def arguments_json(self) -> str:
        """As chat templates write them, so that the next prompt repeats the answer's tokens where it can."""
        return json.dumps(self.arguments, ensure_ascii=False)


class CallFormat(NamedTuple):
    """How the answers to one request are read."""

    marks: Marks
    schemas: Mapping[str, object]
    """JSON schemas of the tools' parameters, by the tools' names."""
    hidden: tuple[str, ...] = ()
    """Those of the marks, and of ARGUMENTS, that are special tokens: no words, wherever they come."""


def marks_of(template: str) -> Marks | None:
    """The marks that a chat template writes around past calls; None: it has none that are known."""
    return next((marks for marks in MARKS if marks.begin in template), None)


class CallReader:
    """Splits a text that comes in parts into words and calls. How it is parted changes nothing.

    What may yet become a call is held back; what turns out to be none comes as it was written, but for marks
    that are hidden. White space around calls is left out.
    """

    def __init__(self, form: CallFormat) -> None:
        self._form = form
        self._watched = (form.marks.begin, *(mark for mark in form.hidden if mark != form.marks.begin))
        """Marks that are looked for among words."""
        self._held = ""
        self._inside = False
        """Whether the text held follows an opening mark."""
        self._space = ""
        """White space before that mark."""
        self._called = False
        """Whether a call was the last to come."""

    def add(self, text: str) -> list[str | Call]:
        """The next part of the text; what can be told by now."""
        self._held += text
        found: list[str | Call] = []
        begin, end = self._form.marks
        while (mark := self._next_mark((end,) if self._inside else self._watched)) is not None:
            before, _, self._held = self._held.partition(mark)
            if self._inside:
                self._close(before, end, found)
                continue
            words = before.rstrip()
            self._tell(words, found)
            if mark == begin:
                self._inside, self._space = True, before[len(words) :]
            else:
                self._held = before[len(words) :] + self._held
        if not self._inside:
            at = self._may_begin()
            words, self._held = self._held[:at], self._held[at:]
            self._tell(words, found)
        return found

    def end(self) -> list[str | Call]:
        """The text has ended: the rest of it."""
        found: list[str | Call] = []
        rest, self._held = self._held, ""
        if self._inside:
            self._close(rest, "", found)
        elif not self._called or rest.strip():
            self._tell(rest, found)
        return found

    def _close(self, inner: str, end: str, found: list[str | Call]) -> None:
        self._inside = False
        if calls := _calls(inner, self._form):
            found += calls
            self._called = True
        else:
            text = self._form.marks.begin + inner + end
            for mark in self._form.hidden:
                text = text.replace(mark, "")
            self._tell(self._space + text, found)

    def _tell(self, words: str, found: list[str | Call]) -> None:
        if words:
            found.append(words)
            self._called = False

    def _next_mark(self, marks: Iterable[str]) -> str | None:
        """The one that comes first in the text held."""
        return min((mark for mark in marks if mark in self._held), key=self._held.index, default=None)

    def _may_begin(self) -> int:
        """Where the end of the text held may be white space and the first part of a mark."""
        held = self._held
        sizes = range(min(max(map(len, self._watched)) - 1, len(held)), 0, -1)
        size = next(
            (n for n in sizes if any(len(m) > n and m.startswith(held[-n:]) for m in self._watched)), 0
        )
        return len(held[: len(held) - size].rstrip())


def _calls(inner: str, form: CallFormat) -> list[Call]:
    """The calls between two marks; none when these are not calls, and calls alone."""
    inner = inner.strip()
    if inner.startswith("<function="):
        return [_tagged(name, body, form.schemas.get(name)) for name, body in _FUNCTION.findall(inner)]
    try:
        if ARGUMENTS in inner and not inner.startswith(("{", "[")):
            return [_named(part) for part in inner.split(form.marks.begin)]
        found = json.loads(inner)
        return [_call(entry) for entry in (found if isinstance(found, list) else [found])]
    except (ValueError, RecursionError):
        return []


def _call(entry: object) -> Call:
    """Raises ValueError when it is none."""
    inner = _field(entry, "function")
    fields = inner if isinstance(inner, dict) else entry
    name, arguments = _field(fields, "name"), _field(fields, "arguments")
    if arguments is None:
        arguments = _field(fields, "parameters")
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if arguments is None:
        arguments = {}
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError(f"no call: {entry!r}")
    return Call(name, arguments)


def _named(text: str) -> Call:
    """Raises ValueError when it is none."""
    name, _, arguments = text.partition(ARGUMENTS)
    return _call({"name": name.strip(), "arguments": arguments})


def _tagged(name: str, body: str, schema: object) -> Call:
    arguments: dict[str, Any] = {}
    for parameter, text in _PARAMETER.findall(body):
        value = text.removeprefix("\n").removesuffix("\n")
        kind = _field(_field(_field(schema, "properties"), parameter), "type")
        arguments[parameter] = value if kind == "string" else _json_or_text(value)
    return Call(name, arguments)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _field(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def words_of(items: Iterable[str | Call]) -> str:
    """What is no call, joined."""
    return "".join(item for item in items if isinstance(item, str))


def calls_of(items: Iterable[str | Call]) -> list[Call]:
    """The calls alone."""
    return [item for item in items if isinstance(item, Call)]
