"""Chats as the presets' tokenizer has them, and what `explain` finds in them."""

from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from hybridcache.cause import Cause, find_cause
from hybridcache.divergence import Divergence
from hybridcache.models.chat_tokens import TOKENIZER_FOLDER
from hybridcache.namespace import Namespace
from hybridcache.prompt_log import PromptLog, PromptRecord
from hybridcache.tokens import as_token_ids
from tests.prompt_texts import Prompt


@cache
def tokenizer() -> Tokenizer:
    """The presets' own."""
    return Tokenizer.from_file(str(Path(TOKENIZER_FOLDER) / "tokenizer.json"))


def decode(tokens: object) -> str:
    """Text without special tokens."""
    text: str = tokenizer().decode(tokens, skip_special_tokens=True)  # type: ignore[arg-type]
    return text


def special(name: str) -> int:
    """A special token's id."""
    token = tokenizer().token_to_id(f"<|{name}|>")
    assert token is not None
    return int(token)


def chat(prompt: Prompt, salt: str = "") -> PromptRecord:
    """A chat as it is sent, of which the cache found nothing."""
    tokens: list[int] = []
    ends = []
    for said in prompt:
        text = tokenizer().encode(said.text, add_special_tokens=False).ids
        tokens += [special(said.role), *text, special("end")]
        ends.append(len(tokens))
    tokens.append(special("assistant"))
    lost = {"new": len(tokens)}
    return PromptRecord(Namespace(salt=salt), as_token_ids(tokens), ends, 0, 0, lost)


def cause_of(record: PromptRecord, log: PromptLog) -> Cause | None:
    """As the Explainer finds it."""
    for reference in log.nearest(record.tokens, record.namespace):
        found = Divergence(record, reference, decode)
        if found.continues:
            return None
        cause = find_cause(found)
        if cause is not None:
            return cause
    return None
