"""Policies that a replay helps: what the help must leave alone."""

import numpy as np
import pytest

from hybridcache.experiments.assisted_cache import assisted_cache
from hybridcache.experiments.replay_cache import replay_cache
from hybridcache.experiments.request_rows import RequestRows
from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.experiments.tuned_cache import TunedCache
from hybridcache.policies.admission import PromptFacts
from hybridcache.policies.build import build_eviction
from hybridcache.policies.final_only import FinalOnly
from tests.toy_spec import HYBRID


class Learning(FinalOnly):
    """Keeps what it was shown."""

    name = "learning"

    def __init__(self) -> None:
        self.shown: list[PromptFacts] = []

    def learn(self, prompt: PromptFacts) -> None:
        self.shown.append(prompt)


@pytest.mark.parametrize("name", ["lru", "clairvoyant", "marconi_tuned"])
def test_the_helper_of_a_policy_does_not_teach_the_admission(name: str) -> None:
    prompts = [[i % 3, *range(100, 107), i] for i in range(40)]
    trace = [
        TraceRequest(float(i), 0, 0, np.array([*prompt, 0], np.uint32), len(prompt), np.array([len(prompt)]))
        for i, prompt in enumerate(prompts)
    ]
    admission = Learning()
    cache = assisted_cache(
        HYBRID, trace, budget_bytes=260, block_size=4, eviction=build_eviction(name), admission=admission
    )
    rows = RequestRows(None)
    replay_cache(trace, cache, HYBRID, rows)
    rows.close()
    assert len(admission.shown) == len(trace), "each request once"
    assert cache.stats.evictions
    if isinstance(cache, TunedCache):
        assert cache.tunings
