"""The tokenizer that the presets share: its size, its special tokens and where its files lie.

Byte-level BPE, made by experiments/train_tokenizer.py. The template in chat_template.jinja writes a message
as its role's token, its content and END_TOKEN, so that a conversation is a prefix of its own next turn,
which is what a prefix cache lives on.
"""

from pathlib import Path
from typing import Final

TOKENIZER_FOLDER: Final = Path(__file__).parent / "tokenizer"
"""tokenizer.json, tokenizer_config.json and chat_template.jinja, as transformers reads them."""

VOCAB_SIZE: Final = 4096
"""Tokens, the special ones included."""

PAD_TOKEN: Final = "<|pad|>"
BEGIN_TOKEN: Final = "<|begin|>"
END_TOKEN: Final = "<|end|>"
"""Ends every message; generation stops at it."""

SPECIAL_TOKENS: Final = (
    PAD_TOKEN,
    BEGIN_TOKEN,
    END_TOKEN,
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
)
"""In the order of their ids, from 0."""
