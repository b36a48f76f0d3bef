"""The `anthropic` package against the server, as it is."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from tests.server_setup import MakeServer, Server, http, make_server, wait_idle
from tests.worker_setup import check_idle, in_engine, make_worker

__all__ = ["make_server", "make_worker"]

Client = Any
"""Anthropic's, whose overloads know no settings in a mapping."""
TEXT = "The prefix of a prompt is what a cache can reuse, if a checkpoint was kept there. " * 4
EPHEMERAL = {"type": "ephemeral"}
TOOLS: Any = [{"name": "weather", "description": "At a place.", "input_schema": {"type": "object"}}]


def client_of(server: Server, **settings: Any) -> Client:
    arguments: Any = {"base_url": server.url, "api_key": "none", "max_retries": 0} | settings
    return Anthropic(**arguments)


@pytest.fixture
def client(make_server: MakeServer) -> Iterator[Client]:
    with client_of(make_server()) as made:
        yield made


def asking(text: Any = "Why?", **settings: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 6, "messages": [{"role": "user", "content": text}]} | settings


def parts(usage: Any) -> tuple[int, int, int]:
    return usage.input_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens


def test_plain_and_streamed_are_one(client: Client) -> None:
    found = client.messages.create(**asking())
    assert found.type == "message" and found.role == "assistant" and found.model == "tiny"
    assert found.stop_reason == "max_tokens" and found.usage.output_tokens == 6
    kinds, texts = [], []
    with client.messages.stream(**asking()) as stream:
        for event in stream:
            kinds.append(event.type)
            if event.type == "message_start":
                start = event.message.usage
            if event.type == "content_block_delta":
                texts.append(event.delta.text)
        whole = stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop" and len(texts) >= 4
    assert "".join(texts) == whole.content[0].text == found.content[0].text != ""
    assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 6
    # The figures of the beginning are those of the end, and the second prompt was cached but for a token.
    assert parts(start) == parts(whole.usage) == (1, 0, sum(parts(found.usage)) - 1)
    assert parts(found.usage)[1:] == (0, 0)


