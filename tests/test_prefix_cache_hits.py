"""What a prompt hits: token by token, in the middle of blocks, with and without each kind of layer."""

import math
from collections.abc import Callable

import pytest

from hybridcache.lease import BlockCopy
from hybridcache.namespace import Namespace
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.spec import ModelSpec
from tests.cache_driver import Driver
from tests.toy_spec import ATTENTION_ONLY, HYBRID, RECURRENT_ONLY

Make = Callable[..., Driver]


@pytest.fixture
def make() -> Make:
    """A driver with blocks of four tokens and no bound on its bytes; admission by name."""

    def build(spec: ModelSpec = HYBRID, admission: str = "branch_and_final", **settings: int) -> Driver:
        return Driver(
            spec,
            budget_bytes=math.inf,
            eviction=build_eviction("lru"),
            admission=build_admission(admission, **settings),
        )

    return build


def test_a_conversation_goes_on_where_it_ended(make: Make) -> None:
    driver = make()
    cold = driver.serve(range(10), max_tokens=4)
    assert (cold.hit, cold.matched, cold.lost) == (0, 0, {"new": 10})
    # Computed are 10 + 4 - 1 tokens; the last one sampled was never fed.
    warm = driver.serve([*range(10), 0, 0, 0, 7, 8, 9])
    assert (warm.hit, warm.matched, warm.lost) == (13, 13, {"new": 3})
    other = driver.serve([5, *range(10)])
    assert (other.hit, other.matched) == (0, 0)
    driver.check()


def test_the_last_token_is_always_computed(make: Make) -> None:
    driver = make(admission="branch_final_prompt")
    driver.serve(range(10))
    again = driver.serve(range(10))
    assert (again.hit, again.matched, again.lost) == (9, 10, {"last_token": 1})
    one = driver.serve([3])
    assert (one.hit, one.lost) == (0, {"last_token": 1})


def test_the_same_prompt_hits_once_its_branch_point_is_kept(make: Make) -> None:
    driver = make()
    assert [driver.serve(range(10)).hit for _ in range(3)] == [0, 0, 9]
    assert [driver.serve([9, *range(10)]).hit for _ in range(2)] == [0, 0], "unlike a prompt that is new"


@pytest.mark.parametrize("shared", range(1, 12))
def test_a_branch_anywhere_in_a_block(make: Make, shared: int) -> None:
    """The third prompt with a common beginning hits all of it: the second one left a checkpoint there."""
    driver = make()
    first = driver.serve(range(12))
    second = driver.serve([*range(shared), 50, 51])
    third = driver.serve([*range(shared), 60, 61, 62])
    assert [first.hit, second.hit, third.hit] == [0, 0, shared]
    assert second.matched == third.matched == shared
    assert (third.block_copy is None) == (shared % 4 == 0)
    if third.block_copy is not None:
        assert third.block_copy.num_tokens == shared % 4
    driver.check()


def test_the_copy_is_of_the_straddling_blocks_first_tokens(make: Make) -> None:
    driver = make(ATTENTION_ONLY)
    driver.serve(range(12))
    request = driver.submit([*range(6), 50])
    lease = request.lease
    assert lease is not None
    held = lease.node.blocks.tolist()
    assert lease.block_copy == BlockCopy(held[-1], int(lease.blocks[0]), 2)
    driver.run(request)
    below = [child for child in lease.node.parent.children.values()] if lease.node.parent else []
    assert driver.cache.store.blocks.refs(held[-1]) == 2, "both halves of the split hold it"
    assert below
    driver.check()


def test_blocks_are_shared_not_copied(make: Make) -> None:
    driver = make(ATTENTION_ONLY)
    driver.serve(range(16))
    used = driver.cache.budget.used["kv"]
    driver.serve([*range(8), 50])
    assert driver.cache.budget.used["kv"] == used + 1 * 32, "one block for one new token"
    driver.serve([*range(6), 60])
    assert driver.cache.budget.used["kv"] == used + 2 * 32


@pytest.mark.parametrize("shared", range(1, 12))
def test_attention_alone_resumes_anywhere(make: Make, shared: int) -> None:
    driver = make(ATTENTION_ONLY)
    driver.serve(range(12))
    lease = driver.serve([*range(shared), 50, 51])
    assert (lease.hit, lease.matched) == (shared, shared)
    assert lease.slot is None and lease.state_copy is None and not lease.planned
    assert driver.serve(range(12)).lost == {"last_token": 1}
    driver.check()


def test_recurrent_layers_alone_keep_no_kv(make: Make) -> None:
    driver = make(RECURRENT_ONLY)
    driver.serve(range(10), max_tokens=3)
    assert driver.cache.budget.used == {"kv": 0, "state": 32}
    lease = driver.serve([*range(10), 0, 0, 7])
    assert (lease.hit, lease.block_copy, len(lease.blocks)) == (12, None, 0)
    assert driver.serve([*range(9), 77]).hit == 0
    driver.check()


