"""Calls of tools, read out of an answer's text while it comes."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hybridcache.server.call import Call, calls_in, is_cut_short


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
"""What may be between them `calls_in` says."""

MOST_ENDS = 200
"""Closing marks within one text of a call: beyond each all of it is looked at again."""


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
        self._sought = 0
        """Where in the text held the closing mark may come."""
        self._first_end: int | None = None
        """Where the first one came, if what it would end is cut short there."""
        self._called = False
        """Whether a call was the last to come."""

    def add(self, text: str) -> list[str | Call]:
        """The next part of the text; what can be told by now."""
        self._held += text
        found: list[str | Call] = []
        while self._close(found) if self._inside else self._open(found):
            pass
        if not self._inside:
            at = self._may_begin()
            words, self._held = self._held[:at], self._held[at:]
            self._tell(words, found)
        return found

    def end(self) -> list[str | Call]:
        """The text has ended: the rest of it."""
        found: list[str | Call] = []
        while self._inside:
            cut = is_cut_short(self._held, self._form.marks.begin)
            if self._first_end is None or (self._calls(self._held) and not cut):
                inner, self._held = self._held, ""
                self._read(inner, "", found, whole=not cut)
            else:
                self._read_up_to(self._first_end, found)
                found += self.add("")
        rest, self._held = self._held, ""
        if not self._called or rest.strip():
            self._tell(rest, found)
        return found

    def _open(self, found: list[str | Call]) -> bool:
        """Read up to the next mark among words, if there is one."""
        begin = self._form.marks.begin
        marks = [mark for mark in self._watched if mark in self._held]
        if not marks:
            return False
        mark = min(marks, key=self._held.index)
        before, _, rest = self._held.partition(mark)
        words = before.rstrip()
        self._tell(words, found)
        space = before[len(words) :]
        if mark == begin:
            self._inside, self._space, self._held = True, space, rest
        else:
            self._held = space + rest
        return True

    def _close(self, found: list[str | Call]) -> bool:
        """Read up to the mark that ends the calls, if it has come."""
        end = self._form.marks.end
        at = self._held.find(end, self._sought)
        if at < 0:
            return False
        inner = self._held[:at]
        cut = is_cut_short(inner, self._form.marks.begin)
        if cut and inner.count(end) < MOST_ENDS:
            # The mark may be part of a text that is an argument.
            self._first_end = at if self._first_end is None else self._first_end
            self._sought = at + len(end)
            return True
        if self._first_end is not None and (cut or not self._calls(inner)):
            at = self._first_end
        self._read_up_to(at, found)
        return True

    def _read_up_to(self, at: int, found: list[str | Call]) -> None:
        """Read the calls that the end mark at ``at`` ends."""
        end = self._form.marks.end
        inner, self._held = self._held[:at], self._held[at + len(end) :]
        self._read(inner, end, found)

    def _read(self, inner: str, end: str, found: list[str | Call], *, whole: bool = True) -> None:
        """Read what is between the marks as calls, or as words if it is none, or not ``whole``."""
        self._inside, self._sought, self._first_end = False, 0, None
        if whole and (calls := self._calls(inner)):
            found += calls
            self._called = True
        else:
            text = self._form.marks.begin + inner + end
            for mark in self._form.hidden:
                text = text.replace(mark, "")
            self._tell(self._space + text, found)

    def _calls(self, inner: str) -> list[Call]:
        return calls_in(inner, self._form.schemas, self._form.marks.begin)

    def _tell(self, words: str, found: list[str | Call]) -> None:
        if words:
            found.append(words)
            self._called = False

    def _may_begin(self) -> int:
        """Where the end of the text held may be white space and the first part of a mark."""
        held = self._held
        sizes = range(min(max(map(len, self._watched)) - 1, len(held)), 0, -1)
        size = next(
            (n for n in sizes if any(len(m) > n and m.startswith(held[-n:]) for m in self._watched)), 0
        )
        return len(held[: len(held) - size].rstrip())


def words_of(items: Iterable[str | Call]) -> str:
    """What is no call, joined."""
    return "".join(item for item in items if isinstance(item, str))


def calls_of(items: Iterable[str | Call]) -> list[Call]:
    """The calls alone."""
    return [item for item in items if isinstance(item, Call)]
