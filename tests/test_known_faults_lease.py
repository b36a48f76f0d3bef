"""Known faults of leases: concurrent prompts, withdrawal, release, what a finished request leaves behind."""

import random

import pytest

from hybridcache.lease import Lease, Wait
from hybridcache.tokens import TokenIds
from tests.serving import KINDS, NAMESPACE, Serving, joined, text

RECURRENT = ["hybrid", "recurrent"]
WITH_KV = ["hybrid", "attention"]
MEMORIES = ["unified", "split"]


@pytest.mark.parametrize("kind", WITH_KV)
@pytest.mark.parametrize("length", [128, 120, 33])
def test_case_002_the_second_insert_reads_the_trees_blocks(kind: str, length: int) -> None:
    """Two requests compute the same prompt at once; the second then points to the first's blocks."""
    serving = Serving(KINDS[kind], blocks=64, slots=12)
    cache = serving.cache
    prompt = text(length)
    first = serving.begin(prompt, max_tokens=201)
    waited = [length - 1]
    second = serving.begin(prompt, max_tokens=201, waited=waited)
    assert first.hit == second.hit == 0
    for lease in (first, second):
        assert cache.reserve(lease, length, 0.0)
    used = cache.store.blocks.num_used
    for lease in (first, second):
        assert serving.prefill(lease, chunk=50)
        serving.check()
    whole = length // 16
    assert (serving.block_table(first)[:whole] == serving.block_table(second)[:whole]).all()
    assert cache.store.blocks.num_used == used - whole, "the second's own went exactly once"
    for i in range(200):
        assert serving.decode(first, text(i + 1, 1)[i:]) and serving.decode(second, text(i + 1, 2)[i:])
        if i % 10 == 0:
            serving.serve(text(100, 3 + i), text(2, 900))
    serving.check()
    serving.end(first)
    serving.end(second)
    serving.check_idle()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("siblings", [2, 8])
@pytest.mark.parametrize("chunk", [7, 1_000])
def test_case_006_nothing_matches_before_it_is_computed(kind: str, siblings: int, chunk: int) -> None:
    """[A ... X] and [A ... Y] of 64 shared tokens, admitted in one step."""
    serving = Serving(KINDS[kind])
    shared = text(64)
    prompts = [joined(shared, text(20, 1 + i)) for i in range(siblings)]
    first = serving.begin(prompts[0])
    waits = [serving.acquire(prompt) for prompt in prompts[1:]]
    for wait in waits:
        assert isinstance(wait, Wait)
        assert (wait.lease, wait.position, wait.over) == (first, 64, False)
    assert serving.cache.reserve(first, 84, 0.0)
    assert serving.look(prompts[1]) == (0, 0)
    assert serving.prefill(first, upto=60, chunk=chunk)
    assert serving.look(prompts[1]).matched == 60
    assert not any(isinstance(wait, Wait) and wait.over for wait in waits)
    assert serving.prefill(first, chunk=chunk)
    assert all(isinstance(wait, Wait) and wait.over for wait in waits)
    later = [serving.begin(prompt, waited=[64]) for prompt in prompts[1:]]
    assert [lease.hit for lease in later] == [64] * len(later)
    for lease in [first, *later]:
        assert serving.prefill(lease)
        serving.end(lease)
    serving.check_idle()


@pytest.mark.parametrize("kind", RECURRENT)
def test_case_006_a_checkpoint_matches_once_it_is_copied(kind: str) -> None:
    """Between ``checkpoint`` and ``checkpointed`` the state is not there yet."""
    serving = Serving(KINDS[kind])
    cache, prompt = serving.cache, text(50)
    lease = serving.begin(prompt)
    assert lease.planned == [49] and cache.reserve(lease, 49, 0.0)
    serving.forward(lease, prompt[:49])
    cache.computed(lease, prompt[:49], 0.0)
    assert cache.checkpoint(lease, 0.0) is not None
    assert serving.look(joined(prompt, text(1, 1))).hit == 0
    cache.check()
    cache.drop(lease, 0.0)
    assert serving.look(joined(prompt, text(1, 1))).hit == 0
    serving.check_idle()


