"""The policy that scores by the learnt rate of reuse."""

import numpy as np
import pytest

from hybridcache.policies.columns import (
    BRANCH,
    FINAL,
    FOLLOW_UP,
    NUM_KINDS,
    REQUEST_ENDS,
    Census,
    Columns,
    Facts,
)
from hybridcache.policies.life_table import (
    BIN_EDGES,
)
from hybridcache.policies.reuse_rate import (
    EVENTS_PER_CENSUS,
    FIRST_CENSUS,
    GROUPS,
    LEARNT_AGE,
    MAX_CHILDREN,
    MAX_HITS,
    ReuseRate,
    group_of,
    groups_of,
)

NOW = 1000.0


def census(*positions: tuple[float, int, int, int, int]) -> Census:
    """Positions of (accessed, hits, children, kind, depth)."""
    accessed, hits, children, kind, depth = np.array(positions).T if positions else np.empty((5, 0))
    whole = (hits.astype(np.int64), children.astype(np.int64), kind.astype(np.int8), depth.astype(np.int64))
    return Census(accessed, *whole)


def facts(accessed: float, *, hits: int = 0, kind: int = FINAL, depth: int = 10, children: int = 0) -> Facts:
    return Facts(accessed, hits, children, kind, 100.0, 100.0, 0.0, depth)


@pytest.mark.parametrize("follow_ups", [True, False])
def test_a_conversation_that_has_gone_on_is_told_from_a_single_question(follow_ups: bool) -> None:
    """Ends of follow-ups are used after 8 s, ends of first questions never; all else is alike."""
    policy = ReuseRate(follow_ups=follow_ups)
    for _ in range(EVENTS_PER_CENSUS):
        policy.on_hit(facts(NOW - 8.0, kind=FOLLOW_UP), NOW)
    policy.census(census(*[(NOW - 500.0, 0, 0, FINAL, 10)] * 100), NOW)
    follow_up, first = policy.score(columns((NOW - 4.0, FOLLOW_UP), (NOW - 4.0, FINAL)), NOW)
    assert (follow_up > 5 * first > 0) == follow_ups
    assert (follow_up == first) != follow_ups


def test_groups() -> None:
    each = [
        (NOW, hits, children, kind, depth)
        for kind in (FINAL, BRANCH)
        for hits in range(MAX_HITS + 1)
        for children in range(MAX_CHILDREN + 1)
        for depth in (1, 2048, 8192, 32768)
    ]
    groups = groups_of(census(*each)).tolist()
    assert groups == list(range(0, int(np.prod(GROUPS)), 2))
    follow_ups = [(*facts[:3], FOLLOW_UP, facts[4]) for facts in each if facts[3] == FINAL]
    assert groups_of(census(*follow_ups)).tolist() == [group + 1 for group in groups[: len(follow_ups)]]
    assert {group_of(kind, 1, 1, 1) for kind in range(NUM_KINDS) if kind not in REQUEST_ENDS} == {
        group_of(BRANCH, 1, 1, 1)
    }
    assert groups == [group_of(kind, hits, children, depth) for _, hits, children, kind, depth in each]
    assert group_of(FINAL, 99, 99, 10**6) == groups_of(census((NOW, 99, 99, FINAL, 10**6)))[0]
    assert group_of(FINAL, 0, 0, 2047) == group_of(FINAL, 0, 0, 1)


def taught() -> ReuseRate:
    """Request ends are used after 8 s, or never; branch points of the same age never."""
    policy = ReuseRate()
    for _ in range(EVENTS_PER_CENSUS):
        policy.on_hit(facts(NOW - 8.0), NOW)
    assert policy.wants_census
    policy.census(census(*[(NOW - 500.0, 0, 0, BRANCH, 10)] * 100), NOW)
    return policy


def columns(*positions: tuple[float, int]) -> Columns:
    """Positions of (accessed, kind), alike in all else."""
    nodes = Columns.blank(len(positions))
    nodes.accessed[:], nodes.kind[:] = np.array(positions).T
    nodes.flops_saved[:], nodes.bytes_freed[:], nodes.depth[:] = 100.0, 100.0, 10
    return nodes


def test_of_two_in_one_bin_the_older_one_is_nearer_to_its_end() -> None:
    """Nothing was ever used when older than 8 s: one of 7.9 s is hardly worth more than one of 8.1 s."""
    ages = [(NOW - age, FINAL) for age in (5.7, 7.9, 8.1)]
    early, late, over = taught().score(columns(*ages), NOW)
    assert over < late < 0.3 * early


def test_it_learns_when_each_kind_is_used() -> None:
    policy = taught()
    assert not policy.wants_census
    young, due, over, branch = policy.score(
        columns((NOW, FINAL), (NOW - 7.0, FINAL), (NOW - 30.0, FINAL), (NOW - 7.0, BRANCH)), NOW
    ).tolist()
    assert due > 2.0 * young > 0.0, "it will be used at 8 s"
    assert young > 2.0 * over, "not after that"
    assert due > 20.0 * branch
    untaught = ReuseRate().score(columns((NOW - 7.0, BRANCH)), NOW)[0]
    assert branch < untaught / 3.0


