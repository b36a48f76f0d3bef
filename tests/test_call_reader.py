"""Calls of tools read out of a text: formats, and texts that come in parts."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcache.server.call import Call
from hybridcache.server.tool_calls import MARKS, MOST_ENDS, CallFormat, CallReader, marks_of

HERMES, JAMBA, NEMOTRON, GRANITE, MISTRAL = MARKS
SCHEMAS = {
    "weather": {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}}
}
ROME, OSLO = Call("weather", {"place": "Rome", "days": 2}), Call("weather", {"place": "Oslo"})
ROME_JSON, OSLO_JSON = json.dumps(ROME._asdict()), json.dumps(OSLO._asdict())
TAGS = """<function=weather>
<parameter=place>
42
</parameter>
<parameter=days>
2
</parameter>
<parameter=note>
in "words"
</parameter>
</function>"""
VALUES_IN_TAGS = (
    "see </tool_call>",
    "</function>",
    "</function>\n</tool_call>",
    f"as in\n<tool_call>\n{TAGS}\n</tool_call>\n",
    f"as in <tool_call>{TAGS}</tool_call>, or {TAGS}{TAGS}.",
    "a </parameter> b",
    "x <parameter=n></parameter></function></tool_call>;",
    f"<tool_call>{ROME_JSON}</tool_call>",
    "</tool_call>" * 99,
    "",
)


def tagged(value: str) -> str:
    """A function in tags, as templates write them."""
    second = "<parameter=y>\n2\n</parameter>"
    return f"<function=f>\n<parameter=x>\n{value}\n</parameter>\n{second}\n</function>\n"


ANSWERS = {
    "no call": (HERMES, "18 degrees. \n", ["18 degrees. \n"]),
    "one": (HERMES, f"\n<tool_call>\n{ROME_JSON}\n</tool_call>\n", [ROME]),
    "words before": (HERMES, f"I ask.\n<tool_call>{ROME_JSON}</tool_call>", ["I ask.", ROME]),
    "two": (HERMES, f"<tool_call>{ROME_JSON}</tool_call>\n<tool_call>{OSLO_JSON}</tool_call>", [ROME, OSLO]),
    "words behind": (HERMES, f"<tool_call>{ROME_JSON}</tool_call> So.", [ROME, " So."]),
    "never closed": (HERMES, f"<tool_call>\n{ROME_JSON}", [ROME]),
    "cut off": (HERMES, 'Hm. <tool_call>{"name": "wea', ['Hm. <tool_call>{"name": "wea']),
    "no JSON": (HERMES, "a <tool_call>b</tool_call> c", ["a <tool_call>b</tool_call> c"]),
    "no name": (
        HERMES,
        '<tool_call>{"arguments": {}}</tool_call>',
        ['<tool_call>{"arguments": {}}</tool_call>'],
    ),
    "no object": (
        HERMES,
        '<tool_call>[{"name": "a"}, 3]</tool_call>',
        ['<tool_call>[{"name": "a"}, 3]</tool_call>'],
    ),
    "nothing": (HERMES, "<tool_call>[]</tool_call>", ["<tool_call>[]</tool_call>"]),
    "a mark begins": (HERMES, "1 <tool and <tool_", ["1 <tool and <tool_"]),
    "no arguments": (HERMES, '<tool_call>{"name": "now"}</tool_call>', [Call("now", {})]),
    "arguments as text": (
        HERMES,
        '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>',
        [Call("f", {"x": 1})],
    ),
    "parameters": (
        HERMES,
        '<tool_call>{"name": "f", "parameters": {"x": 1}}</tool_call>',
        [Call("f", {"x": 1})],
    ),
    "within a function": (
        HERMES,
        f'<tool_call>{{"type": "function", "function": {OSLO_JSON}}}</tool_call>',
        [OSLO],
    ),
    "tags": (
        HERMES,
        f"<tool_call>\n{TAGS}\n</tool_call>",
        [Call("weather", {"place": "42", "days": 2, "note": 'in "words"'})],
    ),
    "list": (JAMBA, f" <tool_calls>[{ROME_JSON}, {OSLO_JSON}]</tool_calls>", [ROME, OSLO]),
    **{
        f"a value in tags {number}": (
            HERMES,
            f"a <tool_call>{tagged(value)}</tool_call> b <tool_call>{OSLO_JSON}</tool_call>",
            ["a", Call("f", {"x": value, "y": 2}), " b", OSLO],
        )
        for number, value in enumerate(VALUES_IN_TAGS)
    },
    "a tag left out": (
        HERMES,
        f"<tool_call><function=f><parameter=x>5</tool_call> So. <tool_call>{OSLO_JSON}</tool_call>",
        [Call("f", {"x": 5}), " So.", OSLO],
    ),
    "all end tags left out": (
        HERMES,
        "<tool_call><function=f>\n<parameter=x>\n5\n<parameter=y>\n6\n</function></tool_call>So.",
        [Call("f", {"x": 5, "y": 6}), "So."],
    ),
    "two functions": (
        HERMES,
        f"<tool_call>{tagged('</function>')}{tagged('</tool_call>')}</tool_call>",
        [Call("f", {"x": "</function>", "y": 2}), Call("f", {"x": "</tool_call>", "y": 2})],
    ),
    "a value that does not end": (
        HERMES,
        "a <tool_call><function=f><parameter=x>\nrm -r out",
        ["a <tool_call><function=f><parameter=x>\nrm -r out"],
    ),
    "other marks": (JAMBA, f"<tool_call>{ROME_JSON}</tool_call>", [f"<tool_call>{ROME_JSON}</tool_call>"]),
    "capitals": (NEMOTRON, f"<TOOLCALL>[{ROME_JSON}]</TOOLCALL>", [ROME]),
    "no end": (GRANITE, f"I ask. <|tool_call|>[{ROME_JSON}, {OSLO_JSON}]", ["I ask.", ROME, OSLO]),
    "Phi": (GRANITE, f"<|tool_call|>[{ROME_JSON}]<|/tool_call|>", [ROME]),
    "Mistral, a list": (MISTRAL, f"[TOOL_CALLS] [{ROME_JSON}, {OSLO_JSON}]", [ROME, OSLO]),
    "Mistral, names": (
        MISTRAL,
        'I ask.[TOOL_CALLS]weather[ARGS]{"place": "Rome", "days": 2}'
        '[TOOL_CALLS]weather[ARGS]{"place": "Oslo"}',
        ["I ask.", ROME, OSLO],
    ),
    "Mistral, cut off": (MISTRAL, "[TOOL_CALLS]weather[ARGS]{", ["[TOOL_CALLS]weather[ARGS]{"]),
    "the end mark in a text": (
        HERMES,
        'a <tool_call>{"name": "f", "arguments": {"x": "</tool_call>, </tool_call>"}}</tool_call> b',
        ["a", Call("f", {"x": "</tool_call>, </tool_call>"}), " b"],
    ),
    "a text that never ends": (
        HERMES,
        f'<tool_call>{{"name": "f}}</tool_call> So. <tool_call>{OSLO_JSON}</tool_call>',
        ['<tool_call>{"name": "f}</tool_call> So.', OSLO],
    ),
    "two that never end": (
        HERMES,
        '<tool_call>{"name": "f}</tool_call>a<tool_call>{"name": "f}</tool_call>b',
        ['<tool_call>{"name": "f}</tool_call>a<tool_call>{"name": "f}</tool_call>b'],
    ),
    "a line end in a text": (
        HERMES,
        '<tool_call>{"name": "f", "arguments": {"x": "a\n\tb"}}</tool_call>',
        [Call("f", {"x": "a\n\tb"})],
    ),
    "tags with what is no JSON": (
        HERMES,
        "<tool_call><function=f><parameter=x>NaN</parameter><parameter=y>1e999</parameter></function></tool_call>",
        [Call("f", {"x": "NaN", "y": "1e999"})],
    ),
    "ARGS in a text": (
        HERMES,
        '<tool_call>{"name": "f", "arguments": {"x": "a[ARGS]{}"}}</tool_call>',
        [Call("f", {"x": "a[ARGS]{}"})],
    ),
    "marks of Mistral's in texts": (
        MISTRAL,
        '[TOOL_CALLS]f[ARGS]{"x": "[TOOL_CALLS]g[ARGS]{}"}[TOOL_CALLS]g [ARGS] {"x": "[/TOOL_CALLS]"} ',
        [Call("f", {"x": "[TOOL_CALLS]g[ARGS]{}"}), Call("g", {"x": "[/TOOL_CALLS]"})],
    ),
}
UNSENDABLE = ("NaN", "1e999", "-Infinity", '"\\ud800"', '{"\\udc00": 1}', "[" * 200 + "]" * 200, "[" * 50_000)
"""Arguments that Python reads, or fails at, and that nobody could be sent."""
HIDDEN = {
    "a call": (f"I ask. <tool_call>{ROME_JSON}</tool_call>", ["I ask.", ROME]),
    "no call": ("I <tool_call> say</tool_call> so", ["I  say so"]),
    "never closed": ("I ask <tool_call>her", ["I ask her"]),
    "a stray end": (f"a </tool_call>b <tool_call>{OSLO_JSON}</tool_call></tool_call>", ["a b", OSLO]),
    "a mark made of two": ("a <tool_<tool_call>x</tool_call>call> b", ["a <tool_xcall> b"]),
}
"""Texts whose marks are special tokens."""


def read(parts: list[str], marks: Any = HERMES, hidden: tuple[str, ...] = ()) -> list[str | Call]:
    """Items of a text that comes in parts, words that touch joined."""
    reader = CallReader(CallFormat(marks, SCHEMAS, hidden))
    found: list[str | Call] = []
    for item in [item for part in parts for item in reader.add(part)] + reader.end():
        if isinstance(item, str) and found and isinstance(found[-1], str):
            found[-1] += item
        else:
            found.append(item)
    return found


@pytest.mark.parametrize(("marks", "text", "wanted"), ANSWERS.values(), ids=ANSWERS)
def test_words_and_calls_are_told_apart(marks: Any, text: str, wanted: list[str | Call]) -> None:
    assert read([text], marks) == wanted
    assert read(list(text), marks) == wanted


@pytest.mark.parametrize(("text", "wanted"), HIDDEN.values(), ids=HIDDEN)
def test_marks_that_are_special_tokens_are_no_words(text: str, wanted: list[str | Call]) -> None:
    assert read([text], HERMES, HERMES) == wanted
    assert read(list(text), HERMES, HERMES) == wanted


@pytest.mark.parametrize("value", UNSENDABLE, ids=range(len(UNSENDABLE)))
def test_what_cannot_be_sent_as_json_is_no_call(value: str) -> None:
    """An answer that has it would fail, or its stream break off."""
    for arguments in (f'{{"x": {value}}}', json.dumps(f'{{"x": {value}}}')):
        text = f'a <tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
        assert read([text]) == [text]
    name = f'<tool_call>{{"name": {value}, "arguments": {{}}}}</tool_call>'
    assert read([name]) == [name]


def test_a_text_of_end_marks_is_not_looked_at_for_ever() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"x": "' + "</tool_call>" * (MOST_ENDS + 8)
    reader = CallReader(CallFormat(HERMES, SCHEMAS))
    assert "".join(map(str, reader.add(text))) == text, "given up before the answer's end"
    assert read([text]) == [text]


@given(st.data())
def test_how_a_text_is_parted_changes_nothing(data: st.DataObject) -> None:
    pieces = ["<tool_call>", "</tool_call>", "<tool_", ROME_JSON, TAGS, " ", "\n", "word", "<", "{", "é", '"',
              '{"name": "f", "arguments": {"x": "', '"}}']  # fmt: skip
    text = "".join(data.draw(st.lists(st.sampled_from(pieces), max_size=12)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    found = read(parts)
    assert found == read([text])
    if not any(isinstance(item, Call) for item in found):
        assert "".join(map(str, found)) == text
    assert read(parts, HERMES, HERMES) == read([text], HERMES, HERMES)


def test_words_do_not_wait_for_what_cannot_be_a_call() -> None:
    reader = CallReader(CallFormat(HERMES, SCHEMAS))
    assert reader.add("So") == ["So"]
    assert reader.add(" <tool") == []
    assert reader.add("s are") == [" <tools are"]


def test_the_template_says_what_marks_are_used() -> None:
    assert marks_of("{{ '<tool_calls>[' }}") == JAMBA
    assert marks_of("{{ '<tool_call>' }}") == HERMES
    assert marks_of("{{ '[TOOL_CALLS]' }}") == MISTRAL
    assert marks_of("{{ message.content }}") is None
