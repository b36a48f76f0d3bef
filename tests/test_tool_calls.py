"""Calls of tools read out of answers: formats, parts, and both APIs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcache.models.presets import preset_folder
from hybridcache.request import Request
from hybridcache.sampler import Logits, Sampler
from hybridcache.server.call import Call
from hybridcache.server.tool_calls import MARKS, CallFormat, CallReader, marks_of
from tests.server_setup import MakeServer, Server, make_server
from tests.worker_setup import make_worker

__all__ = ["make_server", "make_worker"]

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
    text = '<tool_call>{"name": "f", "arguments": {"x": "' + "</tool_call>" * 40
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


TOOL = {"name": "weather", "description": "At a place.", "parameters": SCHEMAS["weather"]}
TOOLS: Any = [{"type": "function", "function": TOOL}]
CHAT: Any = [{"role": "user", "content": "How warm is it in Rome, and in Oslo?"}]
ANSWER = f"I ask.\n<tool_call>\n{ROME_JSON}\n</tool_call>\n<tool_call>\n{OSLO_JSON}\n</tool_call>"


@pytest.fixture
def server(make_server: MakeServer, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Its model says ANSWER, whatever it is asked, where tokens are drawn."""
    made = make_server()
    say(monkeypatch, made, ANSWER)
    return made


def say(monkeypatch: pytest.MonkeyPatch, server: Server, answer: str) -> None:
    script = server.worker.codec.encode(answer, add_special_tokens=False)

    def next_token(self: Sampler, request: Request, logits: Logits) -> int:
        said = len(request.output)
        return script[said] if said < len(script) else min(request.end_token_ids)

    monkeypatch.setattr(Sampler, "next_token", next_token)


def with_special_marks(folder: Path, marks: Sequence[str]) -> Path:
    """The tiny checkpoint; ``marks`` are special tokens, and its template has the first two of them."""
    preset = preset_folder("tiny")
    for file in preset.iterdir():
        if file.name not in ("tokenizer.json", "chat_template.jinja"):
            (folder / file.name).symlink_to(file)
    tokenizer = json.loads((preset / "tokenizer.json").read_text())
    ids = {index: token for token, index in tokenizer["model"]["vocab"].items()}
    for index, mark in enumerate(marks, len(ids) - len(marks)):
        old = ids[index]
        tokenizer["model"]["vocab"][mark] = tokenizer["model"]["vocab"].pop(old)
        merges = tokenizer["model"]["merges"]
        tokenizer["model"]["merges"] = [merge for merge in merges if "".join(merge) != old]
        tokenizer["added_tokens"].append(
            tokenizer["added_tokens"][0] | {"id": index, "content": mark, "special": True}
        )
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    template = (preset / "chat_template.jinja").read_text()
    for plain, mark in zip(HERMES, marks, strict=False):
        template = template.replace(plain, mark)
    (folder / "chat_template.jinja").write_text(template)
    return folder


SPECIAL = {
    "Hermes": (HERMES, ANSWER),
    "Granite": (GRANITE[:1], f"I ask.<|tool_call|>[{ROME_JSON}, {OSLO_JSON}]"),
    "Mistral": ((MISTRAL.begin, "[ARGS]"), ANSWERS["Mistral, names"][1]),
}


@pytest.mark.parametrize(("marks", "answer"), SPECIAL.values(), ids=SPECIAL)
def test_calls_between_special_tokens(
    make_server: MakeServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    marks: Sequence[str],
    answer: str,
) -> None:
    server = make_server(model=with_special_marks(tmp_path, marks))
    codec = server.worker.codec
    assert len(codec.special_tokens(marks)) == len(marks)
    say(monkeypatch, server, answer)
    chat: Any = {"model": "tiny", "messages": CHAT, "tools": TOOLS, "temperature": 0.5, "max_tokens": 400}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        (whole,) = client.chat.completions.create(**chat).choices
        with client.chat.completions.stream(**chat) as stream:
            contents = [e.delta for e in stream if e.type == "content.delta"]
            (streamed,) = stream.get_final_completion().choices
        for choice in (whole, streamed):
            assert choice.finish_reason == "tool_calls" and choice.message.content == "I ask."
            calls = choice.message.tool_calls or []
            assert [(c.function.name, json.loads(c.function.arguments)) for c in calls] == [ROME, OSLO]
        assert "".join(contents) == "I ask."
        # Where nothing is read, marks are left out as all special tokens are.
        bare = codec.decode(codec.encode(answer, add_special_tokens=False))
        assert not any(mark in bare for mark in marks)
        for plain in (chat | {"tool_choice": "none"}, {k: v for k, v in chat.items() if k != "tools"}):
            assert client.chat.completions.create(**plain).choices[0].message.content == bare
        say(monkeypatch, server, f"So{marks[0]}it{marks[-1]} is.")
        assert client.chat.completions.create(**chat).choices[0].message.content == "Soit is."
        say(monkeypatch, server, answer)
    tools: Any = [{"name": "weather", "input_schema": SCHEMAS["weather"]}]
    body: Any = chat | {"tools": tools}
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client_:
        message = client_.messages.create(**without_temperature(body))
        with client_.messages.stream(**without_temperature(body)) as events:
            final = events.get_final_message()
        answers: list[Any] = [message, final]
        for found in answers:
            text, *uses = found.content
            assert found.stop_reason == "tool_use" and text.type == "text" and text.text == "I ask."
            assert [(c.name, c.input) for c in uses if c.type == "tool_use"] == [ROME, OSLO]


