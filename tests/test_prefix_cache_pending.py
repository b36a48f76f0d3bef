"""Pending paths: who waits for whom, how a wait ends, and that it comes once for a position."""

import math

import pytest

from hybridcache.lease import Lease, Wait
from hybridcache.namespace import Namespace
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.spec import ModelSpec
from tests.cache_driver import Driver, Request
from tests.serving import text
from tests.simulated import Simulated
from tests.toy_spec import ATTENTION_ONLY, HYBRID, RECURRENT_ONLY

SPECS = [HYBRID, ATTENTION_ONLY, RECURRENT_ONLY]
COMMON = list(range(10))


def make(spec: ModelSpec) -> Driver:
    return Driver(
        spec,
        budget_bytes=math.inf,
        eviction=build_eviction("lru"),
        admission=build_admission("branch_and_final"),
    )


def wait_of(request: Request) -> Wait:
    assert request.wait is not None
    return request.wait


def hit(request: Request) -> int:
    assert request.lease is not None
    return request.lease.hit


@pytest.mark.parametrize("spec", SPECS)
def test_eight_siblings_compute_their_common_beginning_once(spec: ModelSpec) -> None:
    driver = make(spec)
    first = driver.submit([*COMMON, 50])
    siblings = [driver.submit([*COMMON, 60 + i]) for i in range(8)]
    assert first.lease is not None
    assert all(wait_of(sibling) == Wait(first.lease, 10) for sibling in siblings)
    assert driver.cache.stats.requests == 1 and driver.cache.stats.waits == 8
    driver.check()
    driver.step(first, COMMON)
    if spec.checkpoint_bytes:
        assert not any(wait_of(sibling).over for sibling in siblings), "the state is not kept yet"
        assert driver.checkpoint(first)
        assert not any(wait_of(sibling).over for sibling in siblings)
        driver.commit(first)
    for sibling in siblings:
        assert driver.wake(sibling)
        assert hit(sibling) == 10
        driver.check()
    for request in [first, *siblings]:
        driver.run(request)
    driver.check()
    assert driver.cache.stats.requests == 9


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("end", ["finish", "abort", "preempt", "drop", "flush", "pass", "no room"])
def test_a_wait_ends_in_every_way_the_first_one_does(spec: ModelSpec, end: str) -> None:
    driver = make(spec)
    first = driver.submit([*COMMON, 50])
    sibling = driver.submit([*COMMON, 60])
    driver.step(first, COMMON[:6])
    assert not driver.wake(sibling)
    if end == "finish":
        driver.run(first)
    elif end == "abort":
        driver.finish(first, keep_tokens=0)
    elif end == "preempt":
        driver.finish(first)
    elif end == "drop":
        driver.drop(first)
    elif end == "flush":
        driver.flush()
        driver.run(first)
    elif end == "pass":
        driver.step(first, [*COMMON[6:], 50])
    else:
        driver.step(first, COMMON[6:])
        if spec.checkpoint_bytes:
            driver.cache.budget.budget_bytes = driver.cache.budget.used_bytes
            assert not driver.checkpoint(first)
            driver.cache.budget.budget_bytes = math.inf
    assert driver.wake(sibling)
    assert sibling.lease is not None, "it runs: never a second wait for the same position"
    matched_all = spec is ATTENTION_ONLY and end not in ("abort", "preempt", "drop", "flush")
    if matched_all or end == "finish":
        assert hit(sibling) == 10
    driver.check()
    driver.run(sibling)
    driver.check()


@pytest.mark.parametrize("spec", SPECS)
def test_it_may_wait_again_for_another_position(spec: ModelSpec) -> None:
    driver = make(spec)
    short = driver.submit([*COMMON[:6], 50])
    long = driver.submit([*COMMON, 60, 61], namespace=Namespace())
    assert wait_of(long).position == 6
    long.waited.clear()
    driver.waiting.remove(long)
    driver.run(short)
    driver.acquire(long)
    third = driver.submit([*COMMON, 70])
    assert long.lease is not None and wait_of(third) == Wait(long.lease, 10)
    driver.check()


def test_a_position_that_was_waited_for_is_not_waited_for_again() -> None:
    driver = make(HYBRID)
    first = driver.submit([*COMMON, 50])
    answer = driver.cache.acquire([*COMMON, 60], Namespace(), 0.0, waited={10})
    assert isinstance(answer, Lease) and answer.hit == 0
    driver.cache.drop(answer, 0.0)
    driver.run(first)


@pytest.mark.parametrize(
    ("prompt", "namespace", "computed"),
    [
        ([*COMMON[:3], 60], Namespace(), 0),  # less than a block
        ([99, *COMMON], Namespace(), 0),  # nothing in common
        ([*COMMON, 60], Namespace(salt="a"), 0),  # of another namespace
        ([*COMMON[:6], 60], Namespace(), 8),  # passed already
        ([*COMMON, 60], Namespace(), 11),  # all computed: the first one generates
    ],
)
def test_who_does_not_wait(prompt: list[int], namespace: Namespace, computed: int) -> None:
    driver = make(HYBRID)
    first = driver.submit([*COMMON, 50], max_tokens=5)
    if computed:
        driver.step(first, [*COMMON, 50][:computed])
    other = driver.submit(prompt, namespace)
    assert other.lease is not None and other.wait is None
    paired = driver.submit([*COMMON, 51], Namespace(salt="b"))
    also = driver.submit([*COMMON, 52], Namespace(salt="b"))
    assert paired.lease is not None and also.wait is not None


def test_an_identical_prompt_waits_for_all_but_its_last_token() -> None:
    driver = make(HYBRID)
    first = driver.submit(COMMON)
    same = driver.submit(COMMON)
    assert wait_of(same).position == 9
    driver.run(first)
    assert driver.wake(same) and hit(same) == 9


def test_the_longest_common_beginning_is_waited_for() -> None:
    driver = make(HYBRID)
    driver.submit([*COMMON[:6], 50, 51])
    longer = driver.submit([*COMMON, 60], namespace=Namespace())
    driver.waiting.remove(longer)
    driver.acquire(longer)  # it has waited for 6
    third = driver.submit([*COMMON, 70])
    assert longer.lease is not None and wait_of(third) == Wait(longer.lease, 10)


def test_a_wait_changes_nothing_but_the_plan() -> None:
    driver = make(HYBRID)
    first = driver.submit([*COMMON, 50])
    assert first.lease is not None and first.lease.planned == []
    before = driver.cache.usage()
    driver.submit([*COMMON, 60])
    assert first.lease.planned == [10]
    driver.submit([*COMMON[:5], 70])
    assert first.lease.planned == [5, 10]
    assert driver.cache.usage() == before and len(driver.cache.leases) == 1


def test_a_salt_that_only_waited_leaves_nothing() -> None:
    served = Simulated(max_num_seqs=4, max_num_batched_tokens=16)
    roots = served.cache.store.tree.roots
    first = served.submit(text(160, 1))
    waiting = [served.submit(text(100, 2), namespace=Namespace(salt=f"tenant {i}")) for i in range(3)]
    served.step()
    assert first.lease is not None and all(request.looked_at for request in waiting), "they looked"
    for request in waiting:
        assert served.engine.abort(request.id)
    assert list(roots) == [first.namespace]
    served.run()
