"""The presets' tokenizer: made by a script of the project, the same each time, with a template that grows."""

from typing import Any

import pytest

from hybridcache.experiments.tokenizer_text import training_text
from hybridcache.experiments.train_tokenizer import main, train_tokenizer
from hybridcache.models.chat_tokens import SPECIAL_TOKENS, TOKENIZER_FOLDER, VOCAB_SIZE

pytest.importorskip("transformers")

TEXTS = (
    "Could you please book me a flight to the airport? It costs $1,250.",
    "def total(values):\n    return sum(values) / len(values)  # the mean\n",
    "Größe, 漢字, emoji 🙂,\ttabs and  double  spaces\r\n",
)
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "What is 1 + 2?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}],
    },
    {"role": "tool", "content": "3"},
    {"role": "assistant", "content": "It is 3."},
    {"role": "user", "content": [{"type": "text", "text": "Thank "}, {"type": "text", "text": "you."}]},
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TOKENIZER_FOLDER)


def test_text_is_the_same_for_the_same_seed() -> None:
    assert list(training_text(3, num_pieces=40)) == list(training_text(3, num_pieces=40))
    assert list(training_text(3, num_pieces=40)) != list(training_text(4, num_pieces=40))


@pytest.mark.full
def test_training_gives_the_same_file_each_time(tmp_path: Any) -> None:
    assert main(tmp_path) == 0
    trained = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    assert trained == train_tokenizer()
    # Other versions of `tokenizers` may order ties differently: the size is what all have in common.
    assert len(trained) < 300 * 1024


def test_size_and_special_tokens(tokenizer: Any) -> None:
    assert (TOKENIZER_FOLDER / "tokenizer.json").stat().st_size < 300 * 1024
    assert len(tokenizer) == VOCAB_SIZE
    assert [tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS] == list(
        range(len(SPECIAL_TOKENS))
    )
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(tokenizer: Any, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert max(ids) < VOCAB_SIZE
    assert min(ids) >= len(SPECIAL_TOKENS)


def test_english_is_not_cut_into_bytes(tokenizer: Any) -> None:
    assert len(tokenizer.encode(TEXTS[0])) < 0.4 * len(TEXTS[0])


def test_a_turn_is_a_prefix_of_the_next(tokenizer: Any) -> None:
    def ids(messages: list[dict[str, Any]], *, prompt: bool) -> list[int]:
        rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=prompt, return_dict=False)
        return list(rendered)

    for turn in range(1, len(CHAT)):
        shorter, longer = ids(CHAT[:turn], prompt=False), ids(CHAT[: turn + 1], prompt=False)
        assert longer[: len(shorter)] == shorter
        assert longer[-1] == tokenizer.eos_token_id
    prompt = ids(CHAT[:4], prompt=True)
    assert ids(CHAT[:5], prompt=False)[: len(prompt)] == prompt


def test_template_renders_parts_tools_and_calls(tokenizer: Any) -> None:
    text = tokenizer.apply_chat_template(
        CHAT, tools=[{"name": "add"}], tokenize=False, add_generation_prompt=True
    )
    assert text == (
        '<|begin|><|system|>functions\n[{"name": "add"}]<|end|><|system|>Be short.<|end|>'
        "<|user|>What is 1 + 2?<|end|><|assistant|>\n<tool_call>\n"
        '{"name": "add", "arguments": {"a": 1}}\n</tool_call><|end|>'
        "<|tool|>3<|end|><|assistant|>It is 3.<|end|><|user|>Thank you.<|end|><|assistant|>"
    )


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"role": "robot", "content": "x"}, "role robot is unknown"),
        ({"role": "user", "content": [{"type": "image"}]}, "part of type image"),
    ],
)
def test_template_refuses_what_it_cannot_say(tokenizer: Any, message: dict[str, Any], error: str) -> None:
    from jinja2 import TemplateError

    with pytest.raises(TemplateError, match=error):
        tokenizer.apply_chat_template([message], tokenize=False)
