"""Time to live: sliding, per node, never a parent before its child, and never under a lease."""

import math
from collections.abc import Sequence

import pytest

from hybridcache.lease import Lease
from hybridcache.namespace import Namespace
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.spec import ModelSpec
from tests.cache_driver import Driver
from tests.toy_spec import ATTENTION_ONLY, HYBRID, RECURRENT_ONLY

SPECS = [HYBRID, ATTENTION_ONLY, RECURRENT_ONLY]


def make(spec: ModelSpec = HYBRID, ttl_seconds: float | None = 10.0) -> Driver:
    return Driver(
        spec,
        budget_bytes=math.inf,
        eviction=build_eviction("lru"),
        admission=build_admission("branch_and_final"),
        ttl_seconds=ttl_seconds,
    )


def hit(driver: Driver, *tokens: int) -> int:
    return driver.cache.match_prefix(tokens, Namespace(), driver.now).hit


@pytest.mark.parametrize("spec", SPECS)
def test_it_ends(spec: ModelSpec) -> None:
    driver = make(spec)
    driver.serve(range(10))
    driver.now = 9.9
    assert hit(driver, *range(10), 50) == 10
    driver.now = 10.0
    assert hit(driver, *range(10), 50) == 0, "at once, even before it is freed"
    assert driver.cache.budget.used_bytes > 0
    driver.serve([70])
    driver.check()
    assert driver.cache.match_prefix(range(10), Namespace(), 0.0).matched == 0, "and then it is gone"
    assert driver.cache.stats.expirations >= 1


@pytest.mark.parametrize("spec", SPECS)
def test_a_read_renews(spec: ModelSpec) -> None:
    driver = make(spec)
    driver.serve(range(10))
    driver.now = 9.0
    assert driver.serve([*range(10), 50]).hit == 10
    driver.now = 18.9
    assert hit(driver, *range(10), 60) == 10
    driver.now = 19.0
    assert hit(driver, *range(10), 60) == 0


def test_the_later_of_two_wins() -> None:
    driver = make()
    driver.serve(range(10), ttl_seconds=100.0)
    assert driver.serve([*range(10), 50], ttl_seconds=1.0).hit == 10
    driver.now = 50.0
    assert hit(driver, *range(10), 60) == 10, "a shorter life does not cut a longer one"
    assert hit(driver, *range(10), 50, 60) == 10, "what was computed with it has its own"
    driver.check()


@pytest.mark.parametrize("spec", SPECS)
def test_never_a_parent_before_its_child(spec: ModelSpec) -> None:
    driver = make(spec)
    driver.serve(range(10), ttl_seconds=5.0)
    driver.serve([*range(10), 50, 51], ttl_seconds=100.0)
    driver.now = 50.0
    driver.serve([70])
    assert hit(driver, *range(10), 50, 51, 52) == 12
    driver.check()


def test_a_checkpoint_has_its_own() -> None:
    driver = make()
    driver.serve(range(10))
    driver.now = 5.0
    driver.serve([*range(10), 50, 51])
    driver.now = 9.0
    assert driver.serve([*range(10), 50, 51, 52]).hit == 12
    driver.now = 16.0  # the checkpoint at 10 was read at 5 s, its KV at 9 s
    found = driver.cache.match_prefix([*range(10), 60], Namespace(), driver.now)
    assert (found.hit, found.matched) == (0, 10)
    lease = driver.serve([*range(10), 60])
    assert lease.lost == {"expired": 10, "diverged": 1}
    driver.check()


@pytest.mark.parametrize("at", range(1, 10))
def test_a_split_copies_it(at: int) -> None:
    driver = make(ATTENTION_ONLY)
    driver.serve(range(10))
    driver.now = 5.0
    driver.serve([*range(at), 50])
    driver.now = 12.0
    assert hit(driver, *range(at), 99) == at, "what both share was read again"
    assert hit(driver, *range(10), 99) == at, "what only the first has was not"
    driver.serve([70])
    driver.check()


def test_an_only_child_absorbs_a_parent_that_expires_with_it() -> None:
    driver = make(ATTENTION_ONLY)
    driver.serve(range(10), ttl_seconds=30.0)
    driver.serve([*range(6), 50], ttl_seconds=3.0)
    driver.now = 4.0
    driver.serve(range(10), ttl_seconds=30.0)
    driver.check()
    assert driver.cache.store.table.num_nodes == 1


