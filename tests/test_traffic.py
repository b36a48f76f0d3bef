"""The prompts that a worker was sent, until somebody asks."""

import numpy as np
import pytest

from hybridcache.explainer import Explainer
from hybridcache.namespace import Namespace
from hybridcache.prefix_cache import PrefixMatch
from hybridcache.request import Request
from hybridcache.sampling_params import SamplingParams
from hybridcache.traffic import Traffic
from tests.toy_spec import HYBRID

NAMESPACE = Namespace("toy")


def ended(length: int, number: int, *, private: bool = False) -> Request:
    """A request whose prompt no other one shares, as it is when it has ended."""
    prompt = np.arange(length, dtype=np.uint32) + np.uint32(1_000 * number)
    request = Request(
        number, prompt, SamplingParams(), max_tokens=1, namespace=NAMESPACE, arrival=0.0, private=private
    )
    request.lost = {"new": length}
    return request


def sent(traffic: Traffic) -> int:
    return sum(total.requests for total in traffic.totals())


def test_prompts_and_their_tokens_are_bounded() -> None:
    traffic = Traffic(Explainer(HYBRID), most_prompts=5, most_tokens=1_000)
    for number in range(20):
        traffic.note(ended(10, number))
        assert traffic.num_noted_tokens == 10 * min(number + 1, 5)
    for number in range(20, 30):
        traffic.note(ended(400, number))
        assert traffic.num_noted_tokens <= 1_000
    # The last two are there, and one that is too long alone drives nobody out.
    traffic.note(ended(1_001, 30))
    assert traffic.num_noted_tokens == 800 and sent(traffic) == 2
    assert traffic.num_noted_tokens == 0
    again = ended(400, 29)
    assert traffic.explain(again, PrefixMatch(0, 0), again.lost).lost == {"new": 400}


@pytest.mark.parametrize(
    ("own_ttl", "ttl", "reason"),
    [(None, 50.0, "expired"), (9.0, None, "expired"), (None, None, "forgotten"), (99.0, 9.0, "forgotten")],
)
def test_what_only_the_log_knows_has_expired_or_was_evicted(
    own_ttl: float | None, ttl: float | None, reason: str
) -> None:
    """The cache remembers ends of paths alone, and the second prompt leaves the path of the first."""
    traffic = Traffic(Explainer(HYBRID), ttl)
    first, second = ended(400, 1), ended(400, 1)
    first.ttl_seconds = own_ttl
    second.prompt[300:] += np.uint32(5_000)
    second.arrival = 60.0
    traffic.note(first)
    explained = traffic.explain(second, PrefixMatch(0, 0), second.lost)
    assert (explained.forgotten_tokens, explained.forgotten_reason) == (300, reason)
    traffic.note(second)
    (totals,) = traffic.totals()
    assert {name: cause.avoidable_tokens for name, cause in totals.causes.items()} == {reason: 300}


def test_what_was_private_or_never_let_in_does_not_count() -> None:
    traffic = Traffic(Explainer(HYBRID))
    traffic.note(ended(10, 1, private=True))
    aborted = ended(10, 2)
    aborted.lost = {}
    traffic.note(aborted)
    assert traffic.num_noted_tokens == 0 == sent(traffic)
    traffic.note(ended(10, 3))
    assert sent(traffic) == 1
