"""Known faults of time and epochs: expiry on every path, sliding lives, splits of what expires, flushes."""

import pytest

from hybridcache.lease import Lease, Wait
from hybridcache.namespace import Namespace
from hybridcache.policies.build import build_admission
from tests.serving import BLOCK, KINDS, NAMESPACE, Serving, joined, text

RECURRENT = ["hybrid", "recurrent"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ttl", ["cache", "request"])
def test_case_044_an_expired_entry_is_absent_on_every_path(kind: str, ttl: str) -> None:
    """Lookup, admission, branch, return after preemption, a sibling: none sees what has expired."""
    for age, hit in ((9.9, 64), (10.0, 0), (11.0, 0)):
        serving = Serving(KINDS[kind], ttl_seconds=10.0 if ttl == "cache" else None)
        serving.serve(text(64), ttl_seconds=None if ttl == "cache" else 10.0)
        serving.now = age
        longer = joined(text(64), text(9, 1))
        assert serving.look(longer).hit == hit
        branch = serving.look(joined(text(40), text(9, 2)))
        assert branch.matched == (40 if hit else 0)
        returned = serving.begin(longer, first=False)
        assert returned.hit == hit
        serving.end(returned, keep=0)
        assert serving.begin(joined(text(40), text(9, 3))).matched == (40 if hit else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_case_044_a_pin_keeps_the_memory_and_hides_the_entry(kind: str) -> None:
    """Expired while a request runs on it: unseen by new ones at once, freed when the pin ends."""
    serving = Serving(KINDS[kind], ttl_seconds=10.0)
    serving.serve(text(64))
    lease = serving.begin(joined(text(64), text(9, 1)))
    assert lease.hit == 64
    serving.now = 11.0
    assert serving.look(joined(text(64), text(9, 2))) == (0, 0)
    other = serving.begin(joined(text(64), text(9, 2)), waited=[64])
    assert other.hit == other.matched == 0
    serving.check()
    serving.end(other, keep=0)
    # The pinned path is still there for the one that holds it.
    assert serving.prefill(lease)
    serving.end(lease)
    assert serving.look(joined(text(64), text(9, 1), text(1, 5))).hit == 73
    serving.now = 30.0
    serving.end(serving.begin(text(1, 9)), keep=0)
    assert serving.cache.usage().free == serving.cache.usage().budget
    serving.check_idle()


@pytest.mark.parametrize("kind", RECURRENT)
def test_case_044_a_checkpoint_expires_by_itself(kind: str) -> None:
    """KV that others keep alive does not keep a checkpoint alive that nobody resumed at."""
    serving = Serving(KINDS[kind], ttl_seconds=10.0, admission="branch_and_final")
    serving.serve(text(64))
    serving.now = 6.0
    serving.serve(joined(text(64), text(60, 1)))
    serving.now = 12.0
    # The path's end was resumed at 6 s; a turn from there keeps the path alive, not the state at 64.
    serving.serve(joined(text(64), text(60, 1), text(8, 2)))
    serving.now = 16.5
    lease = serving.begin(joined(text(64), text(9, 3)))
    assert (lease.hit, lease.matched) == (0, 64)
    assert lease.lost.get("expired") == 64
    serving.end(lease, keep=0)
    assert serving.look(joined(text(64), text(60, 1), text(1, 4))).hit == 124
    serving.check_idle()


@pytest.mark.parametrize("kind", KINDS)
def test_case_081_reads_refresh_and_do_not_revive(kind: str) -> None:
    """Sliding, 10 s: read at 9 s, there at 18 s; expired at 10 s, not revived at 11 s; a new life at 12."""
    serving = Serving(KINDS[kind], ttl_seconds=10.0)
    read, unread = text(40), text(40, 1)
    serving.serve(read)
    serving.serve(unread)
    serving.now = 9.0
    lease = serving.begin(joined(read, text(1, 2)))
    assert lease.hit == 40
    serving.end(lease, keep=0)
    assert serving.look(joined(unread, text(1, 2))).hit == 40, "a look is no read"
    serving.now = 11.0
    assert serving.look(joined(read, text(1, 3))).hit == 40
    for _ in range(2):
        assert serving.look(joined(unread, text(1, 2))) == (0, 0)
    serving.now = 12.0
    assert serving.serve(unread).hit == 0
    serving.check_idle()
    serving.now = 18.9
    assert serving.look(joined(read, text(1, 3))).hit == 40
    serving.now = 19.1
    assert serving.look(joined(read, text(1, 3))).hit == 0
    serving.now = 21.9
    assert serving.serve(joined(unread, text(1, 4))).hit == 40
    serving.now = 31.8
    assert serving.serve(joined(unread, text(1, 5))).hit == 40
    serving.check_idle()
    serving.now = 50.0
    assert serving.serve(joined(unread, text(1, 6))).hit == 0
    assert serving.cache.store.blocks.num_used == serving.cache.store.blocks.blocks_for(41)
    serving.check_idle()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [1, 20, 32, 63])
def test_case_100_both_halves_of_a_split_live_as_long(kind: str, shared: int) -> None:
    """A node with a life of 10 s is split at 5 s by a prompt that shares part of it and lives 100 s."""
    serving = Serving(KINDS[kind])
    serving.serve(text(64), ttl_seconds=10.0)
    serving.check_idle()
    serving.now = 5.0
    split = serving.begin(joined(text(shared), text(9, 1)), ttl_seconds=1.0)
    serving.check()
    serving.end(split, keep=0)
    assert serving.look(joined(text(64), text(1, 2))).hit == 64
    serving.now = 9.0
    assert serving.look(joined(text(64), text(1, 2))).hit == 64
    serving.now = 10.0
    assert serving.look(joined(text(64), text(1, 2))) == (0, 0)
    serving.end(serving.begin(text(1, 9)), keep=0)
    assert serving.cache.usage().free == serving.cache.usage().budget, "no half stays behind"
    serving.check_idle()


@pytest.mark.parametrize("kind", KINDS)
def test_case_100_a_shared_half_lives_as_long_as_its_longest_child(kind: str) -> None:
    """The later expiry wins on the shared node; the other child goes by itself."""
    serving = Serving(KINDS[kind])
    serving.serve(joined(text(40), text(24, 1)), ttl_seconds=10.0)
    serving.serve(joined(text(40), text(24, 2)), ttl_seconds=100.0)
    serving.check_idle()
    serving.now = 50.0
    assert serving.look(joined(text(40), text(24, 2), text(1, 3))).hit == 64
    assert serving.look(joined(text(40), text(24, 1))).matched == 40
    serving.serve(text(1, 9))
    serving.check_idle()
    serving.now = 100.0
    assert serving.look(joined(text(40), text(24, 2))).matched == 0


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("shared", [10, 33, 48])
def test_case_100_a_split_under_a_copy_and_under_a_chosen_victim(kind: str, shared: int) -> None:
    """A node is split between ``acquire`` and ``restored``, and while it stands in the queue of victims."""
    serving = Serving(KINDS[kind], blocks=30, slots=60, memory="split", admission="final_only")
    cache = serving.cache
    for i in range(50):
        serving.serve(text(1, 100 + i))
    cache._reclaimer.make_room("state", (60 - 49) * 64, 0.0)
    serving.serve(text(64))
    serving.check_idle()
    lease = cache.acquire(joined(text(64), text(9, 1)), NAMESPACE, 0.0)
    assert isinstance(lease, Lease) and lease.state_copy is not None
    split = serving.begin(joined(text(shared), text(9, 2)), waited=range(70))
    assert cache.store.slots.refs(lease.state_copy.src_slot) == 1
    cache.check()
    cache.restored(lease)
    cache.finish(lease, 0, 0.0)
    serving.end(split, keep=0)
    serving.check_idle()
    assert serving.serve(joined(text(64), text(1, 3))).hit == 64
    serving.serve(text(20 * BLOCK, 4))
    serving.check_idle()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("namespace", [None, NAMESPACE])
def test_case_016_053_a_flush_while_requests_run(kind: str, namespace: Namespace | None) -> None:
    """Three requests run on; what they knew is gone at once, and all of it once they end."""
    serving = Serving(KINDS[kind], admission=build_admission("every_n", n=16))
    cache = serving.cache
    serving.serve(text(64))
    prompts = [joined(text(64), text(40, 1)), joined(text(64), text(30, 2)), text(50, 3)]
    leases = [serving.begin(prompt, max_tokens=30, waited=range(200)) for prompt in prompts]
    assert serving.prefill(leases[0], upto=80) and serving.prefill(leases[1])
    cache.flush(namespace)
    serving.check()
    for prompt in prompts:
        assert serving.look(prompt) == (0, 0)
    fresh = serving.begin(prompts[0])
    assert fresh.hit == 0
    for i, lease in enumerate(leases):
        assert serving.prefill(lease) and serving.decode(lease, text(20, 10 + i))
        serving.end(lease)
        serving.check()
    for prompt in prompts[1:]:
        assert serving.look(prompt).hit == 0, "a lease of the old epoch inserts nothing"
    assert serving.prefill(fresh)
    serving.end(fresh)
    assert cache.store.table.num_nodes and cache.usage().evictable
    assert serving.look(joined(prompts[0], text(1, 9))).hit == 104
    cache.flush()
    assert cache.usage().free == cache.usage().budget
    assert [serving.serve(prompt).hit for prompt in prompts] == [0, 64, 0]
    serving.check_idle()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("everything", [True, False])
def test_case_016_053_what_went_before_a_flush_is_forgotten_too(kind: str, everything: bool) -> None:
    """The namespace has nothing cached any more when it is flushed, and is remembered until then."""
    mine = Namespace("toy", salt="a")
    serving = Serving(KINDS[kind], blocks=0 if kind == "recurrent" else 12, slots=4)
    serving.serve(text(40), namespace=mine)
    for i in range(9):
        serving.serve(text(40, i + 1))
    explain = serving.cache.explain
    assert mine not in serving.cache.store.tree.roots
    gone = explain(text(40), mine, 0.0)[1]
    assert "kv_evicted" in gone
    serving.cache.flush(Namespace("toy", salt="b"))
    assert explain(text(40), mine, 0.0)[1] == gone, "another tenant's flush changes nothing"
    serving.cache.flush(None if everything else mine)
    assert explain(text(40), mine, 0.0)[1] == {"new": 40}
    assert (serving.look(joined(text(40, 9), text(1, 99))).hit == 0) == everything
    serving.check_idle()


@pytest.mark.parametrize("kind", KINDS)
def test_case_016_nobody_waits_for_a_flushed_epoch(kind: str) -> None:
    """A sibling that computes for the old epoch is nobody to wait for."""
    serving = Serving(KINDS[kind])
    old = serving.begin(text(64))
    assert isinstance(serving.acquire(joined(text(50), text(9, 1))), Wait)
    serving.cache.flush()
    new = serving.begin(joined(text(50), text(9, 1)))
    assert new.hit == 0
    assert serving.prefill(old) and serving.prefill(new)
    serving.end(old)
    serving.end(new)
    serving.check_idle()


@pytest.mark.parametrize("kind", RECURRENT)
def test_case_016_a_flush_between_the_halves_of_a_checkpoint(kind: str) -> None:
    """Flushed after ``checkpoint`` and before ``checkpointed``, and before ``restored``."""
    serving = Serving(KINDS[kind])
    cache = serving.cache
    prompt = text(50)
    lease = serving.begin(prompt)
    assert cache.reserve(lease, 49, 0.0)
    serving.forward(lease, prompt[:49])
    cache.computed(lease, prompt[:49], 0.0)
    assert cache.checkpoint(lease, 0.0) is not None
    cache.flush()
    cache.checkpointed(lease, 0.0)
    assert serving.look(prompt) == (0, 0)
    assert serving.prefill(lease)
    serving.end(lease)
    serving.check_idle()
    serving.serve(prompt)
    resumed = cache.acquire(joined(prompt, text(1, 1)), NAMESPACE, 0.0)
    assert isinstance(resumed, Lease) and resumed.hit == 50
    cache.flush()
    cache.restored(resumed)
    cache.finish(resumed, 50, 0.0)
    assert cache.usage().free == cache.usage().budget
