"""A call of a tool, and the ways in which models write one."""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

ARGUMENTS = "[ARGS]"
"""Between a call's name and its arguments, as Mistral writes them."""
MOST_NESTED = 100
"""Lists and objects within each other, in a call's arguments."""

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


def calls_in(inner: str, schemas: Mapping[str, object], begin: str) -> list[Call]:
    """The calls between two marks; none when these are not calls, and calls alone.

    One call as a JSON object, a list of them, a function in tags with its parameters in tags (as Qwen3-Coder
    and Nemotron 3 write them), or a name, ARGUMENTS and an object, behind a mark ``begin`` each (Mistral).
    ``schemas`` as in CallFormat.
    """
    inner = inner.strip()
    if inner.startswith("<function="):
        return [_tagged(name, body, schemas.get(name)) for name, body in _FUNCTION.findall(inner)]
    try:
        if ARGUMENTS in inner and not inner.startswith(("{", "[")):
            return [_named(part) for part in inner.split(begin)]
        found = _json(inner)
        return [_call(entry) for entry in (found if isinstance(found, list) else [found])]
    except (ValueError, RecursionError):
        return []


def is_cut_short(inner: str) -> bool:
    """Whether this is JSON up to the middle of a text."""
    try:
        json.loads(inner, strict=False)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except (ValueError, RecursionError):
        pass
    return False


def _call(entry: object) -> Call:
    """Raises ValueError when it is none."""
    inner = _field(entry, "function")
    fields = inner if isinstance(inner, dict) else entry
    name, arguments = _field(fields, "name"), _field(fields, "arguments")
    if arguments is None:
        arguments = _field(fields, "parameters")
    if isinstance(arguments, str):
        arguments = _json(arguments)
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
        return _json(text)
    except (ValueError, RecursionError):
        return text


def _json(text: str) -> Any:
    """A value that can be sent on as JSON; line ends within texts are taken as they are.

    Raises ValueError, RecursionError for what is none: infinities, NaN and halves of characters, which Python
    reads and JSON in UTF-8 has no form for, and what nests deeper than MOST_NESTED.
    """
    value = json.loads(text, strict=False)
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    level = [value]
    for _ in range(MOST_NESTED):
        level = [inner for outer in level for inner in _inner(outer)]
        if not level:
            return value
    raise ValueError(f"nested deeper than {MOST_NESTED}")


def _inner(value: object) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def _field(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None
