"""The `openai` package against the server, as it is."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from hybridcache.worker import SamplingParams
from tests.server_setup import MakeServer, Server, http, make_server, wait_idle
from tests.worker_setup import check_idle, make_worker

__all__ = ["make_server", "make_worker"]

TEXT = "The prefix of a prompt is what a cache can reuse, if a checkpoint was kept there."
CHAT: Any = [{"role": "system", "content": "Answer in few words."}, {"role": "user", "content": TEXT}]
EXTRA = {"ignore_eos": True}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather at a place.",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
        },
    }
]


Client = Any
"""OpenAI's, whose overloads know no settings in a mapping."""


def client_of(server: Server, **settings: Any) -> Client:
    arguments: Any = {"base_url": f"{server.url}/v1", "api_key": "none", "max_retries": 0} | settings
    return OpenAI(**arguments)


@pytest.fixture
def client(make_server: MakeServer) -> Iterator[Client]:
    with client_of(make_server()) as made:
        yield made


def test_a_completion_is_the_workers_answer(make_server: MakeServer) -> None:
    server = make_server()
    (whole,) = server.worker.generate([TEXT], SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True))
    with client_of(server) as client:
        found = client.completions.create(model="tiny", prompt=TEXT, max_tokens=8, extra_body=EXTRA)
        parts = list(
            client.completions.create(model="tiny", prompt=TEXT, max_tokens=8, stream=True, extra_body=EXTRA)
        )
    assert found.choices[0].text == whole.text == "".join(part.choices[0].text for part in parts)
    assert found.choices[0].finish_reason == parts[-1].choices[0].finish_reason == "length"
    assert found.usage is not None and found.usage.completion_tokens == 8
    assert {part.choices[0].finish_reason for part in parts[:-1]} == {None}
    assert len({part.id for part in parts}) == 1 and found.id != parts[0].id


