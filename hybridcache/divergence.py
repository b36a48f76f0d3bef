"""A prompt beside one that was sent before: where they part, and what of the one stands in the other."""

from collections.abc import Callable, Sequence
from functools import cached_property

from hybridcache.copied import Copied, copied_parts, in_order
from hybridcache.prompt_log import PromptRecord, common_tokens

Decode = Callable[[Sequence[int]], str]


class Divergence:
    """Positions are tokens from the start of each prompt. ``text`` is empty without a tokenizer."""

    def __init__(self, prompt: PromptRecord, reference: PromptRecord, decode: Decode | None) -> None:
        self.tokens: list[int] = prompt.tokens.tolist()
        self.others: list[int] = reference.tokens.tolist()
        self.ends, self.other_ends = prompt.ends, reference.ends
        self._decode = decode
        self.position = common_tokens(prompt.tokens, reference.tokens)
        """Tokens that both begin with."""

    @property
    def continues(self) -> bool:
        """Whether one of the two goes on where the other ends."""
        return self.position >= min(len(self.tokens), len(self.others))

    @cached_property
    def parts(self) -> list[Copied]:
        """What of the prompt beyond the position stands in the reference beyond it."""
        return copied_parts(self.tokens, self.others, self.position)

    @cached_property
    def chain(self) -> list[Copied]:
        """Those of the parts that stand in the same order in both."""
        return in_order(self.parts)

    @property
    def num_copied(self) -> int:
        """Tokens of the prompt beyond the position that the reference has too."""
        return sum(part.length for part in self.parts)

    @property
    def message(self) -> int:
        """The prompt's message in which they part."""
        return sum(end <= self.position for end in self.ends)

    @property
    def in_last_message(self) -> bool:
        """Whether they part in the last of several messages."""
        return 1 < len(self.ends) == self.message + 1

    @property
    def next_message_is_equal(self) -> bool:
        """Whether the message after the one in which they part is the same in both."""
        after = self.message + 1
        return after < min(len(self.ends), len(self.other_ends)) and self.message_tokens(
            after
        ) == self.other_message_tokens(after)

    def text(self, start: int, stop: int) -> str:
        """Text of tokens [start, stop) of the prompt."""
        return self._decode(self.tokens[start:stop]) if self._decode else ""

    def other_text(self, start: int, stop: int) -> str:
        """The same of the reference."""
        return self._decode(self.others[start:stop]) if self._decode else ""

    def shown(self, start: int, stop: int, *, other: bool = False) -> str:
        """Text of tokens [start, stop), or without a tokenizer their ids."""
        tokens = (self.others if other else self.tokens)[start:stop]
        return self._decode(tokens) if self._decode else " ".join(map(str, tokens))

    def message_tokens(self, index: int) -> list[int]:
        """Tokens of a message of the prompt."""
        return self.tokens[self.ends[index - 1] if index else 0 : self.ends[index]]

    def other_message_tokens(self, index: int) -> list[int]:
        """Tokens of a message of the reference."""
        return self.others[self.other_ends[index - 1] if index else 0 : self.other_ends[index]]
