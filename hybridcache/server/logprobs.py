"""Log probabilities in OpenAI's two forms."""

from collections.abc import Sequence
from typing import Any

from hybridcache.request import Choice
from hybridcache.text_codec import TextCodec

LEAST = -9999.0
"""Stands for minus infinity, which JSON has not."""


def completion_logprobs(
    token_ids: Sequence[int], choices: Sequence[Choice | None], codec: TextCodec, offset: int
) -> dict[str, Any]:
    """The form of /v1/completions; a choice a token, None for a prompt's first.

    ``offset`` is the first token's first character in the answer.
    """
    texts = codec.texts(token_ids)
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [None if choice is None else _finite(choice.logprob) for choice in choices],
        "top_logprobs": [None if choice is None else _tops(choice, codec) for choice in choices],
        "text_offset": offsets,
    }


def chat_logprobs(choices: Sequence[Choice], codec: TextCodec) -> dict[str, Any]:
    """The form of /v1/chat/completions."""
    content = []
    for choice in choices:
        own, *others = codec.texts([choice.token, *(token for token, _ in choice.top)])
        top = [_entry(text, logprob) for text, (_, logprob) in zip(others, choice.top, strict=True)]
        content.append({**_entry(own, choice.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


def _tops(choice: Choice, codec: TextCodec) -> dict[str, float]:
    texts = codec.texts([choice.token, *(token for token, _ in choice.top)])
    values = [choice.logprob, *(logprob for _, logprob in choice.top)]
    # Two tokens may have one text: the likelier one is told.
    found: dict[str, float] = {}
    for text, value in zip(texts, values, strict=True):
        found[text] = max(_finite(value), found.get(text, LEAST))
    return found


def _entry(text: str, logprob: float) -> dict[str, Any]:
    whole = "\N{REPLACEMENT CHARACTER}" not in text
    return {"token": text, "logprob": _finite(logprob), "bytes": list(text.encode()) if whole else None}


def _finite(logprob: float) -> float:
    return max(logprob, LEAST)
