"""Known faults of pools and eviction: pins, counts, budgets, order, what a flush gives back."""

import pytest

from hybridcache.lease import Lease
from hybridcache.policies.build import build_admission
from hybridcache.prefix_cache import RequestTooLarge
from hybridcache.spec import ModelSpec
from tests.serving import EVICTIONS, KINDS, NAMESPACE, STATE, EveryBlock, Serving, ToyLayer, joined, text

MEMORIES = ["unified", "split"]
RECURRENT = ["hybrid", "recurrent"]
WITH_KV = ["hybrid", "attention"]


@pytest.mark.parametrize("eviction", EVICTIONS)
@pytest.mark.parametrize(
    ("kind", "memory"), [("hybrid", "split"), ("attention", "split"), ("attention", "unified")]
)
def test_case_001_what_was_matched_is_pinned_first(eviction: str, kind: str, memory: str) -> None:
    """8 blocks: P has the 4 oldest, three strangers one each, one is free; P comes with 3 blocks more."""
    serving = Serving(
        KINDS[kind], blocks=8, slots=8, memory=memory, eviction=eviction, admission="final_only"
    )
    prompt, strangers = text(64), [text(16, 1 + i) for i in range(3)]
    for known in (prompt, *strangers):
        serving.serve(known)
        serving.now += 1.0
    lease = serving.begin(joined(prompt, text(48, 5)))
    assert lease.hit == 64
    assert serving.prefill(lease, chunk=16)
    serving.check()
    left = [serving.look(joined(stranger, text(1, 9))).matched for stranger in strangers]
    assert sorted(left) == [0, 0, 16]
    if eviction == "lru":
        assert left == [0, 0, 16]
    serving.end(lease)
    serving.check_idle()


@pytest.mark.parametrize("eviction", EVICTIONS)
@pytest.mark.parametrize("kind", WITH_KV)
def test_case_001_also_when_the_branch_itself_needs_a_block(eviction: str, kind: str) -> None:
    """A full pool, P the oldest and ending inside a block: the copy of that block evicts a stranger."""
    serving = Serving(
        KINDS[kind], blocks=6, slots=8, memory="split", eviction=eviction, admission="final_only"
    )
    prompt = text(60)
    serving.serve(prompt)
    for i in range(2):
        serving.now += 1.0
        serving.serve(text(16, 1 + i))
    lease = serving.begin(joined(prompt, text(10, 5)))
    assert lease.hit == 60
    assert serving.prefill(lease)
    serving.end(lease)
    serving.check_idle()


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_case_001_the_source_checkpoint_is_pinned_too(eviction: str) -> None:
    """Three slots, all checkpoints, P's the oldest: the running slot of P's continuation is a stranger's."""
    serving = Serving(KINDS["recurrent"], blocks=0, slots=3, eviction=eviction, admission="final_only")
    serving.serve(text(64))
    for i in range(2):
        serving.now += 1.0
        serving.serve(text(16, 1 + i))
    lease = serving.begin(joined(text(64), text(10, 5)))
    assert lease.hit == 64
    assert serving.prefill(lease)
    serving.end(lease)
    serving.check_idle()


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("eviction", EVICTIONS)
def test_case_030_pinned_data_are_never_freed(kind: str, eviction: str) -> None:
    """KV pinned and state not; both pinned until restored; then ask the state pool for all it has."""
    for restored in (False, True):
        serving = Serving(
            KINDS[kind], blocks=40, slots=4, memory="split", eviction=eviction, admission="final_only"
        )
        cache = serving.cache
        serving.serve(text(64))
        if restored:
            lease = serving.begin(joined(text(64), text(20, 1)))
        else:
            prompt = joined(text(64), text(20, 1))
            acquired = cache.acquire(prompt, NAMESPACE, 0.0)
            assert isinstance(acquired, Lease)
            lease = acquired
        assert lease.hit == 64
        others: list[Lease] = []
        while (other := serving.acquire(text(9, 2 + len(others)))) is not None:
            assert isinstance(other, Lease)
            others.append(other)
            serving.check() if restored else cache.check()
            assert len(others) < 4
        # The path is pinned; its checkpoint may go once it has been copied, and not before.
        assert len(others) >= 2
        if not restored:
            assert len(others) == 2
            assert serving.look(joined(text(64), text(1, 9))).hit == 64
        assert serving.look(joined(text(64), text(1, 9))).matched == 64
        for other in others:
            cache.drop(other, 0.0)
        if restored:
            assert serving.prefill(lease)
        cache.finish(lease, 84, 0.0)
        cache.check()


