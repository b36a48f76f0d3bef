"""How tokens are chosen."""

from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridcache.namespace import Namespace
from hybridcache.request import Request
from hybridcache.sampler import Sampler, log_softmax
from hybridcache.sampling_params import SamplingParams
from hybridcache.tokens import as_token_ids

LOGITS = np.array([1.0, 3.0, 2.0, 3.0, -1.0, 0.0], dtype=np.float32)
"""Tokens 1 and 3 are the likeliest."""
DRAWS = 400


def request(
    params: SamplingParams, *, output: tuple[int, ...] = (), request_id: int = 0, sample: int = 0
) -> Request:
    made = Request(
        request_id,
        as_token_ids([4, 5]),
        params,
        max_tokens=2 * DRAWS,
        namespace=Namespace("toy"),
        arrival=0.0,
        end_token_ids=frozenset({1, 3}),
        sample=sample,
    )
    made.output.extend(output)
    return made


def draw(params: SamplingParams, count: int = DRAWS, logits: NDArray[np.float32] = LOGITS) -> list[int]:
    """Tokens chosen one after the other from the same logits."""
    sampler, made = Sampler(), request(params)
    for _ in range(count):
        made.output.append(sampler.next_token(made, logits))
    return made.output


def greedy(output: tuple[int, ...] = (), **fields: object) -> int:
    params = SamplingParams(temperature=0.0, **fields)  # type: ignore[arg-type]
    return Sampler().next_token(request(params, output=output), LOGITS)


def test_greedy_takes_the_lowest_of_the_likeliest() -> None:
    assert greedy() == 1


@pytest.mark.parametrize("temperature", [1e-3, 1e-100, 1e-310, 5e-324])
def test_a_low_temperature_takes_one_of_the_likeliest(temperature: float) -> None:
    assert set(draw(SamplingParams(seed=1, temperature=temperature), 40)) == {1, 3}
    assert set(draw(SamplingParams(seed=1, temperature=temperature), 10, LOGITS - np.float32(1e4))) == {1, 3}


def test_logits_are_not_changed() -> None:
    before = LOGITS.copy()
    draw(SamplingParams(seed=1, repetition_penalty=2.0, presence_penalty=1.0, logit_bias={0: 5.0}), 3)
    assert np.array_equal(LOGITS, before)


def test_frequencies_are_the_probabilities() -> None:
    counts = Counter(draw(SamplingParams(seed=0, temperature=2.0), 4_000))
    expected = np.exp(LOGITS / 2.0) / np.exp(LOGITS / 2.0).sum()
    for token, probability in enumerate(expected):
        # Four standard deviations.
        assert abs(counts[token] / 4_000 - probability) < 4 * np.sqrt(probability / 4_000)


@pytest.mark.parametrize(
    ("fields", "possible"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 3}, {1, 2, 3}),
        ({"top_k": 99}, {0, 1, 2, 3, 4, 5}),
        ({"top_p": 0.01}, {1}),
        ({"top_p": 0.5}, {1, 3}),
        ({"top_p": 0.8}, {1, 2, 3}),
        ({"min_p": 1.0}, {1, 3}),
        ({"min_p": 0.3}, {1, 2, 3}),
        ({"top_k": 3, "top_p": 0.5}, {1, 3}),
        ({"top_k": 2, "min_p": 0.1}, {1, 3}),
        ({"logit_bias": {1: -100.0, 3: -100.0}, "top_k": 1}, {2}),
    ],
)
def test_only_what_the_filters_leave(fields: dict[str, object], possible: set[int]) -> None:
    assert set(draw(SamplingParams(seed=0, temperature=1.5, **fields))) == possible  # type: ignore[arg-type]


def test_top_p_counts_what_top_k_left() -> None:
    # Of the two likeliest each has half: one of them reaches 0.5.
    assert set(draw(SamplingParams(seed=0, top_k=2, top_p=0.5))) == {1}


def test_repetition_penalty_takes_prompt_and_answer() -> None:
    assert greedy((1,), repetition_penalty=2.0) == 3
    # A negative logit gets more negative: token 4, of the prompt, falls from -1 to -2.
    sampler = Sampler()
    params = SamplingParams(
        temperature=0.0, repetition_penalty=2.0, logit_bias={i: -90.0 for i in (0, 1, 2, 3, 5)}
    )
    assert sampler.next_token(request(params), LOGITS) == 4


def test_presence_and_frequency_penalties_take_the_answer_alone() -> None:
    assert greedy((1,), presence_penalty=0.5) == 3
    assert greedy((1, 1, 3), frequency_penalty=0.4) == 3
    assert greedy((1, 1, 3, 3), frequency_penalty=0.6) == 2
    # Presence counts once however often the token is there.
    assert greedy((1, 1, 1, 3), presence_penalty=0.6) == 1
    assert greedy((), presence_penalty=2.0, frequency_penalty=2.0) == 1


def test_logit_bias() -> None:
    assert greedy(logit_bias={4: 5.0}) == 4


def test_end_tokens_wait_for_min_tokens() -> None:
    assert greedy(min_tokens=2) == 2
    assert greedy((0, 0), min_tokens=2) == 1


def test_the_seed_alone_decides() -> None:
    params = SamplingParams(seed=7, temperature=1.5)
    one, other = (
        [
            Sampler(entropy).next_token(request(params, output=(0,) * n, request_id=entropy), LOGITS)
            for n in range(60)
        ]
        for entropy in (3, 4)
    )
    assert one == other
    assert one != draw(SamplingParams(seed=8, temperature=1.5), 60)


def test_samples_of_one_seed_differ() -> None:
    params = SamplingParams(seed=7, temperature=1.5)
    answers = [
        [Sampler().next_token(request(params, output=(0,) * n, sample=sample), LOGITS) for n in range(60)]
        for sample in range(3)
    ]
    assert answers[0] != answers[1] != answers[2]


def test_without_a_seed_requests_differ_and_runs_too() -> None:
    params = SamplingParams(temperature=1.5)

    def answer(entropy: int | None, request_id: int) -> list[int]:
        sampler = Sampler(entropy)
        made = [request(params, output=(0,) * n, request_id=request_id) for n in range(60)]
        return [sampler.next_token(each, LOGITS) for each in made]

    assert answer(1, 1) == answer(1, 1)
    assert answer(1, 1) != answer(1, 2)
    assert answer(None, 1) != answer(None, 1)


def test_a_tiny_temperature_is_greedy() -> None:
    assert set(draw(SamplingParams(seed=0, temperature=1e-6), 50)) == {1, 3}


def test_choices() -> None:
    choice = Sampler().choice(2, LOGITS, 3)
    logprobs = log_softmax(LOGITS)
    assert choice.token == 2 and choice.logprob == logprobs[2]
    assert choice.top == ((1, logprobs[1]), (3, logprobs[3]), (2, logprobs[2]))
    assert np.exp(logprobs).sum() == pytest.approx(1.0)
    assert Sampler().choice(2, LOGITS, 0).top == ()


def test_logprobs_of_large_logits_are_finite() -> None:
    assert np.isfinite(log_softmax(np.array([1e4, -1e4, 0.0], dtype=np.float32))).all()
