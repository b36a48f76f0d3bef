"""Bytes: budgets that only just fit, refusals, what is evicted, and that everything adds up."""

import math
from itertools import pairwise, product

import pytest

from hybridcache.namespace import Namespace
from hybridcache.policies.build import ADMISSION, EVICTION, build_admission, build_eviction
from hybridcache.prefix_cache import RequestTooLarge
from hybridcache.spec import ModelSpec
from tests.cache_driver import Driver
from tests.toy_spec import ATTENTION_ONLY, HYBRID, KV_BYTES, RECURRENT_ONLY, STATE_BYTES

BLOCK_BYTES = 4 * KV_BYTES


def make(
    budget_bytes: float,
    spec: ModelSpec = HYBRID,
    *,
    eviction: str = "lru",
    admission: str = "branch_and_final",
    memory: str = "unified",
    kv_fraction: float = 0.5,
    ttl_seconds: float | None = None,
    **settings: int,
) -> Driver:
    return Driver(
        spec,
        budget_bytes=budget_bytes,
        eviction=build_eviction(eviction),
        admission=build_admission(admission, **settings),
        memory=memory,
        kv_fraction=kv_fraction,
        ttl_seconds=ttl_seconds,
    )


def hit(driver: Driver, *tokens: int) -> int:
    return driver.cache.match_prefix(tokens, Namespace(), driver.now).hit


@pytest.mark.parametrize("eviction", sorted(EVICTION))
@pytest.mark.parametrize("admission", sorted(ADMISSION))
@pytest.mark.parametrize("spec", [HYBRID, ATTENTION_ONLY, RECURRENT_ONLY])
def test_requests_that_only_just_fit_run_one_after_another(
    spec: ModelSpec, eviction: str, admission: str
) -> None:
    """The budget is what one request takes, to the byte; whatever is cached gives way."""
    attention, recurrent = spec is not RECURRENT_ONLY, spec is not ATTENTION_ONLY
    driver = make(
        5 * BLOCK_BYTES * attention + STATE_BYTES * recurrent, spec, eviction=eviction, admission=admission
    )
    prompts = [list(range(14)), [*range(7), *range(50, 57)], list(range(14)), [*range(10), 60, 61, 62, 63]]
    for prompt in [*prompts, *prompts]:
        driver.serve(prompt, max_tokens=7)  # 14 + 7 - 1 tokens are five blocks
        driver.check()
    assert driver.cache.peak_bytes <= driver.cache.budget.budget_bytes


def test_one_token_more_is_refused_and_changes_nothing() -> None:
    driver = make(5 * BLOCK_BYTES + STATE_BYTES)
    driver.serve(range(14), max_tokens=7)
    before = driver.cache.usage()
    with pytest.raises(
        RequestTooLarge, match=r"14 prompt tokens and max_tokens=8 need 6 blocks.*raise the budget"
    ):
        driver.cache.acquire(range(14), Namespace(), 0.0, max_tokens=8)
    stats = driver.cache.stats
    assert (stats.requests, stats.requests_refused, stats.input_tokens) == (2, 1, 28)
    assert driver.cache.usage() == before
    driver.cache.check()
    with pytest.raises(ValueError, match="budget"):
        driver.cache.acquire(range(14), Namespace(), 0.0, max_tokens=8, first=False)
    assert stats.requests == 2, "a preempted request is counted once"


@pytest.mark.parametrize(
    ("memory", "kv_fraction", "num_tokens", "fits"),
    [
        ("split", 0.5, 16, True),
        ("split", 0.5, 17, False),
        ("unified", 0.5, 28, True),
        ("unified", 0.5, 29, False),
        ("split", 1.0, 1, False),  # no state
        ("split", 0.0, 1, False),  # no block
    ],
)
def test_what_fits(memory: str, kv_fraction: float, num_tokens: int, fits: bool) -> None:
    driver = make(8 * BLOCK_BYTES, memory=memory, kv_fraction=kv_fraction)
    assert driver.cache.fits(num_tokens) == fits
    assert driver.cache.fits(1, num_tokens) == fits
    if fits:
        driver.serve([1] * num_tokens)
    else:
        with pytest.raises(RequestTooLarge):
            driver.cache.acquire([1] * num_tokens, Namespace(), 0.0)


