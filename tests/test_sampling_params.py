"""Parameters, checked where they are made."""

from dataclasses import replace
from math import inf, nan

import pytest

from hybridcache.sampling_params import MOST_LOGPROBS, MOST_SAMPLES, SamplingParams

BAD = [
    ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 1.5), ("max_tokens", True),
    ("temperature", -0.1), ("temperature", nan), ("temperature", inf), ("temperature", "hot"),
    ("temperature", 10**400),
    ("top_k", -1), ("top_k", 2.0),
    ("top_p", 0.0), ("top_p", 1.1), ("top_p", nan),
    ("min_p", -0.1), ("min_p", 1.1),
    ("repetition_penalty", 0.0), ("repetition_penalty", -1.0), ("repetition_penalty", inf),
    ("presence_penalty", 2.1), ("presence_penalty", -2.1), ("frequency_penalty", 2.1),
    ("seed", -1), ("seed", 0.5), ("ignore_eos", "yes"), ("ignore_eos", 1),
    ("min_tokens", -1),
    ("n", 0), ("n", MOST_SAMPLES + 1),
    ("logprobs", -1), ("logprobs", MOST_LOGPROBS + 1), ("prompt_logprobs", MOST_LOGPROBS + 1),
    ("stop", ("",)), ("stop", (3,)), ("stop", ""), ("stop", ("a",) * 129), ("stop", ("a" * 4_097,)),
    ("stop", 5), ("stop", None), ("stop_token_ids", 5), ("stop_token_ids", "12"), ("logit_bias", None),
    ("logit_bias", "x"), ("logit_bias", [1]),
    ("stop_token_ids", (-1,)), ("stop_token_ids", ("a",)),
    ("logit_bias", {-1: 1.0}), ("logit_bias", {1: 101.0}), ("logit_bias", {1: nan}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_is_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_more_must_than_may() -> None:
    with pytest.raises(ValueError, match="min_tokens=5 is above max_tokens=4"):
        SamplingParams(max_tokens=4, min_tokens=5)


@pytest.mark.parametrize(
    "name", ["logprobs", "logit_bias", "repetition_penalty", "presence_penalty", "min_tokens"]
)
def test_what_needs_the_logits_is_not_plain(name: str) -> None:
    values = {"logprobs": 0, "logit_bias": {1: 1.0}}
    greedy = SamplingParams(temperature=0.0)
    assert greedy.plain
    assert not replace(greedy, **{name: values.get(name, 2)}).plain  # type: ignore[arg-type]
    assert not SamplingParams().plain


def test_a_single_stop_text() -> None:
    assert SamplingParams(stop="end").stop == ("end",)  # type: ignore[arg-type]


def test_other_answers_do_not_judge_the_prompt_again() -> None:
    params = SamplingParams(n=2, prompt_logprobs=3, seed=1)
    assert params.without_prompt_logprobs() == replace(params, prompt_logprobs=None)
    plain = SamplingParams()
    assert plain.without_prompt_logprobs() is plain
