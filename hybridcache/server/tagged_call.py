"""Functions with their parameters in tags, as Qwen3-Coder and Nemotron 3 write calls."""

import re
from typing import NamedTuple

OPENING = "<function="

_TAG = re.compile(r"<(function|parameter)=([^>\s]+)>|</(function|parameter)>")
_BEHIND_A_VALUE = re.compile(r"\s*(?:<parameter=|</?function|\Z)")
_FUNCTION = re.compile(r"<function=([^>\s]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)


class TaggedFunction(NamedTuple):
    """A function as it was written; values without the line ends around them."""

    name: str
    parameters: dict[str, str]


def functions_in(text: str) -> list[TaggedFunction]:
    """The functions of ``text``, which begins with OPENING; an end tag may be left out."""
    functions, cut = _scan(text)
    if not cut:
        return functions
    return [
        TaggedFunction(name, {parameter: _trimmed(value) for parameter, value in _PARAMETER.findall(body)})
        for name, body in _FUNCTION.findall(text)
    ]


def ends_in_a_value(text: str) -> bool:
    """Whether ``text``, which begins with OPENING, is cut within a parameter's value."""
    return _scan(text)[1]


def _scan(text: str) -> tuple[list[TaggedFunction], bool]:
    """The functions whose values are all closed, and whether the last value is not.

    A value may hold tags itself: it is closed by a tag behind which a call can go on, at the beginning or end
    of a line if the value began on a line of its own, and not by those of a whole function within it.
    """
    functions: list[TaggedFunction] = []
    parameter: str | None = None
    begin = nested = 0
    for tag in _TAG.finditer(text):
        opened, name, closed = tag.groups()
        if parameter is None:
            if opened == "function":
                functions.append(TaggedFunction(name, {}))
            elif opened:
                parameter, begin = name, tag.end()
        elif nested or opened == "function":
            nested += (opened == "function") - (closed == "function")
        elif closed != "function" and _closes(text, begin, tag):
            functions[-1].parameters[parameter] = _trimmed(text[begin : tag.start()])
            parameter, begin = name, tag.end()
    return functions, parameter is not None


def _closes(text: str, begin: int, tag: re.Match[str]) -> bool:
    """Whether the parameter's tag ends the value that begins at ``begin``: its own, or the next one's."""
    own = tag[3] is not None
    if own and not _BEHIND_A_VALUE.match(text, tag.end()):
        return False
    if not text.startswith("\n", begin):
        return True
    first = text[begin : tag.start()].rstrip(" \t").endswith("\n")
    return first or (own and text[tag.end() : tag.end() + 1] in ("\n", ""))


def _trimmed(value: str) -> str:
    return value.removeprefix("\n").removesuffix("\n")