def test_the_chat_is_openais(make_server: MakeServer) -> None:
    server = make_server()
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "18 degrees"}]}
    call = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"place": "Rome"}}
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    body = {
        "system": [{"type": "text", "text": "Use"}, {"type": "text", "text": "tools."}],
        "tools": TOOLS,
        "messages": [
            {"role": "user", "content": "Rome?"},
            {"role": "assistant", "content": [thought, {"type": "text", "text": "I ask."}, call]},
            {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
        ],
    }
    function = {"name": "weather", "arguments": '{"place": "Rome"}'}
    schema = {"name": "weather", "description": "At a place.", "parameters": {"type": "object"}}
    same = {
        "tools": [{"type": "function", "function": schema}],
        "messages": [
            {"role": "system", "content": "Use\ntools."},
            {"role": "user", "content": "Rome?"},
            {"role": "assistant", "content": "I ask.", "tool_calls": [{"id": "c1", "function": function}]},
            {"role": "tool", "tool_call_id": "c1", "content": "18 degrees"},
            {"role": "user", "content": "So?"},
        ],
    }
    count = http.post(f"{server.url}/tokenize", json=same).json()["count"]
    with client_of(server) as client:
        assert client.messages.count_tokens(model="tiny", **body).input_tokens == count
        found = client.messages.create(model="tiny", max_tokens=4, **body)
        assert sum(parts(found.usage)) == count
        for choice in ({"type": "auto", "disable_parallel_tool_use": True}, {"type": "none"}):
            same_tools = client.messages.create(model="tiny", max_tokens=4, tool_choice=choice, **body)
            assert same_tools.content == found.content
            assert (
                client.messages.count_tokens(model="tiny", tool_choice=choice, **body).input_tokens == count
            )
        text = http.post(f"{server.url}/v1/chat/completions", json={**same, "max_tokens": 4}).json()
        assert text["choices"][0]["message"]["content"] == found.content[0].text
        assert text["usage"]["prompt_tokens_details"]["cached_tokens"] == count - 1


def test_system_messages_stay_at_their_place(make_server: MakeServer) -> None:
    """As Claude Code sends them since 2.1.154: the turns before them are the prefix that they were."""
    server = make_server()
    turns: Any = [
        {"role": "user", "content": TEXT + "Rome?"},
        {"role": "system", "content": [{"type": "text", "text": "It is late.", "cache_control": EPHEMERAL}]},
    ]
    same = [{"role": "system", "content": "Use tools."}, turns[0], {**turns[1], "content": "It is late."}]
    count = http.post(f"{server.url}/tokenize", json={"messages": same}).json()["count"]
    with client_of(server) as client:
        first = client.messages.create(**asking(messages=turns[:1], system="Use tools."))
        found = client.messages.create(**asking(messages=turns, system="Use tools."))
        assert sum(parts(found.usage)) == count
        # All but where the answer would have begun.
        assert parts(found.usage)[2] >= sum(parts(first.usage)) - 1 and parts(found.usage)[1] > 0
        blank = {"role": "system", "content": ""}
        told = client.messages.count_tokens(model="tiny", system="Use tools.", messages=[*turns, blank])
        assert told.input_tokens == count


def test_hints_that_change_nothing_are_told(client: Client) -> None:
    """As Claude Code sends them, with each request."""
    plain = client.messages.create(**asking())
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    for thinking in ({"type": "adaptive"}, {"type": "enabled", "budget_tokens": 1_024}):
        found = client.messages.with_raw_response.create(
            **asking(thinking=thinking, output_config={"effort": "high"}),
            extra_body={"context_management": edits},
        )
        assert found.headers["x-ignored-fields"] == "thinking, output_config.effort"
        assert found.parse().content == plain.content
    found = client.messages.with_raw_response.create(**asking(thinking={"type": "disabled"}))
    assert "x-ignored-fields" not in found.headers and found.parse().content == plain.content


def test_a_system_prompt_that_says_nothing_is_none(make_server: MakeServer) -> None:
    server = make_server()
    blank = {"type": "text", "text": ""}
    with client_of(server) as client:

        def count(**settings: Any) -> int:
            asked = {"model": "tiny", "messages": asking()["messages"]} | settings
            return int(client.messages.count_tokens(**asked).input_tokens)

        for system in ("", [], [blank], [blank, blank]):
            assert count(system=system) == count()
        assert count(system=[blank, {"type": "text", "text": "Use"}]) == count(system="Use") > count()


@pytest.mark.parametrize("whole", [False, True])
def test_claude_codes_billing_line_does_not_cost_the_hits(client: Client, whole: bool) -> None:
    def system(mark: str) -> Any:
        line = f"x-anthropic-billing-header: cc_version=2.1.100.{mark}; cch={mark};"
        blocks = [{"type": "text", "text": line}, {"type": "text", "text": TEXT}]
        return f"{line}\n{TEXT}" if whole else blocks

    client.messages.create(**asking("One?", system=system("a1b2c")))
    found = client.messages.create(**asking("And two?", system=system("d4e5f")))
    plain = client.messages.create(**asking("And two?", system=TEXT))
    assert found.content == plain.content and sum(parts(found.usage)) == sum(parts(plain.usage))
    assert found.usage.cache_read_input_tokens > 50
    # Anywhere else it is text like any other.
    kept = client.messages.create(**asking("And two?", system=f"{TEXT}\n{system('f')[0]}"))
    assert sum(parts(kept.usage)) > sum(parts(plain.usage))


def test_a_breakpoint_of_the_whole_prompt(client: Client) -> None:
    """As on its last block, but that the client need not find it."""
    control = {"type": "ephemeral", "ttl": "1h"}
    block = {"type": "text", "text": TEXT}
    named = client.messages.create(**asking([{**block, "cache_control": control}]))
    found = client.messages.create(**asking([{**block, "text": f"So: {TEXT}"}]), cache_control=control)
    created = found.usage.cache_creation_input_tokens
    assert found.usage.cache_creation.ephemeral_1h_input_tokens == created > 50
    assert found.usage.input_tokens == named.usage.input_tokens


@pytest.mark.parametrize(("ttl", "seconds"), [(None, 300), ("5m", 300), ("1h", 3_600)])
def test_a_breakpoint_is_kept_at_once(make_server: MakeServer, ttl: str | None, seconds: int) -> None:
    server = make_server()
    control = {"type": "ephemeral"} | ({} if ttl is None else {"ttl": ttl})
    system = [{"type": "text", "text": TEXT, "cache_control": control}]
    document = [
        {"type": "text", "text": TEXT[20:], "cache_control": control},
        {"type": "text", "text": "What?"},
    ]
    with client_of(server) as client:
        first = client.messages.create(**asking("One?", system=system))
        rest, created, read = parts(first.usage)
        assert read == 0 and created > 50 > rest > 0
        other = client.messages.create(**asking("And another one?", system=system))
        assert parts(other.usage)[1:] == (0, created)
        expires = in_engine(
            server.worker, lambda e: max(n.expires_at for n in e.cache.store.table.nodes if n) - e.clock.now()
        )
        assert seconds - 60 < expires <= seconds
        written = first.usage.cache_creation
        kept = written.ephemeral_5m_input_tokens, written.ephemeral_1h_input_tokens
        assert kept == ((0, created) if ttl == "1h" else (created, 0))
        # In the middle of a message, and at the end of the tools.
        middle = client.messages.create(**asking(document))
        changed = client.messages.create(**asking([document[0], {"type": "text", "text": "Who, and why?"}]))
        assert 40 < sum(parts(middle.usage)[1:]) == parts(changed.usage)[2]
        tools = [{**TOOLS[0], "cache_control": control}]
        told = client.messages.create(**asking("One?", tools=tools, system="Few words."))
        again = client.messages.create(**asking("One?", tools=tools, system="Many words."))
        assert 20 < sum(parts(told.usage)[1:]) == parts(again.usage)[2]


def test_stop_sequences_and_prefilled_answers(client: Client) -> None:
    text = client.messages.create(**asking(max_tokens=12)).content[0].text
    stop = text[9:12]
    found = client.messages.create(**asking(max_tokens=12, stop_sequences=[stop]))
    assert found.content[0].text == text[: text.index(stop)]
    assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", stop)
    turns = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": text[:5]}]
    sampling = {"temperature": 0.5, "top_p": 0.9, "top_k": 5}
    prefilled = client.messages.create(**asking(messages=turns, extra_body=sampling))
    plain = client.messages.create(**asking())
    # The prompt goes on from where the answer stands, without an end token or a new beginning.
    assert sum(parts(prefilled.usage)) < sum(parts(plain.usage)) + 6


def test_a_checkpoints_defaults_are_those_of_every_api(make_server: MakeServer) -> None:
    server = make_server()
    chat = {"max_tokens": 12, "messages": asking()["messages"]}

    def answers(**settings: Any) -> list[str]:
        said = http.post(f"{server.url}/v1/messages", json=chat).json()["content"][0]["text"]
        other = http.post(f"{server.url}/v1/chat/completions", json=chat | settings).json()
        text = {"prompt": TEXT, "max_tokens": 12, **settings}
        plain = http.post(f"{server.url}/v1/completions", json=text).json()
        return [said, other["choices"][0]["message"]["content"], plain["choices"][0]["text"]]

    _, chat_alone, text_alone = answers()
    _, *penalised = answers(repetition_penalty=0.1)
    server.worker._generation = replace(server.worker._generation, repetition_penalty=0.1)
    said, *found = answers()
    assert found == penalised != [chat_alone, text_alone] and said == found[0]
    assert answers(repetition_penalty=1.0)[1:] == [chat_alone, text_alone]


def test_leaving_a_stream_frees_everything(make_server: MakeServer) -> None:
    server = make_server()
    with client_of(server) as client:
        with client.messages.stream(**asking(max_tokens=9_000)) as stream:
            for _, _ in zip(range(4), stream, strict=False):
                pass
        wait_idle(server.worker)
        assert server.worker.stats().engine.aborted == 1
        check_idle(server.worker)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_tokens": 0}, "at least 1"),
        ({"messages": []}, "empty"),
        ({"messages": [{"role": "tool", "content": "?"}]}, "'user', 'assistant' or 'system'"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "block of type 'image'"),
        ({"thinking": {"type": "novel"}}, "thinking.type: Input should be 'disabled'"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "format is not supported"),
        (
            {"extra_body": {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}},
            "an edit of type 'clear_tool_uses_20250919'",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "any"}}, "nothing here can make a model call"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "weather"}}, "nothing here can make"),
        ({"tools": TOOLS, "tool_choice": {"type": "novel"}}, "tool_choice.type: Input should be 'auto'"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"extra_body": {"cache_salt": ""}}, "cache_salt"),
        ({"max_tokens": 2_000}, "max_model_len"),
    ],
)  # fmt: skip
def test_bad_input_is_named(make_server: MakeServer, settings: dict[str, Any], message: str) -> None:
    with client_of(make_server(max_model_len=1_000)) as client:
        with pytest.raises(anthropic.BadRequestError, match=message) as caught:
            client.messages.create(**asking(**settings))
        assert client.messages.create(**asking()).content
    assert caught.value.body["type"] == "error"  # type: ignore[index]
    assert caught.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]


def test_other_errors_have_anthropics_form(make_server: MakeServer) -> None:
    server = make_server(server={"api_keys": ("secret",)}, max_num_seqs=1, max_queue=0)
    with client_of(server) as client, pytest.raises(anthropic.AuthenticationError, match="API key"):
        client.messages.create(**asking())
    with client_of(server, api_key="secret") as client:
        with pytest.raises(anthropic.NotFoundError, match="not served here"):
            client.messages.create(**asking(model="other"))
        running = server.worker.submit([1, 2, 3])
        with pytest.raises(anthropic.RateLimitError, match="try again later"):
            client.messages.create(**asking())
        running.abort()
        running.wait(60)
        assert client.messages.create(**asking()).content
