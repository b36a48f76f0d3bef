"""A call of a tool, and the ways in which models write one."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from hybridcache.server.tagged_call import OPENING, TaggedFunction, ends_in_a_value, functions_in

ARGUMENTS = "[ARGS]"
"""Between a call's name and its arguments, as Mistral writes them."""
MOST_NESTED = 100
"""Lists and objects within each other, in a call's arguments."""


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
    if inner.startswith(OPENING):
        return [_tagged(function, schemas.get(function.name)) for function in functions_in(inner)]
    try:
        if _is_named(inner):
            return [_call({"name": name, "arguments": text}) for name, text in _named(inner, begin)]
        found = _json(inner)
        return [_call(entry) for entry in (found if isinstance(found, list) else [found])]
    except (ValueError, RecursionError):
        return []


def is_cut_short(inner: str, begin: str) -> bool:
    """Whether this is calls up to the middle of a text in JSON, or of a value in tags."""
    inner = inner.strip()
    if inner.startswith(OPENING):
        return ends_in_a_value(inner)
    try:
        if _is_named(inner):
            _named(inner, begin)
        else:
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


def _is_named(inner: str) -> bool:
    return ARGUMENTS in inner and not inner.startswith(("{", "["))


def _named(text: str, begin: str) -> list[tuple[str, str]]:
    """Names, each with ARGUMENTS and JSON behind it and ``begin`` between them.

    Raises JSONDecodeError, RecursionError, ValueError when it is none.
    """
    found: list[tuple[str, str]] = []
    while True:
        name, _, rest = text.partition(ARGUMENTS)
        rest = rest.lstrip()
        # The marks may be part of a text that is an argument.
        _, size = json.JSONDecoder(strict=False).raw_decode(rest)
        found.append((name.strip(), rest[:size]))
        text = rest[size:].lstrip()
        if not text:
            return found
        if not text.startswith(begin):
            raise ValueError(f"no call: {text!r}")
        text = text.removeprefix(begin)


def _tagged(function: TaggedFunction, schema: object) -> Call:
    arguments: dict[str, Any] = {}
    for parameter, value in function.parameters.items():
        kind = _field(_field(_field(schema, "properties"), parameter), "type")
        arguments[parameter] = value if kind == "string" else _json_or_text(value)
    return Call(function.name, arguments)


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