def test_it_shows_what_it_learnt() -> None:
    new = ReuseRate().learnt()
    assert len(set(new.values())) == 1 and 0.2 < 32.0 * new["other, 0 hits"] < 1.0
    policy = ReuseRate()
    for _ in range(EVENTS_PER_CENSUS):
        policy.on_hit(facts(NOW - 34.0, hits=3, kind=BRANCH, depth=4096, children=2), NOW)
    policy.census(census(*[(NOW - 500.0, 0, 0, FINAL, 4096)] * 100), NOW)
    shown = policy.learnt()
    bin_that_begins_there = BIN_EDGES.tolist().index(LEARNT_AGE) + 1
    group = group_of(BRANCH, 3, 2, 4096)
    assert shown["other, 3 hits"] == policy.rates[group, bin_that_begins_there]
    assert shown["other, 3 hits"] > 2.0 * new["other, 3 hits"], "used a little after that age, each time"
    assert shown["request end, 0 hits"] < 0.5 * new["request end, 0 hits"], "never used in 500 s"
    assert set(shown) == set(new), "the names stay"


def test_a_return_counts_as_a_hit() -> None:
    hits, returns = ReuseRate(), ReuseRate()
    for _ in range(EVENTS_PER_CENSUS):
        hits.on_hit(facts(NOW - 8.0), NOW)
        returns.on_return(facts(NOW - 8.0), NOW)
    assert returns.wants_census
    hits.census(census(), NOW)
    returns.census(census(), NOW)
    assert (hits.rates == returns.rates).all()


def test_evictions_teach_nothing() -> None:
    policy = ReuseRate()
    for _ in range(EVENTS_PER_CENSUS):
        policy.on_evict(facts(NOW - 8.0), NOW)
    assert not policy.table.exposed.any() and policy.wants_census


def test_one_that_does_not_remember_sees_positions_until_they_go() -> None:
    policy = ReuseRate(remember=False)
    assert not policy.remembers and policy.revives
    policy.on_evict(facts(NOW - 1.0), NOW)
    assert policy.table.exposed.sum() == 4.0, "bins 0 to 3; 1 s lies in the next"


def test_its_parts_can_be_taken_away() -> None:
    assert ReuseRate().remembers and ReuseRate().revives
    assert not ReuseRate(revive=False).revives
    whole, now, apart = ReuseRate(), ReuseRate(look_ahead=False), ReuseRate(pooled=False)
    for policy in (whole, now, apart):
        for _ in range(EVENTS_PER_CENSUS):
            policy.on_hit(facts(NOW - 8.0), NOW)
        policy.census(census(*[(NOW - 500.0, 0, 0, BRANCH, 10)] * 100), NOW)
    cell = group_of(FINAL, 0, 0, 10), 3
    assert now.rates[cell] < whole.rates[cell], "no use at the age of 1 s, but soon"
    other = group_of(FINAL, 3, 2, 10), 10
    assert whole.rates[other] > 2.0 * apart.rates[other], "request ends are used, and that is all it knows"


def test_a_census_counts_what_has_passed_since_the_last() -> None:
    policy = ReuseRate()
    policy.census(census((NOW - 1.0, 0, 0, FINAL, 10)), NOW)
    once = policy.table.exposed.sum()
    policy.census(census((NOW - 1.0, 0, 0, FINAL, 10)), NOW)
    assert policy.table.exposed.sum() == once == 4.0, "bins 0 to 3; 1 s lies in the next"
    policy.on_hit(facts(NOW - 1.0), NOW)
    assert policy.table.exposed.sum() == 5.0


def events_until_a_census(policy: ReuseRate) -> int:
    events = 0
    while not policy.wants_census:
        policy.on_evict(facts(NOW), NOW)
        events += 1
    return events


def test_the_first_counts_come_soon() -> None:
    policy, events = ReuseRate(), []
    for _ in range(6):
        events.append(events_until_a_census(policy))
        policy.census(census(), NOW)
    assert events == [FIRST_CENSUS * 2**i for i in range(3)] + [EVENTS_PER_CENSUS] * 3


def test_many_positions_are_counted_less_often() -> None:
    policy = ReuseRate()
    policy.census(census(*[(NOW, 0, 0, FINAL, 10)] * 30_000), NOW)
    assert events_until_a_census(policy) == 300


def test_what_is_long_ago_fades() -> None:
    policy = taught()
    before = policy.table.hits.sum()
    for _ in range(EVENTS_PER_CENSUS):
        policy.on_evict(facts(NOW), NOW)
    policy.census(census(), NOW)
    assert policy.table.hits.sum() == pytest.approx(before * 0.98**0.5)


def test_reset() -> None:
    policy = taught()
    policy.reset()
    assert (policy.rates == ReuseRate().rates).all() and not policy.table.exposed.any()
    policy.on_hit(facts(NOW - 1.0), NOW)
    assert policy.table.exposed.sum() == 5.0, "it began after the last census, there being none"