@pytest.mark.parametrize("kind", RECURRENT)
def test_case_030_a_pinned_leafs_state_counts_as_what_it_is(kind: str) -> None:
    """What ``usage`` calls evictable can be evicted, to the last byte."""
    serving = Serving(KINDS[kind], blocks=40, slots=4, memory="split", admission="final_only")
    cache = serving.cache
    serving.serve(text(64))
    lease = serving.begin(joined(text(64), text(20, 1)))
    usage = cache.usage()
    assert usage.state.evictable == STATE
    others = [serving.begin(text(9, 2 + i)) for i in range(2)]
    last = serving.acquire(text(9, 9))
    assert isinstance(last, Lease), "the copied checkpoint of a pinned path can go"
    for other in (*others, last, lease):
        cache.drop(other, 0.0)
    serving.check_idle()


@pytest.mark.parametrize("kind", ["attention", "recurrent"])
@pytest.mark.parametrize("eviction", EVICTIONS)
@pytest.mark.parametrize("wanted", [1, 3, 100])
def test_case_080_eviction_frees_what_was_asked(kind: str, eviction: str, wanted: int) -> None:
    """100 evictable ids of one each: 1, 3 and 100 are freed to the number."""
    serving = Serving(
        KINDS[kind],
        blocks=100,
        slots=0 if kind == "attention" else 100,
        eviction=eviction,
        admission="final_only",
    )
    cache = serving.cache
    pool = cache.store.blocks if kind == "attention" else cache.store.slots
    for i in range(100):
        serving.serve(text(16, i))
    assert pool.num_used == 100
    assert cache._reclaimer.make_room(pool.name, wanted * pool.bytes_per_id, 1.0)
    assert (pool.num_used, cache.stats.evictions) == (100 - wanted, wanted)
    serving.check_idle()


