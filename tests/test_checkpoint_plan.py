"""An admission policy that fails costs its checkpoints, and no request."""

import logging
from collections.abc import Iterable, Sequence
from typing import ClassVar, cast

import numpy as np
import pytest

from hybridcache.lease import Lease
from hybridcache.namespace import Namespace
from hybridcache.policies.admission import AdmissionPolicy, Planned, PromptFacts
from hybridcache.policies.build import build_eviction
from hybridcache.policies.columns import BRANCH
from hybridcache.prefix_cache import PrefixCache
from tests.toy_spec import HYBRID

PROMPT = list(range(10))


class Given(AdmissionPolicy):
    """Plans what it is given, and fails where it is told to."""

    name: ClassVar[str] = "given"
    planned: Iterable[tuple[float, float]] = ((4, BRANCH),)
    following: float | None = 12
    fails_in: str = ""

    def _fail(self, here: str) -> None:
        if self.fails_in == here:
            raise RuntimeError(here)

    def candidates(self, prompt: PromptFacts) -> Sequence[int]:
        self._fail("candidates")
        return ()

    def learn(self, prompt: PromptFacts) -> None:
        self._fail("learn")

    def plan(self, prompt: PromptFacts) -> Sequence[Planned]:
        self._fail("plan")
        return cast(Sequence[Planned], self.planned)

    def next_generated(self, position: int, block_size: int) -> int | None:
        self._fail("next_generated")
        return cast(int | None, self.following)


def serve(policy: AdmissionPolicy) -> tuple[PrefixCache, list[int], list[int]]:
    """A request through to its end; what was planned for the prompt, and after that."""
    cache = PrefixCache(
        HYBRID, budget_bytes=np.inf, eviction=build_eviction("lru"), admission=policy, block_size=4
    )
    lease = cache.acquire(PROMPT, Namespace(), 0.0)
    assert isinstance(lease, Lease)
    first = list(lease.planned)
    assert cache.reserve(lease, len(PROMPT), 0.0)
    cache.emits(lease, len(PROMPT), 0.0)
    cache.restored(lease)
    cache.computed(lease, PROMPT, 0.0)
    cache.checkpointed(lease, 0.0)
    then = list(lease.planned)
    cache.finish(lease, len(PROMPT), 0.0)
    cache.check()
    assert not cache.leases
    return cache, first, then


def test_a_policy_that_works_is_followed() -> None:
    cache, first, then = serve(Given())
    assert (first, then) == ([4], [12])
    assert cache.stats.admission_errors == 0
    assert cache.match_prefix(PROMPT[:6], Namespace(), 0.0).hit == 4


@pytest.mark.parametrize("planned", [iter([(4, BRANCH)]), [(np.int64(4), np.int8(BRANCH))]])
def test_a_plan_may_be_a_generator_and_its_numbers_numpys(planned: Iterable[tuple[int, int]]) -> None:
    policy = Given()
    policy.planned, policy.following = planned, cast(int, np.int64(12))
    cache, first, then = serve(policy)
    assert (first, then) == ([4], [12]) and cache.stats.admission_errors == 0


def test_a_policy_without_a_name_is_refused_at_once() -> None:
    class Nameless(AdmissionPolicy):
        pass

    with pytest.raises(ValueError, match="admission policy Nameless has no name"):
        serve(Nameless())


@pytest.mark.parametrize("method", ["candidates", "learn", "plan"])
def test_a_prompt_goes_without_when_the_policy_raises(method: str, caplog: pytest.LogCaptureFixture) -> None:
    policy = Given()
    policy.fails_in = method
    with caplog.at_level(logging.ERROR):
        cache, first, _ = serve(policy)
    assert first == [12] and cache.stats.admission_errors == 1
    assert "admission policy 'given' failed" in caplog.text and f"RuntimeError: {method}" in caplog.text
    assert cache.match_prefix([*PROMPT, 1], Namespace(), 0.0).hit == 10, "its end is kept all the same"


IMPOSSIBLE = [
    ((11, BRANCH),),
    ((4, BRANCH), (0, BRANCH)),
    ((4, 99),),
    ((len(PROMPT) / 2, BRANCH),),
    ((4, float(BRANCH)),),
]


@pytest.mark.parametrize("planned", IMPOSSIBLE)
def test_positions_that_cannot_be_are_refused_together(planned: Sequence[tuple[float, float]]) -> None:
    policy = Given()
    policy.planned = planned
    cache, first, _ = serve(policy)
    assert first == [12] and cache.stats.admission_errors == 1


@pytest.mark.parametrize(("fails_in", "following"), [("next_generated", 12), ("", 10), ("", 12.5)])
def test_an_answer_goes_without(fails_in: str, following: float) -> None:
    policy = Given()
    policy.fails_in, policy.following = fails_in, following
    cache, first, then = serve(policy)
    assert (first, then) == ([4], []) and cache.stats.admission_errors == 1


@pytest.mark.parametrize("flag", ["final", "latest_only"])
def test_a_flag_that_is_none_is_refused_at_once(flag: str) -> None:
    policy = type("Own", (Given,), {flag: "no"})()
    with pytest.raises(ValueError, match=f"admission policy 'given' has {flag}='no': give True or False"):
        serve(policy)
