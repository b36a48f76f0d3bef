"""The prompts that a worker was sent, until somebody asks."""

import numpy as np

from hybridcache.explainer import Explainer
from hybridcache.namespace import Namespace
from hybridcache.prompt_log import PromptRecord
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
    record = PromptRecord(NAMESPACE, again.prompt, (), 0, 0, {"new": 400})
    assert traffic.explain(record).lost == {"new": 400}


def test_what_was_private_or_never_let_in_does_not_count() -> None:
    traffic = Traffic(Explainer(HYBRID))
    traffic.note(ended(10, 1, private=True))
    aborted = ended(10, 2)
    aborted.lost = {}
    traffic.note(aborted)
    assert traffic.num_noted_tokens == 0 == sent(traffic)
    traffic.note(ended(10, 3))
    assert sent(traffic) == 1