@pytest.mark.parametrize("spec", [HYBRID, RECURRENT_ONLY])
def test_every_n_keeps_positions_in_prompt_and_answer(make: Make, spec: ModelSpec) -> None:
    driver = make(spec, "every_n", n=5)
    driver.serve(range(12), max_tokens=14)  # computes 25 tokens
    tokens = [*range(12), *[0] * 13]
    kept = [
        n for n in range(1, 26) if driver.cache.match_prefix([*tokens[:n], 99], Namespace(), 0.0).hit == n
    ]
    assert kept == [5, 10, 15, 20, 25]
    assert driver.serve([*tokens[:18], 99]).hit == 15
    driver.check()


def test_the_deepest_checkpoint_on_the_path(make: Make) -> None:
    driver = make(admission="all_blocks")
    driver.serve(range(10))
    assert driver.serve([*range(7), 50]).hit == 4
    assert driver.serve([*range(8), 50]).hit == 8
    assert driver.serve([*range(10), 50]).hit == 10


def test_resuming_does_not_change_the_checkpoint(make: Make) -> None:
    driver = make()
    driver.serve(range(10))
    requests = [driver.submit([*range(10), token]) for token in (20, 30, 40)]
    assert [request.lease.hit for request in requests if request.lease] == [10, 10, 10]
    slots = {request.lease.slot for request in requests if request.lease}
    source = (
        requests[0].lease.state_copy.src_slot if requests[0].lease and requests[0].lease.state_copy else -1
    )
    assert len(slots) == 3 and source not in slots
    for request in requests:
        driver.run(request)
        driver.check()
    assert driver.serve([*range(10), 50]).hit == 10


def test_namespaces_do_not_share(make: Make) -> None:
    driver = make()
    names = [Namespace(), Namespace(model="m"), Namespace(adapter="m"), Namespace(salt="m")]
    for name in names:
        assert driver.serve(range(10), name).matched == 0
    for name in names:
        assert driver.serve([*range(10), 50], name).hit == 10
    driver.check()


def test_extreme_tokens(make: Make) -> None:
    driver = make()
    largest = 2**32 - 1
    driver.serve([0, 0, largest, 0, largest])
    assert driver.serve([0, 0, largest, 0, largest, 0]).hit == 5
    assert driver.serve([0, 0, largest, 0, largest - 1]).hit == 0


def test_chunks_of_one_token_end_in_the_same_tree(make: Make) -> None:
    """Cut anywhere, a request leaves the same hits behind."""
    prompts = [range(12), [*range(6), 50, 51], [*range(9), 60], [*range(6), 70]]
    hits = []
    for chunk in (1, 3, 100):
        driver = make()
        for prompt in prompts:
            request = driver.submit(prompt, max_tokens=5)
            driver.run(request, chunk)
            driver.check()
        hits.append([driver.serve([*prompt, 99]).hit for prompt in prompts])
    assert hits[0] == hits[1] == hits[2] != [0, 0, 0, 0]


def test_an_answer_is_matchable_after_the_request(make: Make) -> None:
    driver = make(ATTENTION_ONLY)
    request = driver.submit(range(4), max_tokens=6)
    driver.step(request, [0, 1, 2, 3])
    driver.step(request, [7])
    driver.step(request, [8])
    assert driver.cache.match_prefix([0, 1, 2, 3, 7, 8, 9], Namespace(), 0.0).hit == 4
    driver.finish(request)
    assert driver.cache.match_prefix([0, 1, 2, 3, 7, 8, 9], Namespace(), 0.0).hit == 6


def test_why_tokens_were_lost(make: Make) -> None:
    driver = make()
    driver.serve(range(40))
    cache, name = driver.cache, Namespace()
    asked = [*range(30), *range(100, 110)]
    for boundaries, reason in (((30, 40), "new"), ((20, 40), "diverged"), ((), "diverged")):
        lease = cache.acquire(asked, name, 0.0, boundaries=boundaries)
        assert lease is not None and not isinstance(lease, tuple)
        assert lease.lost == {"no_checkpoint": 30, reason: 10}
        cache.drop(lease, 0.0)


def test_counters(make: Make) -> None:
    driver = make()
    driver.serve(range(10))
    driver.serve([*range(10), 50])
    driver.serve([*range(10), 60])
    stats = driver.cache.stats
    assert (stats.requests, stats.input_tokens, stats.hit_tokens, stats.matched_tokens) == (3, 32, 20, 20)
    assert (stats.request_hits, stats.checkpoints_admitted, stats.checkpoints_used) == (2, 3, 1)
    assert stats.flops_saved == 2 * HYBRID.prefix_flops(10)
    assert stats.evictions == stats.checkpoints_skipped == stats.waits == 0