@pytest.mark.parametrize("kind", ["attention", "recurrent"])
@pytest.mark.parametrize("running", [0, 2])
def test_case_080_a_shortfall_evicts_nothing(kind: str, running: int) -> None:
    """One more than can be had is refused, and (our choice) nothing is thrown away for it."""
    serving = Serving(
        KINDS[kind], blocks=100, slots=0 if kind == "attention" else 100, admission="final_only"
    )
    cache = serving.cache
    pool = cache.store.blocks if kind == "attention" else cache.store.slots
    for i in range(98):
        serving.serve(text(16, i))
    for i in range(running):
        assert cache.reserve(serving.begin(text(16, 98 + i)), 16, 0.0)
    assert pool.num_used == 98 + running
    assert not cache._reclaimer.make_room(pool.name, (101 - running) * pool.bytes_per_id, 1.0)
    assert (pool.num_used, cache.stats.evictions) == (98 + running, 0)
    assert cache._reclaimer.make_room(pool.name, (100 - running) * pool.bytes_per_id, 1.0)
    serving.check()


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("eviction", EVICTIONS)
def test_case_080_slots_from_nodes_of_many_sizes(memory: str, eviction: str) -> None:
    """Two state slots, wanted where nodes hold 1 to 40 blocks: at most one node more goes than had to."""
    serving = Serving(blocks=230, slots=20, memory=memory, eviction=eviction, admission="final_only")
    cache = serving.cache
    for i in range(20):
        serving.serve(text(16 * (1 + i), i))
        serving.now += 1.0
    budget, state = cache.budget, STATE
    while budget.room("state") >= state:
        serving.serve(text(16, 30 + cache.stats.requests))
    evicted, room = cache.stats.evictions, budget.room("state")
    assert cache._reclaimer.make_room("state", 2 * state, serving.now)
    needed = -(-(2 * state - room) // state)
    assert 1 <= cache.stats.evictions - evicted <= needed + (0 if eviction != "block_lru" else 1)
    serving.check_idle()


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype_bytes", [1, 2, 8])
def test_case_082_the_budget_holds_at_every_instant(memory: str, kind: str, dtype_bytes: int) -> None:
    """Ten entries of 0.3 budgets, one of 1.5; checkpoints of larger dtypes count their real bytes."""
    dtype = {1: "int8", 2: "bfloat16", 8: "float64"}[dtype_bytes]
    kv = ToyLayer(kv=8)
    state = ToyLayer(state=(4_000,), dtype=dtype)
    layers = {"hybrid": (kv, state), "attention": (kv,), "recurrent": (state,)}[kind]
    spec = ModelSpec("toy", layers, d_model=8, vocab_size=16)
    assert spec.checkpoint_bytes == (0 if kind == "attention" else 4_000 * dtype_bytes)
    kv_blocks = 0 if kind == "recurrent" else 100
    slots = 0 if kind == "attention" else 4
    serving = Serving(spec, blocks=kv_blocks, slots=slots, memory=memory)
    cache = serving.cache
    for i in range(10):
        lease = serving.serve(text(480, i), text(20, 900))
        assert lease.hit == 0
        usage = cache.usage()
        assert usage.state.used == cache.store.slots.num_used * spec.checkpoint_bytes
        assert usage.kv.used == cache.store.blocks.num_used * 16 * spec.kv_bytes_per_token
        assert usage.kv.used + usage.state.used <= cache.peak_bytes <= usage.budget
        serving.check_idle()
    assert cache.stats.evictions
    before = cache.usage()
    if kind != "recurrent":
        with pytest.raises(RequestTooLarge):
            serving.acquire(text(2_400 if memory == "split" else 20_000, 99))
        assert cache.stats.requests_refused == 1
    assert cache.usage() == before
    assert serving.serve(joined(text(480, 9), text(1, 99))).hit >= 479


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_case_083_the_deepest_of_a_chain_goes_first(eviction: str) -> None:
    """A chain of three blocks with one time stamp; one block is wanted, 100 times; two are hit then."""
    for i in range(100 if eviction == "lru" else 5):
        serving = Serving(blocks=3, slots=4, memory="split", eviction=eviction, admission=EveryBlock())
        serving.serve(text(48, i))
        assert serving.cache.store.table.num_nodes == 3
        lease = serving.begin(text(1, 500))
        assert serving.cache.reserve(lease, 1, 0.0)
        serving.check()
        assert serving.look(text(48, i)) == (32, 32)


def test_case_083_block_by_block() -> None:
    """One node of three blocks: ``block_lru`` gives its last block alone."""
    serving = Serving(KINDS["attention"], blocks=3, eviction="block_lru")
    serving.serve(text(48))
    for left in (32, 16, 0):
        lease = serving.begin(text(1, 5))
        assert serving.cache.reserve(lease, 16 * (3 - left // 16), 0.0)
        assert serving.look(text(48)).matched == left
        serving.cache.drop(lease, 0.0)
        serving.check_idle()


def test_case_083_equal_scores_have_a_fixed_order() -> None:
    """Where scores and times are equal, the deeper one goes."""
    serving = Serving(KINDS["recurrent"], blocks=0, slots=9, eviction="lfu", admission=EveryBlock())
    serving.serve(text(48))
    lease = serving.begin(text(1, 5))
    taken = []
    for _ in range(3):
        serving.cache.store.refresh()
        victim = serving.cache.store.evictor.next(0.0, False, False)
        assert victim is not None
        taken.append(victim.stop)
        serving.cache._reclaimer.evict(victim, 0.0)
    assert taken == [48, 32, 16]
    serving.cache.drop(lease, 0.0)
    serving.check_idle()


@pytest.mark.parametrize("eviction", ["lru", "block_lru", "age_density", "hit_density"])
@pytest.mark.parametrize("memory", MEMORIES)
def test_case_075_what_nothing_can_use_goes_first(eviction: str, memory: str) -> None:
    """Two prompts in turn, whose reusable parts fit and whose cut-off answers do not: both hit."""
    serving = Serving(blocks=4 + 4 + 5, slots=5, memory=memory, eviction=eviction)
    hits = []
    for turn in range(10):
        for name in range(2):
            lease = serving.begin(text(64, name), max_tokens=40)
            hits.append(lease.hit)
            assert serving.prefill(lease) and serving.decode(lease, text(10, 50 + 2 * turn + name))
            # A stop string: the state is beyond the answer, so that no checkpoint covers the answer's KV.
            serving.end(lease, keep=70)
            serving.check_idle()
            serving.now += 1.0
    assert hits == [0, 0] + [63] * 18


@pytest.mark.parametrize("eviction", EVICTIONS)
@pytest.mark.parametrize("memory", MEMORIES)
def test_case_075_useless_goes_before_older_useful(eviction: str, memory: str) -> None:
    """A prompt used once, long ago, outlives ten newer answers that nothing can resume at."""
    serving = Serving(blocks=4 + 4 + 5, slots=5, memory=memory, eviction=eviction)
    serving.serve(text(64))
    for turn in range(10):
        serving.now += 1.0
        lease = serving.begin(text(64, 1), max_tokens=40)
        assert lease.hit == (63 if turn else 0)
        assert serving.prefill(lease) and serving.decode(lease, text(10, 50 + turn))
        serving.end(lease, keep=70)
    serving.check_idle()
    assert serving.serve(joined(text(64), text(1, 9))).hit == 64


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory", ["unified", "split"])
def test_case_099_tenants_that_have_nothing_left_are_forgotten(kind: str, memory: str) -> None:
    """A salt a request, in a cache for three, then all expires: of a salt only what is cached is kept."""
    blocks = 0 if kind == "recurrent" else 12
    serving = Serving(KINDS[kind], blocks=blocks, slots=4, memory=memory, ttl_seconds=100.0)
    roots = serving.cache.store.tree.roots
    for i in range(30):
        serving.serve(text(40, i), namespace=NAMESPACE._replace(salt=str(i)))
        serving.check_idle()
        assert all(root.children for root in roots.values()) and len(roots) <= 4
    assert len(roots) >= 3
    serving.now = 200.0
    serving.serve(text(1))
    assert [*roots] == [NAMESPACE]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tenants", [1, 3])
def test_case_099_a_flush_releases_everything(kind: str, tenants: int) -> None:
    """50 checkpoints, then flush, whole or by tenant: pools empty, later lookups find nothing."""
    serving = Serving(KINDS[kind], admission=build_admission("every_n", n=32))
    cache = serving.cache
    spaces = [NAMESPACE._replace(salt=str(i)) for i in range(tenants)]
    for i in range(17):
        serving.serve(text(100, i), text(7, 99), spaces[i % tenants])
    if kind != "attention":
        assert cache.store.slots.num_used > 50
    for i, space in enumerate(spaces):
        kept = [serving.look(text(100, j), spaces[j]).matched for j in range(i, tenants)]
        assert kept == [100] * len(kept), "a flush of one tenant leaves the others"
        cache.flush(space if tenants > 1 else None)
        assert serving.look(text(100, i), space) == (0, 0)
    usage = cache.usage()
    assert (usage.kv.used, usage.state.used, usage.free) == (0, 0, usage.budget)
    assert cache.store.blocks.num_used == cache.store.slots.num_used == cache.store.table.num_nodes == 0
    serving.check_idle()
    assert serving.serve(text(100), text(7, 99), spaces[0]).hit == 0
    assert serving.serve(joined(text(100), text(1, 98)), text(7, 99), spaces[0]).hit >= 96


@pytest.mark.parametrize("memory", MEMORIES)
def test_case_116_kv_and_state_have_gauges_of_their_own(memory: str) -> None:
    """16 short requests fill the state pool and a twentieth of the KV pool; idle; flushed."""
    serving = Serving(blocks=320, slots=16, memory=memory, admission="final_only")
    cache = serving.cache
    leases = [serving.begin(text(10, i)) for i in range(16)]
    for lease in leases:
        assert serving.prefill(lease)
    usage = cache.usage()
    assert usage.state == (0, 0, 16 * STATE)
    assert usage.kv.used == 16 * 16
    assert usage.kv.used + usage.state.used + usage.free == usage.budget
    for lease in leases:
        serving.end(lease)
    idle = cache.usage()
    assert idle.state == (16 * STATE, 0, 0)
    assert idle.kv == (16 * 16, 0, 0)
    lease = serving.begin(joined(text(10), text(1, 99)))
    assert cache.usage().kv.pinned == 16
    cache.drop(lease, 0.0)
    cache.flush()
    assert (cache.usage().state.used, cache.usage().kv.used, cache.usage().free) == (0, 0, idle.budget)
