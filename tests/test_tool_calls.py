"""Calls of tools in the answers of both APIs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from hybridcache.models.presets import preset_folder
from hybridcache.request import Request
from hybridcache.sampler import Logits, Sampler
from hybridcache.server.call import Call
from hybridcache.server.tool_calls import MARKS
from tests.server_setup import MakeServer, Server, make_server
from tests.worker_setup import make_worker

__all__ = ["make_server", "make_worker"]

HERMES, _, _, GRANITE, MISTRAL = MARKS
PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}}
ROME, OSLO = Call("weather", {"place": "Rome", "days": 2}), Call("weather", {"place": "Oslo"})
ROME_JSON, OSLO_JSON = json.dumps(ROME._asdict()), json.dumps(OSLO._asdict())
TOOL = {"name": "weather", "description": "At a place.", "parameters": PARAMETERS}
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
    "Mistral": (
        (MISTRAL.begin, "[ARGS]"),
        "I ask." + "".join(f"[TOOL_CALLS]{each.name}[ARGS]{each.arguments_json}" for each in (ROME, OSLO)),
    ),
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
    tools: Any = [{"name": "weather", "input_schema": PARAMETERS}]
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


@pytest.mark.parametrize("place", ["</tool_call>", "a</function>\n</tool_call>\nb"])
def test_marks_within_a_value(server: Server, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """The call has all of the text, and none of it comes as words."""
    call = f"<function=weather>\n<parameter=place>\n{place}\n</parameter>\n</function>"
    say(monkeypatch, server, f"I ask.\n<tool_call>\n{call}\n</tool_call>")
    chat: Any = {"model": "tiny", "messages": CHAT, "tools": TOOLS, "temperature": 0.5, "max_tokens": 400}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        with client.chat.completions.stream(**chat) as stream:
            streamed = stream.get_final_completion()
        for answer in (client.chat.completions.create(**chat), streamed):
            message = answer.choices[0].message
            assert message.content == "I ask." and message.tool_calls
            assert [json.loads(each.function.arguments) for each in message.tool_calls] == [{"place": place}]


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
    tools: Any = [{"name": "weather", "input_schema": PARAMETERS}]
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