def test_split_memory_evicts_from_the_pool_that_is_full() -> None:
    driver = make(20 * BLOCK_BYTES, memory="split", kv_fraction=16 / 20)  # 16 blocks and 4 slots
    for i in range(3):
        driver.now += 1.0
        driver.serve([i * 10 + j for j in range(4)])
    assert driver.cache.stats.evictions == 0
    driver.now += 1.0
    driver.serve([100, 101, 102, 103])
    driver.now += 1.0
    assert driver.cache.stats.evictions == 0
    driver.serve([200, 201, 202, 203])  # the fifth slot
    assert driver.cache.stats.evictions == 1
    assert hit(driver, 0, 1, 2, 3, 9) == 0 and hit(driver, 10, 11, 12, 13, 9) == 4
    driver.check()


def test_what_was_used_least_recently_goes() -> None:
    driver = make(2 * (BLOCK_BYTES + STATE_BYTES) + STATE_BYTES)
    for start in (0, 10):
        driver.now += 1.0
        driver.serve(range(start, start + 3))
    driver.now += 1.0
    request = driver.submit([0, 1, 2, 7])
    assert request.lease is not None and request.lease.hit == 3
    driver.finish(request)
    driver.now += 1.0
    driver.serve(range(20, 23))
    assert hit(driver, 0, 1, 2, 9) == 3 and hit(driver, 10, 11, 12, 9) == 0
    lost = driver.serve([10, 11, 12, 13]).lost
    assert lost == {"kv_evicted": 3, "new": 1}


def test_a_running_request_is_never_evicted() -> None:
    driver = make(6 * BLOCK_BYTES + 3 * STATE_BYTES)
    driver.serve(range(8))
    request = driver.submit([*range(8), 50])
    assert request.lease is not None and request.lease.hit == 8
    others, started = [], []
    for start in (100, 200, 300, 400):
        other = driver.submit(range(start, start + 8))
        others.append(other)
        started.append(other.lease is not None and driver.step(other, other.prompt))
        driver.check()
    assert True in started and False in started, "there was room for some, not for all"
    for other in others:
        if other.lease is not None:
            driver.drop(other)
    driver.run(request)
    assert hit(driver, *range(8), 50, 9) == 9
    driver.check()


def test_no_room_for_a_checkpoint_is_no_failure() -> None:
    driver = make(3 * BLOCK_BYTES + STATE_BYTES, admission="all_blocks")
    request = driver.submit(range(12))
    assert request.lease is not None and driver.cache.reserve(request.lease, 12, 0.0)
    driver.step(request, range(4))
    assert driver.at_plan(request) and not driver.checkpoint(request)
    assert driver.cache.stats.checkpoints_skipped == 1
    driver.run(request)
    driver.check()
    assert hit(driver, *range(12), 50) == 12, "the running slot needs no room"


def test_reserve_changes_nothing_without_room() -> None:
    driver = make(4 * BLOCK_BYTES + 2 * STATE_BYTES)
    one, other = driver.submit(range(8)), driver.submit(range(50, 58))
    assert driver.step(one, range(8)) and driver.step(other, range(50, 58))
    assert one.lease is not None
    before = (driver.cache.usage(), one.lease.blocks.tolist())
    assert not driver.cache.reserve(one.lease, 1, 0.0)
    assert (driver.cache.usage(), one.lease.blocks.tolist()) == before
    driver.finish(other)
    assert driver.cache.reserve(one.lease, 1, 0.0), "the other one's bytes are evictable now"
    driver.check()


def test_no_room_to_start() -> None:
    driver = make(4 * BLOCK_BYTES + STATE_BYTES)
    one = driver.submit(range(8))
    driver.step(one, range(8))
    assert one.lease is not None and driver.cache.reserve(one.lease, 8, 0.0)
    before = driver.cache.usage()
    other = driver.submit(range(50, 58))
    assert other.lease is None and other.wait is None and driver.cache.usage() == before
    assert driver.cache.stats.requests == 1, "it is counted when it starts"
    driver.run(one)
    driver.acquire(other)
    driver.run(other)
    assert driver.cache.stats.requests == 2
    driver.check()