@pytest.mark.parametrize("end", ["finish", "drop"])
@pytest.mark.parametrize("kind", KINDS)
def test_case_006_a_sibling_runs_by_itself_when_the_first_ends(kind: str, end: str) -> None:
    """The one waited for is aborted or fails: the waiter goes on, and never waits twice for one position."""
    serving = Serving(KINDS[kind])
    first = serving.begin(joined(text(64), text(9, 1)))
    prompt = joined(text(64), text(9, 2))
    wait = serving.acquire(prompt)
    assert isinstance(wait, Wait)
    alone = serving.begin(prompt, waited=[wait.position])
    assert serving.prefill(first, upto=30)
    if end == "finish":
        serving.end(first)
    else:
        serving.cache.drop(first, 0.0)
    assert wait.over
    assert serving.prefill(alone)
    serving.end(alone)
    serving.check_idle()
    assert serving.serve(joined(prompt, text(1, 3))).hit == 73


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("suffix", [1, 2, 3, 200])
def test_case_007_009_a_stored_checkpoint_is_never_written(kind: str, suffix: int) -> None:
    """Resume from P's checkpoint, also twice at once, and decode on: P's slot keeps its content."""
    serving = Serving(KINDS[kind])
    prompt = text(64)
    serving.serve(prompt)
    leases = [serving.begin(joined(prompt, text(suffix, 1 + i)), max_tokens=51) for i in range(2)]
    for lease in leases:
        assert lease.hit == 64 and lease.state_copy is not None
        assert lease.slot == lease.state_copy.dst_slot != lease.state_copy.src_slot
        assert serving.prefill(lease)
    for i in range(50):
        assert all(serving.decode(lease, text(1, 50 + i)) for lease in leases)
        serving.check()
    for lease in leases:
        serving.end(lease)
    serving.check_idle()
    assert serving.serve(joined(prompt, text(1, 9))).hit == 64


@pytest.mark.parametrize(
    ("kind", "memory"),
    [("hybrid", "unified"), ("hybrid", "split"), ("attention", "unified"), ("recurrent", "unified")],
)
def test_case_012_requests_that_end_at_once_leave_no_orphans(kind: str, memory: str) -> None:
    """200 each: one token, stop on the first token, dropped, aborted before any work; mixed with others."""
    serving = Serving(KINDS[kind], blocks=40, slots=10, memory=memory)
    cache = serving.cache
    normal = joined(text(40), text(13, 1))
    for i in range(200 if kind == "hybrid" and memory == "unified" else 50):
        serving.serve(text(1 + i % 50, 10 + i))
        stopped = serving.begin(text(20, 300 + i), max_tokens=50)
        assert serving.prefill(stopped)
        serving.end(stopped, keep=20)
        aborted = serving.begin(joined(text(40), text(5, 600 + i)))
        serving.end(aborted, keep=0)
        failed = serving.begin(joined(text(40), text(9, 900 + i)))
        assert cache.reserve(failed, 3, 0.0)
        cache.drop(failed, 0.0)
        unrestored = cache.acquire(joined(text(40), text(7, 1_200 + i)), NAMESPACE, 0.0)
        assert isinstance(unrestored, Lease)
        cache.drop(unrestored, 0.0)
        if i % 40 == 0:
            serving.serve(normal, text(9, 2))
            serving.check_idle()
    serving.check_idle()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("withdrawn", ["finish", "drop"])
def test_case_015_a_withdrawn_step_leaves_no_key(kind: str, withdrawn: str) -> None:
    """L has 32 tokens, is scheduled to 48, and loses its blocks to Q in the same pass."""
    serving = Serving(KINDS[kind], blocks=14, slots=3, memory="split", admission="final_only")
    low = serving.begin(text(100))
    assert serving.prefill(low, upto=32)
    assert serving.cache.reserve(low, 16, 0.0)
    if withdrawn == "finish":
        # Even a scheduler that says what it had scheduled gets no more than what was computed.
        serving.end(low, keep=48)
    else:
        serving.cache.drop(low, 0.0)
    stateless = kind != "attention" and withdrawn == "drop"
    # Without KV, a path that no checkpoint covers is worth nothing and is not kept.
    known = 0 if kind == "recurrent" and stateless else 32
    assert serving.look(text(100)) == (0 if stateless else 32, known)
    serving.check_idle()
    serving.serve(text(150, 1))
    serving.check_idle()


@pytest.mark.parametrize("kind", KINDS)
def test_case_028_aborted_streams_give_everything_back(kind: str) -> None:
    """100 streams, four at a time, cut off while queued, mid-prefill, mid-decode, after."""
    serving = Serving(KINDS[kind], blocks=60, slots=12)
    rng = random.Random(28)
    running: list[tuple[Lease, TokenIds]] = []
    for i in range(100):
        if len(running) == 4:
            lease, output = running.pop(rng.randrange(4))
            stage = i % 5
            if stage >= 1:
                assert serving.prefill(lease, upto=None if stage > 1 else lease.num_computed + 3)
            if stage >= 3:
                assert serving.decode(lease, output[: 3 if stage == 3 else 7])
            serving.end(lease, keep=lease.num_computed - (i % 3 == 0))
        prompt = joined(text(20, i % 3), text(1 + rng.randrange(40), 10 + i))
        lease = serving.begin(prompt, max_tokens=8, waited=range(100))
        if i % 2:
            assert serving.prefill(lease, upto=lease.hit + 1)
        running.append((lease, text(8, 500 + i)))
        if i % 5 == 0:
            serving.check()
    for lease, _ in running:
        serving.end(lease, keep=0)
    serving.check_idle()
    serving.serve(text(60 * 16 - 200, 999))
    serving.check_idle()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 15, 16, 40])
