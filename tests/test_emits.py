"""Checkpoints that a step writes on its way, block tables, and what was freed."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridcache.attention_layer import Attention
from hybridcache.lease import Lease, Wait
from hybridcache.mamba_layer import Mamba1
from hybridcache.namespace import Namespace
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.policies.columns import BRANCH
from hybridcache.pool import BlockPool, MemoryBudget
from hybridcache.prefix_cache import PrefixCache
from hybridcache.spec import ModelSpec

NAMESPACE = Namespace("toy")
KV = Attention(d_model=4, num_heads=1, num_kv_heads=1, head_dim=2)
STATE = Mamba1(d_model=4, d_inner=4, d_state=2, dt_rank=1, d_conv=2, conv_width_stored=0)
SPEC = ModelSpec("toy", (KV, STATE), d_model=4, vocab_size=16)
BLOCK_BYTES, STATE_BYTES = 16 * 8, 32


def cache_of(admission: str = "every_n", budget_bytes: int = 1 << 20, **settings: int) -> PrefixCache:
    return PrefixCache(
        SPEC,
        budget_bytes=budget_bytes,
        eviction=build_eviction("lru"),
        admission=build_admission(admission, **settings),
    )


def text(length: int, name: int = 0) -> NDArray[np.uint32]:
    return np.arange(length, dtype=np.uint32) + np.uint32(name * 10_000)


def leased(cache: PrefixCache, prompt: NDArray[np.uint32], **options: Any) -> Lease:
    lease = cache.acquire(prompt, NAMESPACE, 0.0, **options)
    assert isinstance(lease, Lease), lease
    cache.restored(lease)
    return lease


def compute(cache: PrefixCache, lease: Lease, tokens: NDArray[np.uint32]) -> None:
    """One step with the states planned in it."""
    assert cache.reserve(lease, len(tokens), 0.0)
    cache.emits(lease, lease.num_computed + len(tokens), 0.0)
    cache.check()
    cache.computed(lease, tokens, 0.0)
    cache.check()
    cache.checkpointed(lease, 0.0)
    cache.check()


def test_states_on_the_way_become_matchable_when_the_step_is_recorded() -> None:
    cache = cache_of(n=20)
    lease = leased(cache, text(100))
    assert lease.planned == [20, 40, 60, 80, 100]
    assert cache.reserve(lease, 70, 0.0)
    emits = cache.emits(lease, 70, 0.0)
    assert [emit.position for emit in emits] == [20, 40, 60]
    assert len({lease.slot, *(emit.slot for emit in emits)}) == 4
    cache.computed(lease, text(70), 0.0)
    cache.check()
    assert cache.match_prefix(text(100), NAMESPACE, 0.0).hit == 0
    cache.checkpointed(lease, 0.0)
    cache.check()
    assert [cache.match_prefix(text(n), NAMESPACE, 0.0).hit for n in (100, 61, 60, 41, 21, 20)] == [
        *(60, 60, 40, 40, 20, 0)
    ]
    assert lease.planned == [80, 100] and cache.stats.checkpoints_skipped == 0
    compute(cache, lease, text(100)[70:])
    cache.finish(lease, 100, 0.0)
    cache.check()
    assert cache.stats.checkpoints_admitted == 5 and cache.match_prefix(text(101), NAMESPACE, 0.0).hit == 100


def test_the_end_of_a_step_may_be_one_of_them() -> None:
    cache = cache_of(n=20)
    lease = leased(cache, text(50))
    compute(cache, lease, text(40))
    assert cache.match_prefix(text(50), NAMESPACE, 0.0).hit == 40 and lease.planned == [60]


@pytest.mark.parametrize("cut", [7, 16, 33, 200])
@pytest.mark.parametrize(
    ("admission", "settings"), [("every_n", {"n": 16}), ("branch_final_prompt", {}), ("branch_and_final", {})]
)
def test_the_same_checkpoints_as_with_chunks_that_end_there(
    admission: str, settings: dict[str, int], cut: int
) -> None:
    found = []
    for on_the_way in (True, False):
        cache = cache_of(admission, **settings)
        for prompt in (
            text(90),
            np.concatenate((text(50), text(30, 1))),
            np.concatenate((text(70), text(9, 2))),
        ):
            answer = text(20, 3)
            tokens = np.concatenate((prompt, answer))
            lease = leased(cache, prompt, max_tokens=21)
            while lease.num_computed < len(tokens):
                known = len(prompt) if lease.num_computed < len(prompt) else lease.num_computed + 1
                stop = min(lease.num_computed + cut, known)
                if on_the_way:
                    compute(cache, lease, tokens[lease.num_computed : stop])
                    continue
                if lease.planned:
                    stop = min(stop, lease.planned[0])
                assert cache.reserve(lease, stop - lease.num_computed, 0.0)
                cache.computed(lease, tokens[lease.num_computed : stop], 0.0)
                if lease.planned and lease.planned[0] == stop:
                    assert cache.checkpoint(lease, 0.0) is not None
                    cache.checkpointed(lease, 0.0)
            cache.finish(lease, len(tokens), 0.0)
        stats = cache.stats
        found.append((stats.checkpoints_admitted, stats.checkpoints_skipped, stats.hit_tokens, cache.usage()))
    assert found[0] == found[1] and found[0][0] > 3


def test_a_sibling_waits_for_a_state_on_the_way() -> None:
    cache = cache_of("final_only")
    first = leased(cache, text(64))
    other = np.concatenate((text(40), text(20, 1)))
    wait = cache.acquire(other, NAMESPACE, 0.0)
    assert isinstance(wait, Wait) and wait.position == 40 and not wait.over
    assert cache.reserve(first, 64, 0.0)
    (emit,) = cache.emits(first, 64, 0.0)
    assert emit.position == 40
    cache.computed(first, text(64), 0.0)
    assert not wait.over, "the state is written but not recorded"
    cache.checkpointed(first, 0.0)
    assert wait.over
    second = leased(cache, other, waited={40})
    assert second.hit == 40
    cache.check()


def test_a_position_planned_after_the_slots_were_taken_is_skipped() -> None:
    cache = cache_of("final_only")
    first = leased(cache, text(64))
    assert cache.reserve(first, 64, 0.0) and cache.emits(first, 64, 0.0) == ()
    wait = cache.acquire(np.concatenate((text(40), text(20, 1))), NAMESPACE, 0.0)
    assert isinstance(wait, Wait)
    cache.computed(first, text(64), 0.0)
    assert wait.over and cache.stats.checkpoints_skipped == 1
    cache.check()


def test_without_room_a_state_is_skipped_and_the_request_goes_on() -> None:
    cache = cache_of(n=16, budget_bytes=4 * BLOCK_BYTES + 3 * STATE_BYTES)
    lease = leased(cache, text(64))
    assert cache.reserve(lease, 64, 0.0)
    emits = cache.emits(lease, 64, 0.0)
    cache.check()
    assert 1 <= len(emits) <= 2
    cache.computed(lease, text(64), 0.0)
    cache.checkpointed(lease, 0.0)
    cache.check()
    assert cache.stats.checkpoints_admitted == len(emits)
    assert cache.stats.checkpoints_skipped == 4 - len(emits)


def test_one_step_takes_no_more_than_a_quarter_of_the_budget_for_its_intervals() -> None:
    budget_bytes = 40 * BLOCK_BYTES
    cache = cache_of(n=1, budget_bytes=budget_bytes)
    lease = leased(cache, text(100))
    compute(cache, lease, text(50))
    compute(cache, lease, text(100)[50:])
    held = cache.store.slots.num_used - 1
    assert 10 < held * STATE_BYTES <= budget_bytes // 4


@pytest.mark.parametrize("step", [25, 100])
def test_they_are_spread_over_the_path_however_it_is_cut(step: int) -> None:
    """Room for 40 of 400 positions: the nearest to each other go, whether they are there or to come."""
    cache = cache_of(n=1, budget_bytes=40 * BLOCK_BYTES)
    tokens = text(400)
    lease = leased(cache, tokens)
    for start in range(0, 400, step):
        compute(cache, lease, tokens[start : start + step])
    stops = sorted(node.stop for node in lease.interval_nodes if node.slot is not None)
    assert len(stops) == 40 and stops[-1] == 400
    assert max(np.diff([0, *stops])) <= 40


def test_what_became_another_requests_checkpoint_is_not_thinned() -> None:
    """A node that lost its interval checkpoint may hold a branch point by now: not the request's to give."""
    cache = cache_of(n=1, budget_bytes=40 * BLOCK_BYTES)
    tokens = text(400)
    lease = leased(cache, tokens)
    compute(cache, lease, tokens[:50])
    others = [node for node in lease.interval_nodes if node.slot is not None][10:20]
    for node in others:
        cache.store.table.kind[node.row] = BRANCH
    for start in range(50, 400, 50):
        compute(cache, lease, tokens[start : start + 50])
    assert [node.slot is not None for node in others] == [True] * 10


