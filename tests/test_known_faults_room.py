"""Known faults of room: what cannot fit, what fails half-way, what is optional, what only waits."""

from itertools import product

import pytest

from hybridcache.lease import Lease, Wait
from hybridcache.policies.build import build_admission
from hybridcache.prefix_cache import RequestTooLarge
from tests.serving import KINDS, NAMESPACE, Serving, joined, text

RECURRENT = ["hybrid", "recurrent"]
MEMORIES = ["unified", "split"]


@pytest.mark.parametrize("kind", KINDS)
def test_case_094_a_waiting_request_counts_once(kind: str) -> None:
    """No room for 50 steps, or a sibling to wait for: one query and one hit of 128 tokens at admission."""
    serving = Serving(KINDS[kind], blocks=20, slots=2, memory="split", admission="final_only")
    stats = serving.cache.stats
    serving.serve(text(128))
    # Long enough for every block and slot that is left.
    other = serving.begin(text(180, 1))
    assert serving.cache.reserve(other, 180, 0.0)
    prompt = joined(text(127), text(9, 2)) if kind == "attention" else joined(text(128), text(9, 2))
    counted = (stats.requests, stats.hit_tokens, stats.matched_tokens)
    for _ in range(50):
        lease = serving.acquire(prompt)
        if isinstance(lease, Lease):
            assert not serving.cache.reserve(lease, 9, 0.0)
            break
        assert (stats.requests, stats.hit_tokens, stats.matched_tokens) == counted
        serving.check()
    if not isinstance(lease, Lease):
        serving.cache.drop(other, 0.0)
        lease = serving.begin(prompt)
    assert stats.requests == counted[0] + 1
    assert stats.hit_tokens == counted[1] + lease.hit
    assert lease.hit == (127 if kind == "attention" else 128)


def test_case_094_waiting_for_a_sibling_counts_nothing() -> None:
    """A Wait is no query."""
    serving = Serving()
    stats = serving.cache.stats
    first = serving.begin(text(100))
    for _ in range(50):
        assert isinstance(serving.acquire(joined(text(80), text(9, 1))), Wait)
    assert (stats.requests, stats.input_tokens, stats.waits) == (1, 100, 50)
    assert serving.prefill(first)
    assert serving.begin(joined(text(80), text(9, 1))).hit == 80
    assert (stats.requests, stats.hit_tokens) == (2, 80)


@pytest.mark.parametrize("memory", MEMORIES)
def test_case_033_what_can_never_fit_is_refused_at_once(memory: str) -> None:
    """64 blocks of 16: 1,000 + 200 tokens, a prompt of 1,100, a state larger than its pool; controls run."""
    for kind in ("hybrid", "attention"):
        serving = Serving(KINDS[kind], blocks=64, slots=1, memory=memory, admission="final_only")
        stats = serving.cache.stats
        for length, most in ((1_000, 200), (1_100, 1), (1_000, 26), (1_025, 1)):
            with pytest.raises(RequestTooLarge, match=f"{length} prompt tokens and max_tokens={most} need"):
                serving.acquire(text(length), max_tokens=most)
        assert (stats.requests, stats.requests_refused, stats.hit_tokens) == (4, 4, 0)
        assert stats.input_tokens == 1_000 + 1_100 + 1_000 + 1_025
        assert serving.cache.peak_bytes == 0
        serving.serve(text(1_000), text(25, 1))
        # It only just fits, so also with a warm cache whose path ends in the middle of a block.
        serving.serve(joined(text(1_000)[:500], text(500, 2)), text(25, 3))
        serving.check_idle()