def test_the_readmes_example(make_server: MakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    readme = Path(__file__).resolve().parents[1] / "README.md"
    blocks = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = (block for block in blocks if "from openai import" in block)
    exec(code.replace("http://127.0.0.1:8000", make_server().url), {})
    first, second = (line.rsplit(maxsplit=1)[1] for line in capsys.readouterr().out.strip().splitlines()[-2:])
    assert int(first) == 0 < int(second)


def test_several_prompts_and_several_answers(client: Client) -> None:
    prompts = [TEXT, TEXT[:30], TEXT[10:]]
    settings: Any = {
        "model": "tiny",
        "max_tokens": 5,
        "n": 2,
        "temperature": 0.8,
        "seed": 3,
        "extra_body": EXTRA,
    }
    alone = [client.completions.create(prompt=prompt, **settings) for prompt in prompts]
    texts = [choice.text for each in alone for choice in each.choices]
    found = client.completions.create(prompt=prompts, **settings)
    assert [choice.index for choice in found.choices] == list(range(6))
    assert [choice.text for choice in found.choices] == texts and texts[0] != texts[1]
    joined = [""] * 6
    for part in client.completions.create(prompt=prompts, stream=True, **settings):
        joined[part.choices[0].index] += part.choices[0].text
    assert joined == texts
    usages = [each.usage for each in alone if each.usage is not None]
    assert found.usage is not None
    assert found.usage.prompt_tokens == sum(usage.prompt_tokens for usage in usages)
    assert found.usage.completion_tokens == 30


def test_a_chat_plain_and_streamed(client: Client) -> None:
    settings: Any = {"model": "tiny", "messages": CHAT, "max_completion_tokens": 7, "extra_body": EXTRA}
    found = client.chat.completions.create(**settings)
    text, roles, reasons = "", [], []
    for part in client.chat.completions.create(stream=True, **settings):
        (choice,) = part.choices
        text += choice.delta.content or ""
        roles.append(choice.delta.role)
        reasons.append(choice.finish_reason)
    assert text == found.choices[0].message.content != ""
    assert roles[0] == "assistant" and set(roles[1:]) <= {None}
    assert reasons[-1] == found.choices[0].finish_reason == "length"
    # The package's own gathering of a stream, which takes answers that end by themselves.
    with client.chat.completions.stream(stop=text[-4:], **settings) as stream:
        assert stream.get_final_completion().choices[0].message.content == text[: text.index(text[-4:])]


def test_log_probabilities(client: Client) -> None:
    settings: Any = {"model": "tiny", "max_tokens": 4, "extra_body": EXTRA}
    found = client.completions.create(prompt=TEXT, logprobs=2, **settings).choices[0]
    assert found.logprobs is not None and "".join(found.logprobs.tokens or []) == found.text
    assert found.logprobs.text_offset is not None and found.logprobs.top_logprobs is not None
    for token, offset in zip(found.logprobs.tokens or [], found.logprobs.text_offset, strict=True):
        assert found.text.startswith(token, offset)
    for value, top in zip(found.logprobs.token_logprobs or [], found.logprobs.top_logprobs, strict=True):
        assert value == max(top.values()) and len(top) == 2
    chat = client.chat.completions.create(messages=CHAT, logprobs=True, top_logprobs=3, **settings).choices[0]
    assert chat.logprobs is not None and chat.logprobs.content is not None
    assert "".join(token.token for token in chat.logprobs.content) == chat.message.content
    assert all(
        len(t.top_logprobs) == 3 and bytes(t.bytes or []) == t.token.encode() for t in chat.logprobs.content
    )
    streamed = client.chat.completions.create(messages=CHAT, logprobs=True, stream=True, **settings)
    entries = [c.logprobs.content or [] for part in streamed for c in part.choices if c.logprobs]
    assert [t.logprob for each in entries for t in each] == [t.logprob for t in chat.logprobs.content]


def test_a_tool_without_a_name_is_refused(client: Client) -> None:
    for function in ({}, {"name": ""}, {"name": 5}):
        tools = [{"type": "function", "function": function}]
        with pytest.raises(openai.BadRequestError, match="give the function's name"):
            client.chat.completions.create(model="tiny", messages=CHAT, tools=tools)


def test_stop_texts_and_sampling_settings(client: Client) -> None:
    settings: Any = {"model": "tiny", "messages": CHAT, "max_tokens": 16, "extra_body": EXTRA}
    whole = client.chat.completions.create(**settings).choices[0].message.content or ""
    stop = whole[12:15]
    cut = client.chat.completions.create(stop=stop, **settings)
    assert cut.choices[0].message.content == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    parts = [p.choices[0] for p in client.chat.completions.create(stop=[stop], stream=True, **settings)]
    assert "".join(c.delta.content or "" for c in parts) == whole[: whole.index(stop)]
    assert parts[-1].finish_reason == "stop"
    banned = client.chat.completions.create(
        logit_bias={"5": -100}, presence_penalty=0.5, top_p=0.9, **settings
    )
    assert banned.choices[0].finish_reason == "length"


def test_tools_and_past_calls_are_in_the_prompt(make_server: MakeServer) -> None:
    server = make_server()
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Rome"}'}}
    chat: Any = [
        {"role": "developer", "content": "Use tools."},
        {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "text", "text": "Rome?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "18 degrees"},
    ]
    tokens = http.post(f"{server.url}/tokenize", json={"messages": chat, "tools": TOOLS}).json()
    text = http.post(f"{server.url}/detokenize", json={"tokens": tokens["tokens"]}).json()["prompt"]
    for piece in ("weather", "And\nRome?", '{"place": "Rome"}', "18 degrees", "Use tools."):
        assert piece in text
    with client_of(server) as client:
        settings: Any = {"model": "tiny", "max_tokens": 4, "extra_body": EXTRA, "tools": TOOLS}
        found = client.chat.completions.create(messages=chat, tool_choice="none", **settings)
        assert found.usage is not None and found.usage.prompt_tokens == tokens["count"]
        # The agent's next turn hits what this one computed.
        chat += [
            {"role": "assistant", "content": found.choices[0].message.content},
            {"role": "user", "content": "?"},
        ]
        turn = client.chat.completions.create(messages=chat, **settings)
        assert turn.usage is not None and turn.usage.prompt_tokens_details is not None
        assert (turn.usage.prompt_tokens_details.cached_tokens or 0) >= tokens["count"] - 2
        # Agents' frameworks send these by default; with them an answer in words is an answer.
        for choice in ("auto", "none", None):
            free = client.chat.completions.create(messages=chat, tool_choice=choice, **settings)
            assert free.choices[0].message.content == turn.choices[0].message.content
            assert free.choices[0].message.tool_calls is None
        demands: list[Any] = ["required", {"type": "function", "function": {"name": "weather"}}, "novel", {}]
        for demand in demands:
            with pytest.raises(openai.BadRequestError, match="nothing here can make a model call") as caught:
                client.chat.completions.create(messages=chat, tool_choice=demand, **settings)
            assert caught.value.param == "tool_choice"


def test_leaving_a_stream_frees_everything(make_server: MakeServer) -> None:
    server = make_server()
    with client_of(server) as client:
        for kind in range(2):
            stream: Any = (
                client.chat.completions.create(model="tiny", messages=CHAT, stream=True, extra_body=EXTRA)
                if kind
                else client.completions.create(
                    model="tiny", prompt=[TEXT, TEXT], max_tokens=9_000, stream=True, n=2, extra_body=EXTRA
                )
            )
            for _, _ in zip(range(3), stream, strict=False):
                pass
            stream.close()
        wait_idle(server.worker)
        assert server.worker.stats().engine.aborted == 5
        check_idle(server.worker)
        assert client.completions.create(model="tiny", prompt=TEXT, max_tokens=2).choices


@pytest.mark.parametrize(
    ("settings", "param", "message"),
    [
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"temperature": -1.0}, "temperature", "at least 0"),
        ({"top_p": 0.0}, "top_p", "above 0"),
        ({"n": 1_000}, "n", "from 1 to 128"),
        ({"stop": ""}, "stop", "not empty"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "token ids"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "-100.0 to 100.0"),
        ({"logit_bias": {"9999": 1}}, "logit_bias", "vocabulary"),
        ({"extra_body": {"stop_token_ids": [9_999]}}, "stop_token_ids", "vocabulary"),
        ({"max_tokens": "5"}, "max_tokens", "valid integer"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "only with stream"),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "continuous_usage_stats",
            "not supported",
        ),
        ({"extra_body": {"ttl": "soon"}}, "ttl", "'5m'"),
        ({"extra_body": {"ttl": -1.0}}, "ttl", "above 0"),
        ({"extra_body": {"ttl": "0s"}}, "ttl", "above 0"),
        ({"extra_body": {"best_of": 3}}, "best_of", "not supported"),
        ({"extra_body": {"response_format": {"type": "json_object"}}}, "response_format", "not supported"),
        ({"prompt": ""}, None, "empty"),
        ({"prompt": []}, None, "empty"),
        ({"prompt": [5_000]}, None, "vocabulary"),
        ({"prompt": [-1]}, None, "negative"),
        ({"prompt": [[1, 2], []]}, None, "empty"),
        ({"prompt": 7}, "prompt", "valid string"),
        ({"prompt": [1.5]}, "prompt", "valid integer"),
        ({"prompt": "a" * 9_000, "max_tokens": 9_000}, None, "max_model_len"),
    ],
)  # fmt: skip
def test_bad_input_is_named(
    make_server: MakeServer, settings: dict[str, Any], param: str | None, message: str
) -> None:
    server = make_server(max_model_len=1_000)
    with client_of(server) as client:
        with pytest.raises(openai.BadRequestError, match=message) as caught:
            client.completions.create(**{"model": "tiny", "prompt": TEXT, "max_tokens": 2} | settings)
        assert caught.value.param == param and caught.value.type == "invalid_request_error"
        # What is fine is answered, at the same server.
        assert client.completions.create(model="tiny", prompt=TEXT, max_tokens=2).choices