@pytest.mark.parametrize("memory", ["unified", "split"])
def test_one_request_does_not_take_the_whole_state_budget(memory: str) -> None:
    budget = 160 * STATE_BYTES if memory == "unified" else 32 * STATE_BYTES + 200 * BLOCK_BYTES
    fraction = 200 * BLOCK_BYTES / budget
    driver = make(budget, admission="every_n", n=1, memory=memory, kv_fraction=fraction)
    other = list(range(1000, 1008))
    driver.serve(other)
    kept = sum(hit(driver, *other[:n], 9) == n for n in range(1, 9))
    assert kept >= 1
    tokens = list(range(120))
    driver.serve(tokens)
    driver.check()
    positions = [n for n in range(1, 121) if hit(driver, *tokens[:n], 9999) == n]
    most = driver.cache.budget.limits["state"] / STATE_BYTES / 4
    assert most / 2 <= len(positions) <= most + 1
    gaps = [b - a for a, b in pairwise(positions)]
    assert max(gaps) <= 8 * 120 / len(positions), "those that stay are spread"
    assert sum(hit(driver, *other[:n], 9) == n for n in range(1, 9)) == kept, "the others' are not touched"


@pytest.mark.parametrize("slots", [2, 3])
def test_a_node_that_lost_its_checkpoint_and_grew_counts_once(slots: int) -> None:
    """The first checkpoint of a request goes for its second, at the same node, which is longer by then."""
    budget = slots * STATE_BYTES + 20 * BLOCK_BYTES
    for steps in product((1, 2, 5), repeat=4):
        driver = make(
            budget, admission="every_n", n=1, memory="split", kv_fraction=20 * BLOCK_BYTES / budget
        )
        request = driver.submit(range(24), max_tokens=8)
        assert request.lease is not None
        for step in steps:
            assert driver.step(request, driver.next_tokens(request, step, stop_at_plan=False), emit=True)
            if request.lease.emits:
                driver.commit(request)
            driver.check()
        driver.run(request)
        driver.check()


def test_a_block_at_a_time() -> None:
    driver = make(10 * BLOCK_BYTES + 10 * STATE_BYTES, ATTENTION_ONLY, eviction="block_lru")
    driver.serve(range(40))
    driver.now += 1.0
    driver.serve(range(100, 140))
    assert hit(driver, *range(100, 140), 9) == 40
    assert hit(driver, *range(40), 9) == 40, "20 blocks"
    driver.now += 1.0
    driver.serve(range(200, 204))
    assert hit(driver, *range(40), 9) == 36, "its last block went, and nothing else"
    assert driver.cache.stats.evicted_tokens == 4
    driver.check()


@pytest.mark.parametrize("eviction", sorted(EVICTION))
def test_a_pinned_path_gives_up_its_checkpoints(eviction: str) -> None:
    """All that is evictable are states on the path of the one request that runs."""
    driver = make(8 * BLOCK_BYTES + 3 * STATE_BYTES, eviction=eviction)
    for stop in (4, 8, 12):
        driver.serve(range(stop))
    request = driver.submit([*range(12), 50], max_tokens=26)
    assert request.lease is not None and request.lease.hit == 12
    driver.run(request)
    driver.check()
    assert driver.cache.peak_bytes == driver.cache.budget.budget_bytes
    assert driver.cache.stats.evictions == 3


def test_infinite_split_memory() -> None:
    driver = make(math.inf, memory="split")
    driver.serve(range(10))
    assert driver.serve([*range(10), 50]).hit == 10
    driver.check()
    assert driver.cache.stats.evictions == 0


def test_usage() -> None:
    driver = make(100 * BLOCK_BYTES)
    driver.serve(range(10))
    idle = driver.cache.usage()
    assert idle.kv == (3 * BLOCK_BYTES, 0, 0) and idle.state == (STATE_BYTES, 0, 0)
    request = driver.submit([*range(10), 50])
    usage = driver.cache.usage()
    assert usage.kv == (0, 3 * BLOCK_BYTES, BLOCK_BYTES), "the path is pinned, the copied block its own"
    assert usage.state == (0, STATE_BYTES, STATE_BYTES)
    assert (usage.evictable, usage.pinned, usage.leased) == (0, 4 * BLOCK_BYTES, 2 * BLOCK_BYTES)
    assert usage.free == 94 * BLOCK_BYTES and usage.kv.used == 4 * BLOCK_BYTES
    driver.restore(request)
    assert driver.cache.usage().state == (STATE_BYTES, 0, STATE_BYTES), "copied: it may be evicted"
    driver.check()
