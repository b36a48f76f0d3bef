"""Each loss reason from a literal lookup, and the sum over all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcache.ghost import NOTHING, GhostEntry, Gone, Remembered
from hybridcache.loss import LOSS_REASONS, Lookup, lost_tokens


def lookup(
    num_prompt: int = 100,
    hit: int = 0,
    matched: int = 0,
    goes_on: bool = False,
    boundaries: tuple[int, ...] = (100,),
) -> Lookup:
    return Lookup(num_prompt, hit, matched, goes_on, boundaries, block_size=16)


def gone(depth: int, reason: Gone = Gone.EVICTED, checkpoint: bool = True) -> GhostEntry:
    return GhostEntry(depth, 0, reason, checkpoint)


CASES = {
    "never seen": (lookup(), NOTHING, {"new": 100}),
    "all else hit": (lookup(hit=99, matched=100), NOTHING, {"last_token": 1}),
    "all else hit, whatever is remembered": (
        lookup(hit=99, matched=99, goes_on=True),
        Remembered(None, gone(100)),
        {"last_token": 1},
    ),
    "a hit, then new tokens": (lookup(hit=40, matched=40), NOTHING, {"new": 60}),
    "no checkpoint": (lookup(hit=40, matched=70), NOTHING, {"no_checkpoint": 30, "new": 30}),
    "no checkpoint at the very end": (lookup(hit=40, matched=100), NOTHING, {"no_checkpoint": 60}),
    "a checkpoint evicted": (
        lookup(hit=40, matched=70),
        Remembered(gone(60), None),
        {"checkpoint_evicted": 20, "no_checkpoint": 10, "new": 30},
    ),
    "a checkpoint evicted at the match's end": (
        lookup(hit=40, matched=70),
        Remembered(gone(70), None),
        {"checkpoint_evicted": 30, "new": 30},
    ),
    "a checkpoint expired": (
        lookup(hit=40, matched=70),
        Remembered(gone(60, Gone.EXPIRED), None),
        {"expired": 20, "no_checkpoint": 10, "new": 30},
    ),
    "KV evicted": (
        lookup(hit=40, matched=40),
        Remembered(None, gone(90)),
        {"kv_evicted": 50, "new": 10},
    ),
    "KV expired": (
        lookup(hit=40, matched=40),
        Remembered(None, gone(90, Gone.EXPIRED)),
        {"expired": 50, "new": 10},
    ),
    "a checkpoint and KV expired": (
        lookup(hit=40, matched=50),
        Remembered(gone(50, Gone.EXPIRED), gone(90, Gone.EXPIRED)),
        {"expired": 50, "new": 10},
    ),
    "everything at once": (
        lookup(hit=10, matched=40),
        Remembered(gone(30), gone(70, Gone.EXPIRED)),
        {"checkpoint_evicted": 20, "no_checkpoint": 10, "expired": 30, "new": 30},
    ),
    "diverged inside a message": (
        lookup(hit=40, matched=40, goes_on=True),
        NOTHING,
        {"diverged": 60},
    ),
    "left at a message's end": (
        lookup(hit=40, matched=40, goes_on=True, boundaries=(40, 100)),
        NOTHING,
        {"new": 60},
    ),
    "left within the first block": (
        lookup(matched=15, goes_on=True),
        NOTHING,
        {"no_checkpoint": 15, "new": 85},
    ),
    "left after the first block": (
        lookup(matched=16, goes_on=True),
        NOTHING,
        {"no_checkpoint": 16, "diverged": 84},
    ),
    "the path ends there": (lookup(hit=40, matched=40), NOTHING, {"new": 60}),
    "what was evicted explains the divergence": (
        lookup(hit=40, matched=40, goes_on=True),
        Remembered(None, gone(60)),
        {"kv_evicted": 20, "new": 40},
    ),
    "one token": (lookup(num_prompt=1, boundaries=(1,)), NOTHING, {"last_token": 1}),
}


@pytest.mark.parametrize(("asked", "ghost", "expected"), CASES.values(), ids=CASES)
def test_reasons(asked: Lookup, ghost: Remembered, expected: dict[str, int]) -> None:
    assert lost_tokens(asked, ghost) == expected


def test_every_reason_has_a_case() -> None:
    shown = {reason for _, _, expected in CASES.values() for reason in expected}
    assert shown == set(LOSS_REASONS) - {"too_large"}  # counted where a request is refused


@given(st.data())
def test_hit_and_losses_are_the_prompt(data: st.DataObject) -> None:
    num_prompt = data.draw(st.integers(1, 60))
    hit = data.draw(st.integers(0, num_prompt - 1))
    matched = data.draw(st.integers(hit, num_prompt))
    reasons = st.sampled_from(Gone)
    checkpoint = beyond = None
    if matched > hit and data.draw(st.booleans()):
        checkpoint = gone(data.draw(st.integers(hit + 1, matched)), data.draw(reasons))
    if num_prompt > matched and data.draw(st.booleans()):
        beyond = gone(data.draw(st.integers(matched + 1, num_prompt)), data.draw(reasons), False)
    boundaries = tuple(sorted(data.draw(st.sets(st.integers(1, num_prompt)))))
    asked = Lookup(num_prompt, hit, matched, data.draw(st.booleans()), boundaries, 16)
    lost = lost_tokens(asked, Remembered(checkpoint, beyond))
    assert hit + sum(lost.values()) == num_prompt
    assert set(lost) <= set(LOSS_REASONS) and all(n > 0 for n in lost.values())