def without_temperature(body: dict[str, Any]) -> dict[str, Any]:
    """For a client that has no such argument any more."""
    return {k: v for k, v in body.items() if k != "temperature"} | {"extra_body": {"temperature": 0.5}}


def test_openai(server: Server) -> None:
    settings: Any = {
        "model": "tiny",
        "messages": CHAT,
        "tools": TOOLS,
        "max_completion_tokens": 400,
        "temperature": 0.5,
    }
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        whole = client.chat.completions.create(**settings)
        (choice,) = whole.choices
        assert choice.finish_reason == "tool_calls" and choice.message.content == "I ask."
        calls = choice.message.tool_calls or []
        assert [(c.function.name, json.loads(c.function.arguments)) for c in calls] == [ROME, OSLO]
        assert len({call.id for call in calls}) == 2

        with client.chat.completions.stream(**settings) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion().choices[0]
        assert final.finish_reason == "tool_calls" and final.message.content == "I ask."
        streamed = final.message.tool_calls or []
        assert [(c.function.name, json.loads(c.function.arguments)) for c in streamed] == [ROME, OSLO]

        # The next turn repeats the answer's tokens, so that it hits behind them.
        results: Any = [{"role": "tool", "tool_call_id": c.id, "content": "18 degrees"} for c in calls]
        turn = [*CHAT, choice.message.to_dict(), *results]
        again = client.chat.completions.create(**settings | {"messages": turn})
        assert whole.usage is not None and again.usage is not None
        assert again.usage.prompt_tokens_details is not None
        said = whole.usage.prompt_tokens + whole.usage.completion_tokens
        assert said - 2 <= (again.usage.prompt_tokens_details.cached_tokens or 0) <= said

        # Nothing is read where no call is asked for, or where an answer is cut.
        plain = client.chat.completions.create(**settings, tool_choice="none").choices[0]
        assert plain.finish_reason == "stop" and plain.message.content == ANSWER
        assert plain.message.tool_calls is None
        bare = client.chat.completions.create(
            model="tiny", messages=CHAT, max_completion_tokens=400, temperature=0.5
        )
        assert bare.choices[0].message.content == ANSWER
        cut = client.chat.completions.create(**settings | {"max_completion_tokens": 24}).choices[0]
        assert cut.finish_reason == "length" and cut.message.tool_calls is None
        assert ANSWER.startswith(cut.message.content or "") and "<tool_call>" in (cut.message.content or "")


def test_anthropic(server: Server) -> None:
    tools: Any = [{"name": "weather", "input_schema": SCHEMAS["weather"]}]
    settings: Any = {
        "model": "tiny",
        "messages": CHAT,
        "tools": tools,
        "max_tokens": 400,
        "extra_body": {"temperature": 0.5},
    }
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        whole = client.messages.create(**settings)
        assert whole.stop_reason == "tool_use"
        text, *calls = whole.content
        assert text.type == "text" and text.text == "I ask."
        assert [(c.name, c.input) for c in calls if c.type == "tool_use"] == [ROME, OSLO]
        with client.messages.stream(**settings) as stream:
            final = stream.get_final_message()
        assert final.stop_reason == "tool_use"
        assert [b.model_dump(exclude={"id"}) for b in final.content] == [
            b.model_dump(exclude={"id"}) for b in whole.content
        ]

        results = [
            {"type": "tool_result", "tool_use_id": c.id, "content": "18"}
            for c in calls
            if c.type == "tool_use"
        ]
        turn = [*CHAT, {"role": "assistant", "content": whole.content}, {"role": "user", "content": results}]
        again = client.messages.create(**settings | {"messages": turn})
        assert (again.usage.cache_read_input_tokens or 0) >= sum(
            (
                whole.usage.input_tokens,
                whole.usage.cache_creation_input_tokens or 0,
                whole.usage.output_tokens - 2,
            )
        )
        plain = client.messages.create(**settings, tool_choice={"type": "none"})
        assert plain.stop_reason == "end_turn" and plain.content[0].to_dict() == {
            "type": "text",
            "text": ANSWER,
        }