@pytest.mark.parametrize("answer", [1, 2, 15, 16, 17, 200])
def test_case_040_one_release_frees_the_last_slot_once(kind: str, length: int, answer: int) -> None:
    """max_tokens 1 ... 200, also a stop on each block edge: exactly the sequence and its state are left."""
    spec = KINDS[kind]
    for stop in sorted({answer, min(answer, 16), min(answer, 32)}):
        serving = Serving(spec, admission="final_only")
        cache = serving.cache
        lease = serving.begin(text(length), max_tokens=answer)
        assert serving.prefill(lease) and serving.decode(lease, text(stop, 1)[:-1])
        serving.end(lease)
        left = length + stop - 1
        assert cache.store.slots.num_used == (1 if spec.checkpoint_bytes else 0)
        assert cache.store.blocks.num_used == cache.store.blocks.blocks_for(left)
        serving.check_idle()


@pytest.mark.parametrize("kind", KINDS)
def test_case_041_two_requests_with_one_prompt_are_two_leases(kind: str) -> None:
    """The same request twice at once, and again after both: ids differ, each end frees its own."""
    serving = Serving(KINDS[kind])
    prompt = text(50)
    leases = [serving.begin(prompt, waited=[49]) for _ in range(2)]
    assert len({lease.id for lease in leases}) == len(serving.cache.leases) == 2
    for lease in leases:
        assert serving.prefill(lease)
        serving.end(lease)
        serving.check()
    third = serving.begin(prompt)
    assert third.id not in {lease.id for lease in leases}
    assert third.hit == 49
    serving.end(third, keep=0)
    serving.check_idle()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampled_beyond", [0, 1, 3, 30])
def test_case_074_the_key_ends_where_the_client_stopped_reading(kind: str, sampled_beyond: int) -> None:
    """A stop string leaves the state beyond the answer: KV is cut there, the prompt's end serves turn 2."""
    serving = Serving(KINDS[kind])
    prompt, answer, beyond = text(50), text(20, 1), text(30, 2)
    lease = serving.begin(prompt, max_tokens=100)
    assert serving.prefill(lease) and serving.decode(lease, joined(answer, beyond[:sampled_beyond]))
    serving.end(lease, keep=70)
    assert serving.look(joined(prompt, answer, beyond)).matched <= 70
    serving.check_idle()
    second = serving.serve(joined(prompt, answer, text(9, 3)))
    assert second.hit == (70 if kind == "attention" or not sampled_beyond else 49)
    if kind != "recurrent":
        assert second.matched == 70
    serving.check_idle()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", ["finish", "drop"])
def test_case_076_the_second_release_is_an_error(kind: str, first: str) -> None:
    """Double finish, abort after finish, finish after a failure: refused, and no count moves."""
    serving = Serving(KINDS[kind])
    cache = serving.cache
    serving.serve(text(40))
    lease = serving.begin(joined(text(40), text(9, 1)))
    cache.restored(lease)
    serving.check()
    assert serving.prefill(lease)
    if first == "finish":
        serving.end(lease)
    else:
        cache.drop(lease, 0.0)
    before = cache.usage()
    for again in (
        lambda: serving.end(lease),
        lambda: cache.drop(lease, 0.0),
        lambda: cache.restored(lease),
        lambda: cache.reserve(lease, 1, 0.0),
        lambda: cache.checkpoint(lease, 0.0),
    ):
        with pytest.raises(ValueError, match="has ended"):
            again()
    assert cache.usage() == before
    serving.check_idle()
    lease = serving.begin(joined(text(40), text(9, 1)))
    serving.end(lease, keep=0)
    cache.flush()
    assert cache.usage().free == cache.usage().budget


@pytest.mark.parametrize("kind", KINDS)
def test_case_086_counters_never_fall_after_a_preemption(kind: str) -> None:
    """Preempted with a 64-token hit; a longer prefix is cached meanwhile; it comes back and counts once."""
    serving = Serving(KINDS[kind])
    stats = serving.cache.stats
    serving.serve(text(64))
    prompt = text(200)
    lease = serving.begin(prompt)
    assert lease.hit == 64 and serving.prefill(lease, upto=70)
    serving.end(lease, keep=0)
    serving.serve(text(130))
    counted = (stats.requests, stats.input_tokens, stats.hit_tokens, stats.flops_saved)
    again = serving.begin(prompt, first=False)
    assert again.hit == 130
    assert (stats.requests, stats.input_tokens, stats.hit_tokens, stats.flops_saved) == counted
    assert sum(again.lost.values()) == 70
    serving.end(again, keep=0)
    assert serving.begin(prompt).hit == 130
    assert (stats.requests, stats.hit_tokens) == (counted[0] + 1, counted[2] + 130)