@pytest.mark.parametrize("spec", SPECS)
def test_expired_but_pinned(spec: ModelSpec) -> None:
    driver = make(spec)
    driver.serve(range(10))
    request = driver.submit([*range(10), 50, 51], max_tokens=2)
    assert request.lease is not None and request.lease.hit == 10
    used = driver.cache.budget.used_bytes
    driver.now = 20.0
    assert hit(driver, *range(10), 60) == 0, "invisible at once"
    other = driver.submit([70])
    driver.run(other)
    driver.check()
    assert driver.cache.budget.used_bytes >= used, "and held as long as it is needed"
    driver.drop(request)
    driver.check()
    assert driver.cache.store.table.num_nodes == 1, "then it goes, and the other one's path stays"


@pytest.mark.parametrize("spec", SPECS)
def test_a_life_shorter_than_the_answer(spec: ModelSpec) -> None:
    """A request uses its prefix when it starts and when it ends, so all of it lives on from there."""
    driver = make(spec)
    request = driver.submit(range(10), max_tokens=4)
    driver.step(request, list(range(10)))
    driver.now = 10.0
    assert hit(driver, *range(10), 60) == 0, "an answer that goes on reads it, but tells nobody"
    for token in (50, 51, 52):
        driver.step(request, [token])
        driver.now += 1.0
    driver.finish(request)
    driver.check()
    driver.now += 9.9
    assert hit(driver, *range(10), 50, 51, 52, 60) == 13
    assert driver.cache.match_prefix([*range(10), 60], Namespace(), driver.now).matched == 10
    driver.now += 0.1
    assert hit(driver, *range(10), 50, 51, 52, 60) == 0


@pytest.mark.parametrize("spec", SPECS)
def test_expired_and_computed_again(spec: ModelSpec) -> None:
    """Another lease pins the expired path; what is inserted anew along it lives again."""
    driver = make(spec)
    driver.serve(range(10))
    pinning = driver.submit([*range(10), 50])
    driver.now = 20.0
    assert driver.serve(range(10)).hit == 0
    driver.check()
    assert hit(driver, *range(10), 60) == 10
    driver.now = 29.9
    assert hit(driver, *range(10), 60) == 10
    driver.run(pinning)
    driver.check()


def test_extending_a_path_does_not_lend_it_a_longer_life() -> None:
    driver = make(ATTENTION_ONLY)
    driver.serve(range(8), ttl_seconds=100.0)
    driver.serve([*range(8), 50, 51], ttl_seconds=1.0)
    driver.now = 50.0
    assert hit(driver, *range(8), 50, 51, 52) == 8


def test_a_checkpoint_is_not_outlived_by_its_kv() -> None:
    """The KV was computed at 0 s, the checkpoint kept at 8 s: both live until 18 s."""
    driver = make()
    request = driver.submit(range(10))
    driver.step(request, list(range(10)))
    driver.now = 8.0
    driver.finish(request)
    driver.now = 15.0
    assert hit(driver, *range(10), 60) == 10
    driver.check()


def test_without_one_nothing_expires() -> None:
    driver = make(ttl_seconds=None)
    driver.serve(range(10))
    driver.now = 1e12
    assert driver.serve([*range(10), 50]).hit == 10
    assert driver.cache.store.next_expiry == math.inf
    assert driver.cache.stats.expirations == 0


def test_lost_tokens_of_an_expired_path() -> None:
    driver = make()
    driver.serve(range(10))
    driver.now = 20.0
    assert driver.serve([*range(10), 50]).lost == {"expired": 10, "new": 1}


def test_what_outlives_an_expired_leaf_stays_matchable() -> None:
    """A path without a checkpoint of its own, under a longer one that lives shorter."""
    cache, space = make().cache, Namespace()

    def serve(prompt: Sequence[int], now: float, ttl_seconds: float, *, whole: bool = True) -> None:
        lease = cache.acquire(prompt, space, now, ttl_seconds=ttl_seconds)
        assert isinstance(lease, Lease) and cache.reserve(lease, len(prompt) - lease.hit, now)
        cache.computed(lease, prompt[lease.hit :], now)
        if whole:
            cache.finish(lease, len(prompt), now)
        else:
            cache.drop(lease, now)
        cache.check()

    serve(range(12), 0.0, 100.0, whole=False)
    serve(range(20), 0.0, 5.0)
    assert cache.match_prefix(range(30), space, 4.9) == (20, 20)
    assert cache.match_prefix(range(30), space, 5.0) == (0, 12)
    serve([80], 5.0, 100.0)
    assert cache.stats.expirations >= 1
    assert cache.match_prefix(range(30), space, 5.0) == (0, 12), "freeing what expired takes nothing else"
    serve([81], 100.0, 1.0)
    assert cache.match_prefix(range(30), space, 5.0) == (0, 0)
