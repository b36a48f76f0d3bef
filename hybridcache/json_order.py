"""JSON values inside a text, and how two lists of them differ."""

import json
from collections import Counter

_DECODER = json.JSONDecoder()
_LEAST = 2  # members of a value that is looked at
_MOST_FAILURES = 64  # brackets of one text that open no value


def json_values(text: str) -> list[object]:
    """The objects and arrays in ``text``, in order; arrays of objects give their items. Never raises."""
    found: list[object] = []
    at = failures = 0
    while True:
        starts = [place for mark in "{[" if (place := text.find(mark, at)) >= 0]
        if not starts or failures > _MOST_FAILURES:
            return found
        at = min(starts)
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            at, failures = at + 1, failures + 1
            continue
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            found += value
        elif isinstance(value, dict) and len(value) >= _LEAST:
            found.append(value)


def difference(values: list[object], others: list[object]) -> str | None:
    """How ``values`` differ from ``others``: "keys", "order" or "members"; None: otherwise, or not at all.

    keys: the same values in the same order, their keys in another. order: the same values in another order.
    members: values were added to the others, or taken from them, and there is more in common than not.
    """
    if not values or not others:
        return None
    mine, theirs = ([json.dumps(v, sort_keys=True) for v in side] for side in (values, others))
    if mine == theirs:
        return "keys" if [json.dumps(v) for v in values] != [json.dumps(v) for v in others] else None
    if Counter(mine) == Counter(theirs):
        return "order"
    common = (Counter(mine) & Counter(theirs)).total()
    one_sided = common in (len(mine), len(theirs))
    return "members" if one_sided and 2 * common > max(len(mine), len(theirs)) else None


def names_differ(values: list[object], others: list[object]) -> bool:
    """Whether tools came while others went: other names, and more tools in common than not."""
    mine, theirs = ([json.dumps(v, sort_keys=True) for v in side] for side in (values, others))
    common = (Counter(mine) & Counter(theirs)).total()
    return 2 * common > max(len(mine), len(theirs)) and _names(values) != _names(others)


def _names(values: list[object]) -> Counter[str]:
    """The names of tools, in either form of their schemas."""
    found: Counter[str] = Counter()
    for value in values:
        inner = value.get("function", value) if isinstance(value, dict) else None
        found[str(inner.get("name") if isinstance(inner, dict) else inner)] += 1
    return found


def are_tools(values: list[object]) -> bool:
    """Whether most of them look like schemas of tools, or of tools' parameters."""
    marks = {"parameters", "input_schema", "function", "inputSchema"}
    looks = [
        isinstance(value, dict)
        and (bool(marks & value.keys()) or all(isinstance(v, dict) and "type" in v for v in value.values()))
        for value in values
    ]
    return 2 * sum(looks) > len(looks)
