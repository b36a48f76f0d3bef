"""What no client means, and some send: answered at once, by its name, and the server goes on."""

from typing import Any

import pytest
from pydantic import ValidationError

from hybridcache.server.body import Body
from hybridcache.server.chat_body import MOST_BREAKPOINTS, ChatBody
from hybridcache.server.completion_body import CompletionBody
from hybridcache.server.messages_body import MessagesBody
from hybridcache.server.tokenizing import DetokenizeBody
from tests.server_setup import MakeServer, http, make_server
from tests.worker_setup import check_idle, make_worker

__all__ = ["make_server", "make_worker"]

HUGE = "9" * 400
LONE = r"\ud800"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Why?"}], "max_tokens": 1}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages"])
def test_what_is_no_unicode_is_refused_and_harms_nobody(make_server: MakeServer, path: str) -> None:
    server = make_server()
    prompt = (
        '"prompt": "Why?"'
        if path == "/v1/completions"
        else '"messages": [{"role": "user", "content": "Why?"}]'
    )

    def send(field: str, asked: str = prompt) -> Any:
        body = f'{{{asked}, "max_tokens": 1{field}}}'
        return http.post(server.url + path, content=body, headers={"content-type": "application/json"})

    assert send("").status_code == 200
    for field in ('"cache_salt": "{}"', '"ttl": "{}"', '"model": "{}"', '"{}": 1', '"temperature": "{}"'):
        answer = send(f", {field}".replace("{}", LONE))
        assert answer.status_code in (400, 404), answer.text
        assert answer.json()["error"]["message"].isascii()
    assert send("", prompt.replace("Why?", LONE)).status_code == 400
    if path != "/v1/messages":
        assert send(f', "logit_bias": {{"{LONE}": "x"}}').status_code == 400
        # No answer has it, so it would end none.
        assert send(f', "stop": "{LONE}"').status_code == 400
    assert send("").status_code == 200 and server.worker.health
    check_idle(server.worker)
    with pytest.raises(ValueError, match=r"cache_salt=.* is no Unicode"):
        server.worker.generate("Why?", cache_salt="\ud800")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (f'"max_tokens": {HUGE}', 400),
        (f'"max_tokens": 1{HUGE * 20}', 400),
        (f'"seed": {HUGE}, "temperature": 1', 200),
        (f'"priority": -{HUGE}', 200),
        (f'"top_k": {HUGE}, "temperature": 1', 200),
        (f'"ttl": {HUGE}', 400),
        ('"ttl": 1e308', 200),
        ('"ttl": "999999999h"', 200),
        (f'"n": {HUGE}', 400),
        (f'"stop_token_ids": [{HUGE}]', 400),
        ('"temperature": 1e308', 200),
        ('"temperature": 1e-323', 200),
        ('"temperature": NaN', 400),
        ('"temperature": 1e999', 400),
        ('"repetition_penalty": 1e-323, "temperature": 1', 400),
        ('"repetition_penalty": 0.01, "temperature": 1', 200),
        ('"top_p": 1e-323, "temperature": 1', 200),
        ('"min_p": 1, "temperature": 1e-5', 200),
        (f'"user": {"[" * 900}{"]" * 900}', 200),
        (f'"user": {"[" * 100_000}', 400),
        ('"cache_salt": "a\\u0000b"', 200),
    ],
    ids=lambda found: str(found)[:40],
)
def test_numbers_and_texts_of_any_size(make_server: MakeServer, fields: str, status: int) -> None:
    server = make_server(max_model_len=1_000)
    body = f'{{"prompt": "a", "max_tokens": 1, {fields}}}'.encode()
    answer = http.post(
        f"{server.url}/v1/completions", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == status, answer.text
    assert server.worker.health
    check_idle(server.worker)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CompletionBody, {"prompt": [1.5] * 100_000}),
        (CompletionBody, {"prompt": [[1.5]] * 100_000}),
        (CompletionBody, {"prompt": "a", "stop": [1] * 100_000}),
        (CompletionBody, {"prompt": "a", "stop_token_ids": ["a"] * 100_000}),
        (CompletionBody, {"prompt": "a", "logit_bias": {f"a{i}": "x" for i in range(100_000)}}),
        (ChatBody, {"messages": [{}] * 100_000}),
        (ChatBody, CHAT | {"tools": [{}] * 100_000}),
        (ChatBody, {"messages": [{"role": "user", "content": [1] * 100_000}]}),
        (ChatBody, {"messages": [{"role": "assistant", "tool_calls": [1] * 100_000}]}),
        (MessagesBody, CHAT | {"messages": [{}] * 100_000}),
        (MessagesBody, CHAT | {"messages": [{"role": "user", "content": [1] * 100_000}]}),
        (MessagesBody, CHAT | {"system": [1] * 100_000}),
        (MessagesBody, CHAT | {"stop_sequences": [1] * 100_000}),
        (DetokenizeBody, {"tokens": ["a"] * 100_000}),
    ],
)
def test_one_of_many_mistakes_is_told(kind: type[Body], body: dict[str, Any]) -> None:
    """Each costs time in which nobody is served: 300,000 of them took half a minute."""
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(body)
    assert caught.value.error_count() < 8


def test_breakpoints_are_bounded(make_server: MakeServer) -> None:
    server = make_server()
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    for path in ("/v1/chat/completions", "/v1/messages"):
        for count, status in ((MOST_BREAKPOINTS, 200), (MOST_BREAKPOINTS + 1, 400)):
            body = CHAT | {"messages": [{"role": "user", "content": [part] * count}]}
            answer = http.post(server.url + path, json=body)
            assert answer.status_code == status, answer.text
    assert "17 cache breakpoints: give at most 16" in answer.json()["error"]["message"]


def test_what_is_wrong_has_the_clients_name(make_server: MakeServer) -> None:
    server = make_server()
    for fields, name in (
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tools": [{"type": "retrieval"}]}, "tools"),
    ):
        answer = http.post(f"{server.url}/v1/chat/completions", json=CHAT | fields)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == name, answer.text
        assert answer.json()["error"]["message"].startswith(name)
    assert http.post(f"{server.url}/v1/chat/completions", json=CHAT | {"top_logprobs": 0}).status_code == 200
    answer = http.post(f"{server.url}/v1/messages", json=CHAT | {"stop_sequences": [""]})
    assert answer.status_code == 400 and answer.json()["error"]["message"].startswith("stop_sequences=")
    for field in ("add_generation_prompt", "add_special_tokens"):
        value = field == "add_special_tokens"
        body = {"messages": CHAT["messages"], field: value}
        answer = http.post(f"{server.url}/tokenize", json=body)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == field
        assert http.post(f"{server.url}/tokenize", json=body | {field: not value}).status_code == 200
