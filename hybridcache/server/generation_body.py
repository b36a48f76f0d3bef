"""Fields that completions and chats share: how tokens are chosen, and what the cache is told."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field
from starlette.datastructures import Headers

from hybridcache.sampling_params import SamplingParams
from hybridcache.server.body import Body, Items
from hybridcache.server.errors import ApiError
from hybridcache.worker import Worker

SALT_HEADER = "x-cache-salt"
"""Set by a proxy that knows the tenant, it counts instead of the body's `cache_salt`."""
SECONDS = {"s": 1, "m": 60, "h": 3600}
SAME_NAME = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "seed", "stop_token_ids", "ignore_eos", "min_tokens", "n",
)  # fmt: skip
"""Fields that SamplingParams has under the same name."""
DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Those that a checkpoint may have defaults for."""


MOST_BIASES = 4_096


def _few(biases: object) -> object:
    """Before they are looked at: each wrong one costs time."""
    if isinstance(biases, dict) and len(biases) > MOST_BIASES:
        raise ValueError(f"{len(biases)} tokens: give at most {MOST_BIASES}")
    return biases


class StreamOptions(Body):
    """`stream_options`."""

    include_usage: bool | None = None
    without_effect = frozenset({"include_obfuscation"})
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {"continuous_usage_stats": (False,)}


class GenerationBody(Body):
    """Null stands for the default of a field, as if it were left out."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | Items[str] | None = None
    stop_token_ids: Items[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    logit_bias: Annotated[dict[str, float], BeforeValidator(_few)] | None = None
    cache_salt: str | None = Field(None, description="prompts of different salts share nothing")
    priority: int | None = Field(None, description="requests of a lower one run first")
    ttl: float | str | None = Field(None, description="seconds, or '5m', '1h': how long its entries live")

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "best_of": (1,),
        "use_beam_search": (False,),
        "length_penalty": (1, 1.0),
        "early_stopping": (False,),
        "include_stop_str_in_output": (False,),
        "skip_special_tokens": (True,),
        "spaces_between_special_tokens": (True,),
        "truncate_prompt_tokens": (),
        "allowed_token_ids": (),
        "bad_words": ([],),
        "response_format": ({"type": "text"},),
        "structured_outputs": (),
        "guided_json": (),
        "guided_regex": (),
        "guided_choice": (),
        "guided_grammar": (),
        "return_token_ids": (False,),
        "lora_path": (),
        "session_params": (),
    }
    without_effect: ClassVar[frozenset[str]] = frozenset(
        ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
         "prompt_cache_retention", "request_id", "parallel_tool_calls")
    )  # fmt: skip

    def checked(self) -> list[str]:
        """`ignored`, of `stream_options` too. Raises ApiError for what is not supported together."""
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options: only with stream=true", param="stream_options")
        options = self.stream_options.ignored() if self.stream_options is not None else []
        return self.ignored() + [f"stream_options.{name}" for name in options]

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that has the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def params(
        self, worker: Worker, names: Mapping[str, str] = MappingProxyType({}), **own: Any
    ) -> SamplingParams:
        """How to sample; ``own`` are the settings that an API calls by other ``names``. Raises ValueError."""
        defaults = worker.default_params
        settings: dict[str, Any] = {name: getattr(defaults, name) for name in DEFAULTS}
        settings |= {name: value for name in SAME_NAME if (value := getattr(self, name)) is not None}
        if settings["top_k"] == -1:
            settings["top_k"] = 0  # as vLLM and SGLang write "all"
        if self.stop is not None:
            settings["stop"] = tuple([self.stop] if isinstance(self.stop, str) else self.stop)
        if self.logit_bias is not None:
            settings["logit_bias"] = {_token(name): bias for name, bias in self.logit_bias.items()}
        return sampling_params(settings | own, names)

    def cache_settings(self, headers: Headers) -> dict[str, Any]:
        """Arguments of Worker.submit that are about the cache and the queue. Raises ApiError, ValueError."""
        return {
            "cache_salt": salt_of(headers, self.cache_salt),
            "priority": self.priority or 0,
            "ttl_seconds": seconds(self.ttl),
        }


def salt_of(headers: Headers, in_body: str | None) -> str | None:
    """The salt of a request: the header's, as UTF-8, where there is one. Raises ApiError if it is not clear.

    A second header may be the client's own beside the proxy's, and nobody can tell which came from whom.
    """
    found = set(headers.getlist(SALT_HEADER))
    if not found:
        return in_body
    if len(found) > 1:
        raise ApiError(400, f"{SALT_HEADER} is given {len(found)} times: send one", param="cache_salt")
    try:
        # As it came over the wire; headers are read as Latin-1.
        return found.pop().encode("latin-1").decode()
    except UnicodeDecodeError as error:
        raise ApiError(400, f"{SALT_HEADER} is not UTF-8: {error.reason}", param="cache_salt") from error


def sampling_params(settings: Mapping[str, Any], names: Mapping[str, str]) -> SamplingParams:
    """SamplingParams of ``settings``; what is wrong is named as the client calls it. Raises ValueError."""
    try:
        return SamplingParams(**settings)
    except ValueError as error:
        name, rest = re.split(r"\b", str(error), maxsplit=2)[1:]
        raise ValueError(names.get(name, name) + rest) from error


def seconds(ttl: float | str | None) -> float | None:
    """A time to live: seconds as they are, or a text such as 90s, 5m, 1h. Raises ApiError."""
    if ttl is None:
        return None
    found = re.fullmatch(r"([0-9]{1,9})([smh])", ttl) if isinstance(ttl, str) else None
    number = ttl if not isinstance(ttl, str) else int(found[1]) * SECONDS[found[2]] if found else 0
    if not number > 0:
        message = f"ttl={ttl!r}: give seconds above 0, or a text such as '90s', '5m' or '1h'"
        raise ApiError(400, message, param="ttl")
    return number


def _token(name: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", name):
        raise ApiError(400, f"logit_bias={name!r}: the names are token ids", param="logit_bias")
    return int(name)
