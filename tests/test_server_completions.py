"""What /v1/completions has that chats have not, through the `openai` package."""

import copy
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import openai
import pytest
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from hybridcache.models.presets import preset_folder
from hybridcache.sampler import Sampler
from hybridcache.server.logprobs import TextOffsets
from hybridcache.text_codec import TextCodec
from hybridcache.text_stream import TextStream
from tests.server_setup import MakeServer, make_server
from tests.test_server_openai import EXTRA, TEXT, Client, client_of
from tests.test_text_stream import byte_fallback
from tests.worker_setup import MakeWorker, make_worker

__all__ = ["make_server", "make_worker"]


@pytest.fixture
def client(make_server: MakeServer) -> Iterator[Client]:
    with client_of(make_server()) as made:
        yield made


def test_a_text_that_has_its_special_tokens_gets_no_others(make_server: MakeServer) -> None:
    """As one that the client put through the chat template: a second begin token would be another prompt."""
    server = make_server()
    codec = server.worker.codec
    codec._tokenizer = copy.deepcopy(codec._tokenizer)
    backend: Any = codec._tokenizer.backend_tokenizer
    backend.post_processor = TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 1)])
    with client_of(server) as client:

        def ask(prompt: Any, **more: Any) -> tuple[str, int]:
            settings: Any = {"model": "tiny", "max_tokens": 4, "extra_body": EXTRA | more}
            found = client.completions.create(prompt=prompt, **settings)
            return found.choices[0].text, found.usage.prompt_tokens

        plain = ask(TEXT)
        assert ask(f"<|begin|>{TEXT}", add_special_tokens=False) == plain
        assert ask(f"<|begin|>{TEXT}", add_special_tokens=None)[1] == plain[1] + 1
        assert ask([[5, 6]], add_special_tokens=False)[1] == 2


def test_echo_judges_the_prompt(client: Client) -> None:
    settings: Any = {"model": "tiny", "prompt": TEXT, "max_tokens": 3, "extra_body": EXTRA}
    plain = client.completions.create(**settings).choices[0]
    found = client.completions.create(echo=True, logprobs=1, **settings)
    assert found.choices[0].text == TEXT + plain.text
    logprobs = found.choices[0].logprobs
    assert logprobs is not None and logprobs.token_logprobs is not None and found.usage is not None
    assert len(logprobs.token_logprobs) == found.usage.prompt_tokens + 3
    assert logprobs.token_logprobs[0] is None and all(
        value is not None for value in logprobs.token_logprobs[1:]
    )
    parts = list(client.completions.create(echo=True, stream=True, **settings))
    assert "".join(part.choices[0].text for part in parts) == TEXT + plain.text


def test_echo_judges_the_prompt_alone(client: Client) -> None:
    settings: Any = {"model": "tiny", "prompt": TEXT, "echo": True, "logprobs": 1, "extra_body": EXTRA}
    more = client.completions.create(max_tokens=1, **settings).choices[0]
    found = client.completions.create(max_tokens=0, **settings)
    (choice,) = found.choices
    assert choice.text == TEXT and choice.finish_reason == "length"
    assert choice.logprobs.token_logprobs == more.logprobs.token_logprobs[:-1]
    assert choice.logprobs.tokens == more.logprobs.tokens[:-1]
    assert found.usage.completion_tokens == 0 and found.usage.prompt_tokens == len(choice.logprobs.tokens)
    for refused in ({"echo": False}, {"stream": True, "logprobs": None}):
        with pytest.raises(openai.BadRequestError, match="max_tokens=0"):
            client.completions.create(max_tokens=0, **settings | refused)


def test_offsets_are_those_of_the_text(client: Client) -> None:
    """Of characters made of several tokens, and where the first letters of a stop text are held back."""
    prompt, stops = "Où est l'éléphant 😀? 日本語", ["the", "ment", "s ", "e"]
    settings: Any = {"model": "tiny", "max_tokens": 24, "logprobs": 0, "extra_body": EXTRA}
    judged = client.completions.create(prompt=prompt, echo=True, **settings).choices[0]
    assert judged.logprobs is not None
    tokens, offsets = judged.logprobs.tokens or [], judged.logprobs.text_offset or []
    whole = [index for index, token in enumerate(tokens) if "\N{REPLACEMENT CHARACTER}" not in token]
    assert 10 < len(whole) < len(tokens)
    assert all(judged.text.startswith(tokens[index], offsets[index]) for index in whole)
    assert offsets == sorted(offsets)
    held = 0
    for stop in stops:
        plain = client.completions.create(prompt=prompt, stop=[stop, "\x00"], **settings).choices[0]
        assert plain.logprobs is not None
        told: list[int] = []
        characters = 0
        for part in client.completions.create(prompt=prompt, stop=[stop, "\x00"], stream=True, **settings):
            (choice,) = part.choices
            if choice.logprobs is not None and choice.logprobs.text_offset:
                held += choice.logprobs.text_offset[0] != characters
                told += choice.logprobs.text_offset
            characters += len(choice.text)
        assert told == plain.logprobs.text_offset
    assert held, "no part's text began elsewhere than its tokens"


