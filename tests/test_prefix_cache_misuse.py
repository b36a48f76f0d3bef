"""Calls of a cache that make no sense: each says so, and changes nothing."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from hybridcache.lease import Lease
from hybridcache.namespace import Namespace
from hybridcache.policies.build import build_admission
from tests.serving import KINDS, NAMESPACE, Serving, text

CALLS: dict[str, Callable[[Serving, Lease], Any]] = {
    "finish": lambda serving, lease: serving.cache.finish(lease, 8, 0.0),
    "drop": lambda serving, lease: serving.cache.drop(lease, 0.0),
    "restored": lambda serving, lease: serving.cache.restored(lease),
    "reserve": lambda serving, lease: serving.cache.reserve(lease, 40, 0.0),
    "computed": lambda serving, lease: serving.cache.computed(lease, [1], 0.0),
    "emits": lambda serving, lease: serving.cache.emits(lease, 40, 0.0),
    "checkpoint": lambda serving, lease: serving.cache.checkpoint(lease, 0.0),
    "checkpointed": lambda serving, lease: serving.cache.checkpointed(lease, 0.0),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_lease_of_another_cache(call: Callable[[Serving, Lease], Any]) -> None:
    """The other one has given no such id, and then has."""
    mine, other = Serving(blocks=40, slots=4), Serving(blocks=40, slots=4)
    lease = mine.begin(text(20), max_tokens=30)
    mine.prefill(lease)
    for number in range(2):
        before = mine.cache.usage(), other.cache.usage()
        with pytest.raises(ValueError, match="lease 0 is another cache's"):
            call(other, lease)
        assert (mine.cache.usage(), other.cache.usage()) == before
        for serving in (mine, other):
            serving.check()
        if not number:
            theirs = other.begin(text(12, 1))
            assert theirs.id == lease.id
            other.prefill(theirs)
    mine.end(lease)
    mine.check_idle()


@pytest.mark.parametrize("now", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("ttl_seconds", [None, 10.0])
def test_a_time_that_is_none(now: float, ttl_seconds: float | None) -> None:
    serving = Serving(ttl_seconds=ttl_seconds)
    serving.serve(text(20))
    with pytest.raises(ValueError, match=f"now={now}"):
        serving.cache.acquire(text(20), NAMESPACE, now)
    serving.check_idle()
    assert serving.serve(text(20)).hit == 19


NO_NAMESPACES = ["m", None, ("m", "", ""), Namespace(salt=5), Namespace(adapter=None)]  # type: ignore[arg-type]


@pytest.mark.parametrize("namespace", NO_NAMESPACES, ids=repr)
def test_what_is_no_namespace(namespace: Any) -> None:
    serving = Serving()
    serving.serve(text(20))
    with pytest.raises(ValueError, match="give a Namespace"):
        serving.cache.acquire(text(20), namespace, 0.0)
    if namespace is not None:
        with pytest.raises(ValueError, match="give a Namespace"):
            serving.cache.flush(namespace)
    serving.check_idle()
    assert serving.serve(text(20)).hit == 19


def test_parts_of_tokens() -> None:
    with pytest.raises(ValueError, match=r"block_size=1\.5: give the tokens of a block, a whole number"):
        Serving(block_size=1.5)  # type: ignore[arg-type]
    serving = Serving()
    with pytest.raises(ValueError, match=r"max_tokens=2\.5: give a whole number"):
        serving.acquire(text(20), max_tokens=2.5)
    serving.check_idle()


@pytest.mark.parametrize("kind", ["hybrid", "attention"])
@pytest.mark.parametrize(
    "options", [{"hints": None}, {"hints": [8.5]}, {"boundaries": 8}, {"turn_end": "8"}, {"reserve": 4.5}]
)
def test_what_is_no_position(kind: str, options: dict[str, Any]) -> None:
    """No lease is opened first: nobody could end it, and siblings would wait for it."""
    serving = Serving(KINDS[kind], blocks=2, slots=2)
    with pytest.raises(ValueError, match=f"{next(iter(options))}.*: give whole numbers of tokens"):
        serving.cache.acquire(text(20), NAMESPACE, 0.0, **options)
    serving.check_idle()
    assert serving.cache.stats.requests == 0 and not serving.cache.store.tree.roots
    serving.serve(text(20))


@pytest.mark.parametrize("first", ["emits", "checkpoint"])
@pytest.mark.parametrize("then", ["emits", "checkpoint"])
def test_a_checkpoint_that_is_still_being_written(first: str, then: str) -> None:
    """Another one waits until ``checkpointed``, or a slot would be lost; the next step need not."""
    serving = Serving(admission=build_admission("every_n", n=8))
    cache, prompt = serving.cache, text(24)
    lease = serving.begin(prompt)
    assert cache.reserve(lease, 24, 0.0)
    if first == "emits":
        cache.emits(lease, 8, 0.0)
    cache.computed(lease, prompt[:8], 0.0)
    if first == "checkpoint":
        assert cache.checkpoint(lease, 0.0)
    for _ in range(2):
        serving.cache.check()
        with pytest.raises(ValueError, match=r"checkpoints at \[8\] are being written: call checkpointed"):
            CALLS[then](serving, lease)
        if lease.num_computed == 8:
            cache.computed(lease, prompt[8:13], 0.0)
    cache.checkpointed(lease, 0.0)
    cache.check()
    assert serving.look(prompt) == (8, 13) and lease.planned == [16, 24]
    cache.computed(lease, prompt[13:], 0.0)
    cache.finish(lease, 24, 0.0)
    cache.check()
    assert serving.look(prompt) == (8, 24), "what was passed without a state there is skipped"


def test_a_model_without_states_has_none_to_emit() -> None:
    serving = Serving(KINDS["attention"])
    lease = serving.begin(text(20))
    assert not serving.cache.emits(lease, 20, 0.0)
    serving.cache.drop(lease, 0.0)


@pytest.mark.parametrize("namespace", ["m", ("m", "", "")], ids=repr)
def test_a_look_at_what_is_no_namespace(namespace: Any) -> None:
    with pytest.raises(ValueError, match="give a Namespace"):
        Serving().cache.match_prefix(text(20), namespace, 0.0)


def test_what_a_split_budget_refuses_names_the_parts() -> None:
    serving = Serving(blocks=2, slots=50, memory="split")
    with pytest.raises(ValueError, match=r"memory=split, 32 of them for blocks\): shorten"):
        serving.acquire(text(40))