def test_other_errors_have_openais_form(make_server: MakeServer) -> None:
    server = make_server(server={"api_keys": ("secret",), "most_body_bytes": 4_000})
    with client_of(server, api_key="secret") as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        assert client.models.retrieve("tiny").id == "tiny"
        with pytest.raises(openai.NotFoundError, match="not served here"):
            client.completions.create(model="other", prompt=TEXT)
        with pytest.raises(openai.APIStatusError, match="longer than 4000 bytes") as caught:
            client.completions.create(model="tiny", prompt="a" * 5_000)
        assert caught.value.status_code == 413
        parts = (b'{"prompt": "', *[b"a" * 1_000] * 9, b'"}')
        undeclared = http.post(
            f"{server.url}/v1/completions", content=iter(parts), headers={"x-api-key": "secret"}
        )
        assert undeclared.status_code == 413
    for key in ("wrong", "secret2", "secre", "sécret"):
        for path in ("/v1/models", "/tokenize", "/flush_cache", "/docs", "/openapi.json"):
            headers = {b"Authorization": f"Bearer {key}".encode()}
            refused = http.get(server.url + path, headers=headers)
            assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"
    for ask in (http.get, http.head):
        assert ask(f"{server.url}/health").status_code == 200
    assert http.get(f"{server.url}/version").status_code == 200
    missing = http.get(f"{server.url}/nothing", headers={"x-api-key": "secret", "x-request-id": "mine"})
    assert missing.status_code == 404 and missing.headers["x-request-id"] == "mine"
    assert missing.json()["error"]["type"] == "not_found_error"
    for kind, message in (
        ("application/json", "no JSON text"),
        ("text/plain", "send one, with Content-Type"),
    ):
        sent = {"x-api-key": "secret", "x-request-id": "a" * 129, "content-type": kind}
        broken = http.post(f"{server.url}/v1/completions", content=b"{", headers=sent)
        assert broken.status_code == 400 and message in broken.json()["error"]["message"]
        assert len(broken.headers["x-request-id"]) == 32