@pytest.mark.parametrize("kind", ["hybrid", "attention"])
@pytest.mark.parametrize("memory", MEMORIES)
def test_case_033_what_only_just_fits_ends_within_a_known_path(kind: str, memory: str) -> None:
    """The path has a block of its last tokens, and so has the request: one of them has to do."""
    for first, prompt, output in product((1, 3, 5, 9), (1, 2, 3, 5, 7), (8, 9, 12)):
        needed = -(-(prompt + output - 1) // 4)
        if first > 4 * needed:
            continue
        serving = Serving(KINDS[kind], blocks=needed, slots=1, memory=memory, block_size=4)
        serving.serve(text(9)[:first])
        for _ in range(2):
            serving.serve(text(9)[:prompt], text(output, 1))
            serving.check_idle()


@pytest.mark.parametrize("kind", ["hybrid", "attention"])
@pytest.mark.parametrize("memory", MEMORIES)
def test_case_033_what_only_just_fits_goes_on_from_nodes_with_lives_of_their_own(
    kind: str, memory: str
) -> None:
    """Nodes of one block stay apart, each with a copy of it; a request asks for one, and has none yet."""
    for blocks, length in product((2, 3, 4), (9, 11, 12, 13, 17, 30)):
        slots = 3 if memory == "split" else 1
        serving = Serving(KINDS[kind], blocks=blocks, slots=slots, memory=memory, admission="final_only")
        for known, ttl_seconds in ((3, 40.0), (5, 30.0), (8, 20.0), (9, 10.0)):
            lease = serving.begin(text(known), ttl_seconds=ttl_seconds)
            assert serving.prefill(lease)
            serving.end(lease)
            serving.check_idle()
        lease = serving.serve(joined(text(8), text(length - 8, 1)))
        assert lease.hit + sum(lease.lost.values()) == length
        serving.check_idle()


def test_case_033_a_state_that_never_fits() -> None:
    """The blocks fit and the slot does not."""
    serving = Serving(KINDS["hybrid"], blocks=64, slots=0, memory="split")
    with pytest.raises(RequestTooLarge, match="a state of 64 bytes"):
        serving.acquire(text(10))
    control = Serving(KINDS["hybrid"], blocks=64, slots=1, memory="split")
    control.serve(text(10))


@pytest.mark.parametrize("memory", MEMORIES)
def test_case_029_scheduling_that_fails_half_way_leaks_nothing(memory: str) -> None:
    """200 rounds: a request gets its slot and no blocks, or its block and no slot, and is withdrawn."""
    serving = Serving(blocks=20, slots=8, memory=memory, admission="final_only")
    cache = serving.cache
    serving.serve(text(40))
    holders = [serving.begin(text(40, 1))]
    rest = cache.store.blocks.num_used
    while cache.reserve(holders[0], 16 * (21 - rest), 0.0):
        rest -= 1
    before = cache.usage()
    for i in range(200):
        lease = serving.acquire(joined(text(39), text(200, 2)), waited=[])
        if lease is None:
            assert cache.usage() == before
        else:
            assert isinstance(lease, Lease)
            assert not cache.reserve(lease, 400, 0.0)
            if i % 2:
                serving.end(lease, keep=0)
            else:
                cache.drop(lease, 0.0)
        serving.check()
    cache.drop(holders[0], 0.0)
    serving.check_idle()


def test_case_029_a_block_without_a_slot() -> None:
    """All slots run: acquire takes a block for its branch, finds no slot, and leaves everything as it was."""
    serving = Serving(blocks=40, slots=4, memory="split", admission="final_only")
    cache = serving.cache
    serving.serve(text(40))
    running = [serving.begin(text(20, 1 + i)) for i in range(3)]
    last = serving.acquire(text(20, 9))
    assert isinstance(last, Lease), "the checkpoint makes room"
    serving.cache.drop(last, 0.0)
    running.append(serving.begin(text(20, 4)))
    for lease in running:
        assert serving.prefill(lease)
    before = cache.usage()
    for _ in range(200):
        assert serving.acquire(joined(text(20, 1)[:10], text(9, 20))) is None
        serving.check()
    assert cache.usage() == before
    for lease in running:
        serving.end(lease)
    serving.check_idle()
    assert serving.begin(joined(text(20, 4), text(1, 20))).hit == 20


@pytest.mark.parametrize("kind", RECURRENT)
def test_case_032_a_checkpoint_is_optional(kind: str) -> None:
    """Every slot runs a request: new checkpoints are skipped and counted, and the requests go on."""
    serving = Serving(
        KINDS[kind], blocks=100, slots=3, memory="split", admission=build_admission("every_n", n=16)
    )
    stats = serving.cache.stats
    leases = [serving.begin(text(200, i), max_tokens=33) for i in range(3)]
    for lease in leases:
        assert serving.prefill(lease) and serving.decode(lease, text(32, 9))
        serving.check()
    assert stats.checkpoints_skipped == 3 * ((200 + 32) // 16)
    assert stats.checkpoints_admitted == 0
    for lease in leases:
        serving.end(lease)
    serving.check_idle()
    assert stats.checkpoints_admitted == 3
    assert serving.look(joined(text(200, 2), text(33, 9))).hit == 232


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("kind", ["hybrid", "attention"])
def test_case_066_what_is_explained_is_what_happens(kind: str, memory: str) -> None:
    """What only just fits runs cold beside its path, what has room resumes, what expired is gone."""
    slots = 2 if memory == "split" else 1
    serving = Serving(
        KINDS[kind], blocks=64, slots=slots, memory=memory, ttl_seconds=100.0, admission="final_only"
    )
    cache = serving.cache
    prompt = joined(text(500), text(500, 2))
    serving.serve(text(500))
    for now, max_tokens, hit in ((1.0, 25, 0), (1.0, 1, 500), (1.0, 25, 0), (200.0, 1, 0)):
        serving.now = now
        counted = cache.stats.copy()
        told, lost = cache.explain(prompt, NAMESPACE, now, max_tokens=max_tokens)
        assert cache.stats.input_tokens == counted.input_tokens
        lease = serving.begin(prompt, max_tokens=max_tokens)
        assert (told, lost) == ((lease.hit, lease.matched), lease.lost)
        assert told.hit == hit and sum(lost.values()) == 1_000 - hit
        assert ("expired" in lost) == (now > 100)
        serving.end(lease, keep=0)
        serving.check_idle()
    with pytest.raises(RequestTooLarge, match="max_tokens=26"):
        cache.explain(prompt, NAMESPACE, 200.0, max_tokens=26)
    assert cache.stats.requests_refused == 0
