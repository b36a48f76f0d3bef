"""How a request's tokens are chosen, and when it ends."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from sys import float_info
from typing import Self

MOST_LOGPROBS = 20
MOST_SAMPLES = 128
MOST_STOPS = 128
MOST_STOP_CHARACTERS = 4_096


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Raises ValueError, naming the field and what is allowed, for a bad value."""

    max_tokens: int | None = None
    """Tokens to generate at most; None: as many as the model's length and the budget allow."""
    temperature: float = 1.0
    """0: the likeliest token (of equals the lowest id)."""
    top_k: int = 0
    """Only the k likeliest tokens; 0: all."""
    top_p: float = 1.0
    """Only the likeliest tokens that together reach this probability."""
    min_p: float = 0.0
    """Only tokens at least this likely, in units of the likeliest one's probability."""
    repetition_penalty: float = 1.0
    """Divides (or multiplies, when negative) the logits of tokens seen in prompt or answer."""
    presence_penalty: float = 0.0
    """Taken from the logits of tokens seen in the answer."""
    frequency_penalty: float = 0.0
    """Taken from them once for each time."""
    seed: int | None = None
    """Same seed, same tokens, whatever else is in the batch; None: another one each time."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer and are left out of it."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the answer, as the model's end tokens do; left out of it."""
    shown_token_ids: tuple[int, ...] = ()
    """Special tokens that the answer's text has all the same, such as marks around calls of tools."""
    ignore_eos: bool = False
    """Go on past the model's end tokens."""
    min_tokens: int = 0
    """End tokens cannot be chosen, and stop texts do not count, before so many tokens."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these tokens."""
    n: int = 1
    """Answers to generate for the prompt."""
    logprobs: int | None = None
    """Report the log probability of each generated token, and of so many likeliest ones."""
    prompt_logprobs: int | None = None
    """The same of each prompt token; the whole prompt is computed then, without the cache."""

    def __post_init__(self) -> None:
        for name, kind in (
            ("stop", tuple),
            ("stop_token_ids", tuple),
            ("shown_token_ids", tuple),
            ("logit_bias", dict),
        ):
            value = getattr(self, name)
            try:
                own = (value,) if name == "stop" and isinstance(value, str) else kind(value)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{name}={value!r}: give a {kind.__name__}") from error
            object.__setattr__(self, name, own)
        most = float("inf")
        if self.max_tokens is not None:
            self._whole("max_tokens", self.max_tokens, 1)
        self._number("temperature", self.temperature, 0.0, most)
        self._whole("top_k", self.top_k, 0)
        self._number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise ValueError("top_p=0.0: give a probability above 0; temperature=0 picks the likeliest token")
        self._number("min_p", self.min_p, 0.0, 1.0)
        self._number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        self._number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        self._number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.seed is not None:
            self._whole("seed", self.seed, 0)
        self._whole("min_tokens", self.min_tokens, 0)
        if not isinstance(self.ignore_eos, bool):
            raise ValueError(f"ignore_eos={self.ignore_eos!r}: give True or False")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens={self.min_tokens} is above max_tokens={self.max_tokens}")
        self._whole("n", self.n, 1, MOST_SAMPLES)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                self._whole(name, getattr(self, name), 0, MOST_LOGPROBS)
        if len(self.stop) > MOST_STOPS:
            # Each is looked for at each token, while all other requests wait.
            raise ValueError(f"stop has {len(self.stop)} texts: give at most {MOST_STOPS}")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise ValueError(f"stop={self.stop!r}: give texts that are not empty")
            if len(text) > MOST_STOP_CHARACTERS:
                raise ValueError(
                    f"stop has a text of {len(text)} characters: give at most {MOST_STOP_CHARACTERS}"
                )
        for name in ("stop_token_ids", "shown_token_ids"):
            for token in getattr(self, name):
                self._whole(name, token, 0)
        for token, bias in self.logit_bias.items():
            self._whole("logit_bias token", token, 0)
            self._number(f"logit_bias[{token}]", bias, -100.0, 100.0)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature == 0.0

    @property
    def plain(self) -> bool:
        """Whether the choice is the argmax of the logits as they are, and nothing else is asked for."""
        return (
            self.greedy
            and self.repetition_penalty == 1.0
            and not self.presence_penalty
            and not self.frequency_penalty
            and not self.logit_bias
            and not self.min_tokens
            and self.logprobs is None
            and self.prompt_logprobs is None
        )

    def without_prompt_logprobs(self) -> Self:
        """The same for the other answers to a prompt, which is judged once."""
        return self if self.prompt_logprobs is None else replace(self, prompt_logprobs=None)

    @staticmethod
    def _whole(name: str, value: object, least: int, most: int | None = None) -> None:
        bound = f"at least {least}" if most is None else f"from {least} to {most}"
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}={value!r}: give a whole number, {bound}")
        if most is not None and value > most:
            raise ValueError(f"{name}={value!r}: give a whole number, {bound}")

    @staticmethod
    def _number(name: str, value: object, least: float, most: float) -> None:
        bound = f"at least {least}" if most == float("inf") else f"from {least} to {most}"
        number = isinstance(value, int | float) and not isinstance(value, bool)
        # No float can be made of a whole number beyond the largest one.
        if not number or not least <= value <= min(most, float_info.max):  # type: ignore[operator]
            raise ValueError(f"{name}={value!r}: give a number, {bound}")