def test_unknown_fields_are_told(make_server: MakeServer, caplog: pytest.LogCaptureFixture) -> None:
    server = make_server()
    body = {
        "prompt": TEXT, "max_tokens": 2, "novel": 1, "sürprise": 2, "user": "me", "prompt_cache_key": "k",
        "stream_options": {"include_usage": True, "odd": 1}, "stream": True,
    }  # fmt: skip
    found = http.post(f"{server.url}/v1/completions", json=body)
    assert found.status_code == 200
    assert found.headers["x-ignored-fields"] == r"novel, s\xfcrprise, stream_options.odd"
    assert "unknown fields are ignored: novel" in caplog.text
    assert found.text.endswith("data: [DONE]\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in found.text.split("\n\n")[:-2]]
    assert events[-1]["choices"] == [] and all(event["usage"] is None for event in events[:-1])


def test_a_full_queue_says_when_to_come_again(make_server: MakeServer) -> None:
    server = make_server(max_num_seqs=1, max_queue=1)
    with client_of(server) as client:
        settings: Any = {"model": "tiny", "max_tokens": 2_000, "stream": True, "extra_body": EXTRA}
        streams: list[Any] = [client.completions.create(prompt=TEXT, **settings)]
        waiting = server.worker.submit([1, 2, 3])
        with pytest.raises(openai.RateLimitError, match="try again later") as caught:
            client.completions.create(prompt=TEXT, **settings)
        assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
        with pytest.raises(openai.RateLimitError):
            client.completions.create(model="tiny", prompt=[TEXT, TEXT])
        waiting.abort()
        waiting.wait(60)
        streams[0].close()
        wait_idle(server.worker)
        # One that comes again, as the client does by itself, is served.
        assert client.completions.create(model="tiny", prompt=[TEXT, TEXT], max_tokens=1).choices


def test_continuing_the_last_message(make_server: MakeServer) -> None:
    server = make_server()
    chat = [*CHAT, {"role": "assistant", "content": "It can"}]
    body = {"messages": chat, "continue_final_message": True}
    tokens = http.post(f"{server.url}/tokenize", json=body).json()["tokens"]
    plain = http.post(f"{server.url}/tokenize", json={"messages": chat}).json()["tokens"]
    assert tokens == plain[: len(tokens)] and len(tokens) == len(plain) - 2
    for name in ("chat_template", "tokenize", "tools", "continue_final", "messages", "self"):
        settings = {"messages": CHAT, "chat_template_kwargs": {name: "x"}}
        for path in ("/tokenize", "/cache/explain", "/v1/chat/completions"):
            assert http.post(server.url + path, json=settings).status_code == 400, (name, path)


def test_an_engines_mistake_is_not_the_clients(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()

    def mistaken(*_: object) -> int:
        raise ValueError("temperature=1: not the client's doing")

    monkeypatch.setattr("hybridcache.sampler.Sampler.next_token", mistaken)
    with client_of(server) as client:
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError, match="not the client's doing"):
                client.completions.create(model="tiny", prompt=TEXT, temperature=1.0, stream=stream)