def test_the_space_between_prompt_and_answer_is_the_answers(
    make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a tokenizer that leaves it out before the first of the tokens that it is given."""
    for file in preset_folder("tiny").iterdir():
        if not file.name.startswith("tokenizer"):
            (tmp_path / file.name).symlink_to(file)
    tokenizer = byte_fallback()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    answer = [tokenizer.token_to_id(word) for word in ("▁a", "b", "▁a", ".")]
    monkeypatch.setattr(Sampler, "next_token", lambda self, request, logits: answer[len(request.output)])
    with client_of(make_server(model=tmp_path)) as client:
        settings: Any = {"model": "tiny", "max_tokens": 4, "temperature": 1.0, "logprobs": 0}
        for prompt in ("ab a", [tokenizer.token_to_id("▁a")]):
            plain = client.completions.create(prompt=prompt, **settings).choices[0]
            stream = client.completions.create(prompt=prompt, stream=True, **settings)
            parts = [part.choices[0] for part in stream]
            assert plain.text == "".join(part.text for part in parts) == " ab a."
            assert plain.logprobs is not None and plain.logprobs.text_offset == [0, 2, 3, 5]
            assert plain.logprobs.tokens == [" a", "b", " a", "."]
            told = [part.logprobs.text_offset or [] for part in parts if part.logprobs is not None]
            assert [*chain(*told)] == plain.logprobs.text_offset
        echoed = client.completions.create(prompt="ab a", echo=True, **settings).choices[0]
        assert echoed.text == "ab a ab a." and echoed.logprobs is not None
        assert (echoed.logprobs.text_offset or [])[-4:] == [4, 6, 7, 9]
        chat: Any = [{"role": "user", "content": "ab"}]
        asked: Any = {"model": "tiny", "max_completion_tokens": 4, "temperature": 1.0}
        begun = client.chat.completions.create(messages=chat, **asked)
        assert begun.choices[0].message.content == "ab a."
        chat.append({"role": "assistant", "content": "a"})
        goes_on = {"continue_final_message": True}
        gone_on = client.chat.completions.create(messages=chat, extra_body=goes_on, **asked)
        assert gone_on.choices[0].message.content == " ab a."


@pytest.mark.parametrize("cuts", [[], [1], [2, 3, 4], list(range(1, 40))])
def test_offsets_of_bytes_that_are_tokens(cuts: list[int]) -> None:
    tokenizer = byte_fallback()
    codec = TextCodec(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    text = "a 😀😀 é日本語語 b\n\n👩‍👩‍👧 ab"
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    places, found, stream, right = TextOffsets(codec), [], TextStream(tokenizer.decode), []
    for token in tokens:
        right.append(len(stream.text()))
        stream.read(token)
    assert stream.text() == text and len(set(right)) < len(tokens)
    # A part has whole characters: the tokens that have been given.
    wholes = [index for index, place in enumerate(right) if index in cuts and place != right[index - 1]]
    for start, stop in pairwise([0, *wholes, len(tokens)]):
        found += places.place(tokens[start:stop])
    assert found == right


@pytest.mark.parametrize("cuts", [[], [1], [2, 3, 4], list(range(1, 40))])
def test_offsets_of_tokens_tokens_that_come_in_parts(make_worker: MakeWorker, cuts: list[int]) -> None:
    codec = make_worker().codec
    text = "a 😀😀 é日本 b\n\nword 👩‍👩‍👧 z"
    tokens = codec.encode(text)
    places, found = TextOffsets(codec), []
    for start, stop in pairwise(sorted({0, *(cut for cut in cuts if cut < len(tokens)), len(tokens)})):
        found += places.place(tokens[start:stop])
    right = [len(codec.text(tokens[:n]).rstrip("\N{REPLACEMENT CHARACTER}")) for n in range(len(tokens))]
    assert found == right
