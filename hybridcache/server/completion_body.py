"""The body of /v1/completions."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from hybridcache.sampling_params import SamplingParams
from hybridcache.server.body import Items
from hybridcache.server.errors import ApiError
from hybridcache.server.generation_body import GenerationBody
from hybridcache.text_codec import TextCodec
from hybridcache.worker import Worker

DEFAULT_MAX_TOKENS = 16
"""OpenAI's."""
MOST_PROMPTS = 1_024


class CompletionBody(GenerationBody):
    """OpenAI's fields, and those of GenerationBody."""

    prompt: str | Items[int] | Items[str] | Items[Items[int]]
    max_tokens: int | None = None
    logprobs: int | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = Field(
        None, description="false: none are put before or behind a text, which has its own, as from a template"
    )

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {**GenerationBody.unsupported, "suffix": ("",)}

    @property
    def judges_only(self) -> bool:
        """Whether no answer is wanted, only the prompt back."""
        return bool(self.echo) and self.max_tokens == 0

    def checked(self) -> list[str]:
        if self.judges_only and self.stream:
            raise ApiError(400, "max_tokens=0 with echo: not in a stream", param="max_tokens")
        return super().checked()

    def prompts(self) -> list[str | list[int]]:
        """One or several. Raises ApiError for none, and for too many."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        # An empty list is one prompt without tokens, which is refused as such.
        if not self.prompt or isinstance(self.prompt[0], int):
            return [[token for token in self.prompt if isinstance(token, int)]]
        if len(self.prompt) > MOST_PROMPTS:
            raise ApiError(400, f"{len(self.prompt)} prompts: give at most {MOST_PROMPTS}", param="prompt")
        return [prompt for prompt in self.prompt if not isinstance(prompt, int)]

    def tokens(self, codec: TextCodec) -> list[str | list[int]]:
        """`prompts`; texts that get no special tokens are encoded here.

        Raises ApiError, ValueError.
        """
        if self.add_special_tokens is not False:
            return self.prompts()
        return [
            codec.encode(prompt, add_special_tokens=False) if isinstance(prompt, str) else prompt
            for prompt in self.prompts()
        ]

    def sampling(self, worker: Worker) -> SamplingParams:
        """How to sample. Raises ValueError."""
        most = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        if self.judges_only:
            most = 1  # which is not told
        return self.params(
            worker,
            max_tokens=most,
            logprobs=self.logprobs,
            prompt_logprobs=self.logprobs if self.echo else None,
        )