@pytest.mark.parametrize("end", ["drop", "finish", "flush"])
def test_slots_of_a_step_that_was_not_recorded_are_freed(end: str) -> None:
    cache = cache_of(n=20)
    lease = leased(cache, text(60))
    assert cache.reserve(lease, 60, 0.0) and len(cache.emits(lease, 60, 0.0)) == 3
    if end == "flush":
        cache.flush()
        cache.check()
        cache.computed(lease, text(60), 0.0)
        cache.checkpointed(lease, 0.0)
        cache.check()
        assert cache.stats.checkpoints_admitted == 0 and cache.store.slots.num_used == 1
        cache.finish(lease, 60, 0.0)
    elif end == "drop":
        cache.drop(lease, 0.0)
    else:
        cache.finish(lease, 0, 0.0)
    cache.check()
    assert cache.usage().free == cache.budget.budget_bytes


def test_recording_before_the_tokens_are_computed_is_an_error() -> None:
    cache = cache_of(n=20)
    lease = leased(cache, text(60))
    assert cache.reserve(lease, 60, 0.0) and cache.emits(lease, 60, 0.0)
    with pytest.raises(ValueError, match="call computed first"):
        cache.checkpointed(lease, 0.0)
    cache.check()


def test_a_block_table_names_the_block_of_every_token() -> None:
    cache = cache_of("branch_final_prompt")
    rng = np.random.default_rng(0)
    placed: dict[int, int] = {}
    for name in range(30):
        cut = int(rng.integers(1, 90))
        prompt = np.concatenate((text(cut), text(int(rng.integers(1, 40)), 1 + name % 3)))
        lease = leased(cache, prompt)
        own = set(lease.blocks.tolist())
        compute(cache, lease, prompt[lease.num_computed :])
        table = cache.block_table(lease)
        assert len(table) == -(-len(prompt) // 16) and len(set(table.tolist())) == len(table)
        for index in range(lease.matched // 16):
            # Blocks of the shared path hold the tokens that they held for whoever computed them.
            assert placed[int(table[index])] == hash(prompt[: 16 * index + 16].tobytes())
            assert int(table[index]) not in own
        for index in range(len(prompt) // 16):
            placed[int(table[index])] = hash(prompt[: 16 * index + 16].tobytes())
        cache.finish(lease, len(prompt), 0.0)
        cache.check()


def test_freed_ids_are_given_once_and_only_while_they_are_free() -> None:
    pool = BlockPool(1, 1, MemoryBudget(10**6))
    rng = np.random.default_rng(1)
    held: list[int] = []
    free_before: set[int] = set()
    ever_drained: set[int] = set()
    for _ in range(400):
        freed_since: set[int] = set()
        for _ in range(int(rng.integers(0, 6))):
            if rng.random() < 0.5 and held:
                count = int(rng.integers(1, min(9, len(held)) + 1))
                rng.shuffle(held)
                gone, held = held[:count], held[count:]
                pool.release(np.array(gone, dtype=np.int64))
                freed_since |= set(gone)
            else:
                held += pool.allocate(int(rng.integers(1, 9))).tolist()
        drained = pool.drain_freed().tolist()
        free = set(range(pool.num_ids)) - set(held)
        assert len(drained) == len(set(drained)) and set(drained) == freed_since & free
        ever_drained |= set(drained)
        free_before = free
    assert not pool.drain_freed().size and len(ever_drained) > 50 and free_before
