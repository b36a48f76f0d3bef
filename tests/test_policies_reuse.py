"""The life table, the rates that follow from it, and the policy that scores by them."""

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
    MOST_CERTAIN,
    NUM_BINS,
    PRIOR_HITS,
    WIDTHS,
    LifeTable,
    best_rates,
    rates_at,
    rates_now,
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


def lived(table: LifeTable, groups: list[int], before: list[float], ages: list[float]) -> None:
    table.lived(np.array(groups), np.array(before), np.array(ages))


def test_a_spell_is_exposed_in_the_bins_that_it_leaves_behind() -> None:
    table = LifeTable((2,))
    # Ages 0.2, 0.3, 0.4 and 0.6 s fall in bins 0, 1, 2 and 3.
    lived(table, [0, 0, 1], [-np.inf, 0.3, -5.0], [0.6, 0.4, 0.2])
    assert table.exposed[0, :5].tolist() == [1.0, 2.0, 1.0, 0.0, 0.0]
    assert not table.exposed[1].any(), "it is still in its first bin"
    assert not table.hits.any()
    # The next count begins where the last one ended: each bin is counted once.
    lived(table, [0], [0.6], [0.8])
    assert table.exposed[0, :5].tolist() == [1.0, 2.0, 1.0, 1.0, 0.0]


def test_a_use_ends_a_spell_in_its_bin() -> None:
    table = LifeTable((2,))
    table.used(1, -np.inf, 0.4)
    table.used(1, 0.3, 0.4)
    assert table.exposed[1, :4].tolist() == [1.0, 2.0, 2.0, 0.0]
    assert table.hits[1, :4].tolist() == [0.0, 0.0, 2.0, 0.0]
    table.fade(0.5)
    assert table.exposed[1, :4].tolist() == [0.5, 1.0, 1.0, 0.0] and table.hits[1, 2] == 1.0
    assert not table.hits[0].any() and not table.exposed[0].any()


def test_ages_of_any_size_are_counted() -> None:
    table = LifeTable((1,))
    for age in (0.0, 1e-9, 1e12):
        table.used(0, -np.inf, age)
    assert (table.hits[0, 0], table.hits[0, -1]) == (2.0, 1.0)


def test_without_counts_the_rate_falls_nearly_as_one_over_the_age() -> None:
    chances = LifeTable((2, 3)).chances()
    assert chances.shape == (6, NUM_BINS) and (chances == chances[0]).all()
    rates = best_rates(chances)[0]
    assert (np.diff(rates) < 0.0).all(), "the older, the less"
    slopes = np.diff(np.log2(rates))[4:34]
    assert slopes.min() > -0.5 and slopes.max() < -0.25, "the ages rise by half a power of two a bin"


@pytest.mark.parametrize("due", [8, 16, 26])
def test_the_hits_tell_the_unit_of_time(due: int) -> None:
    """Of 100 spells, 50 end with a use in the bins up to ``due``; the others are seen a little longer."""
    table = LifeTable((1,))
    for age in BIN_EDGES[due - 4 : due + 1]:
        for _ in range(10):
            table.used(0, -np.inf, float(age))
            table.left(0, -np.inf, float(BIN_EDGES[due + 1]))
    young, middle, old = table.chances()[0, [due - 6, due, due + 8]] / WIDTHS[[due - 6, due, due + 8]]
    untaught = LifeTable((1,)).chances()[0, [due - 6, due]] / WIDTHS[[due - 6, due]]
    assert untaught[0] > 3.0 * untaught[1]
    assert young < 1.5 * middle, "nothing tells that what is young is used sooner"
    assert middle == pytest.approx(1.0 / BIN_EDGES[due], rel=0.6)
    assert old < middle


def test_the_first_guess_keeps_to_the_counts_whatever_the_pace() -> None:
    chances = []
    for first in (6, 22):
        table = LifeTable((1,))
        for age in BIN_EDGES[first : first + 6].tolist():
            for _ in range(20):
                table.used(0, -np.inf, age)
        chances.append(table.chances()[0])
    slow, fast = chances[1][18:34], chances[0][2:18]
    assert slow == pytest.approx(fast, rel=0.35), "times 2 to the 8th, and the same"


def test_many_counts_are_taken_at_their_word() -> None:
    table = LifeTable((2,))
    table.exposed[:, :] = 1e6
    table.hits[:, :] = 2e5
    table.hits[1, :] = 4e5
    chances = table.chances()
    assert chances[0] == pytest.approx(np.full(NUM_BINS, 0.2), rel=1e-3)
    assert chances[1] == pytest.approx(np.full(NUM_BINS, 0.4), rel=1e-3)
    table.hits[:, :] = 1e6
    assert table.chances().max() == MOST_CERTAIN


def test_a_small_group_leans_on_the_wider_one() -> None:
    table = LifeTable((2,))
    table.exposed[0, :] = 1e6
    table.hits[0, :] = 1e5
    # The other group saw 10 spells of the first bin, and no use: 1 was expected.
    table.exposed[1, 0] = 10.0
    small = table.chances()[1]
    level = 0.1 * PRIOR_HITS / (1.0 + PRIOR_HITS)
    near = level * PRIOR_HITS / (10.0 * level + PRIOR_HITS)
    assert small[2:] == pytest.approx(np.full(NUM_BINS - 2, level), rel=5e-3)
    assert small[1] == pytest.approx(near, rel=5e-3), "its neighbour was seen"
    assert small[0] == pytest.approx(near * PRIOR_HITS / (10.0 * near + PRIOR_HITS), rel=5e-3)


def test_groups_that_are_not_pooled_lean_on_nothing_but_the_first_guess() -> None:
    pooled, apart = LifeTable((2,)), LifeTable((2,), pooled=False)
    for table in (pooled, apart):
        table.exposed[0, :] = 1e4
        table.hits[0, 10] = 4e3
    assert pooled.chances()[1, 10] > 5.0 * pooled.chances()[1, 20]
    assert apart.chances()[1, 10] < 3.0 * apart.chances()[1, 20]
    assert apart.chances()[0] == pytest.approx(pooled.chances()[0], abs=0.05)
    assert apart.chances().shape == pooled.chances().shape == (2, NUM_BINS)


def test_a_spell_that_is_lost_from_sight_counts_as_far_as_it_was_seen() -> None:
    table = LifeTable((2,))
    table.left(1, -np.inf, 0.6)
    table.left(1, 0.3, 0.6)
    assert table.exposed[1, :5].tolist() == [1.0, 2.0, 2.0, 0.0, 0.0] and not table.hits.any()


def test_the_best_rate_of_a_constant_chance() -> None:
    # A chance of 1/2 a bin: in a bin of width w a spell occupies 3/4 w, and sees half a use.
    rates = best_rates(np.full((1, NUM_BINS), 0.5))[0]
    assert rates[3] == pytest.approx(0.5 / (0.75 * WIDTHS[3]))
    assert rates[20] == pytest.approx(0.5 / (0.75 * WIDTHS[20])), "wider bins behind are worth less"


def test_what_is_soon_due_is_worth_keeping() -> None:
    # Never used in the first bins, then almost surely in bin 8.
    chances = np.full((1, NUM_BINS), 1e-9)
    chances[0, 8] = 0.9
    rates = best_rates(chances)[0]
    until = BIN_EDGES[7] + 0.55 * WIDTHS[8]
    assert rates[0] == pytest.approx(0.9 / until, rel=1e-3)
    assert (np.diff(rates[:9]) > 0.0).all(), "the nearer, the better"
    assert rates[9] < 1e-6 * rates[8], "and once it is over, nothing is left"


def test_the_best_rate_is_no_less_than_any_rate() -> None:
    rng = np.random.default_rng(0)
    chances = rng.uniform(0.0, MOST_CERTAIN, (5, NUM_BINS))
    rates = best_rates(chances)
    for group, first in ((0, 0), (2, 7), (4, 30)):
        best, alive, time = 0.0, 1.0, 0.0
        for last in range(first, NUM_BINS):
            left = alive * (1.0 - chances[group, last])
            time += 0.5 * (alive + left) * WIDTHS[last]
            alive = left
            best = max(best, (1.0 - alive) / time)
        assert rates[group, first] == pytest.approx(best)


def test_groups_that_are_alike_share_one_shape() -> None:
    """Two groups of one, of which the first is used at one age, and the second never."""
    apart, alike = LifeTable((1, 2)), LifeTable((1, 2), alike=1)
    for table in (apart, alike):
        for _ in range(100):
            table.used(0, -1.0, 8.0)
            table.left(0, -1.0, 20.0)
            table.left(1, -1.0, 20.0)
    first, second = alike.chances()
    free = first < MOST_CERTAIN
    assert free.sum() >= 20
    assert first[free] == pytest.approx(first[0] / second[0] * second[free]), "a factor at all ages"
    assert first[0] > 1.5 * second[0]
    first, second = apart.chances()
    assert (first / second).max() > 2 * (first / second).min()


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


def test_the_rate_now_does_not_look_ahead() -> None:
    chances = np.full((1, NUM_BINS), 0.5)
    chances[0, 8] = 0.9
    assert rates_now(chances)[0, 7:9] == pytest.approx([0.5 / (0.75 * WIDTHS[7]), 0.9 / (0.55 * WIDTHS[8])])
    assert (rates_now(chances) <= best_rates(chances) + 1e-12).all()


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


def test_rates_hold_where_bins_begin_and_lie_on_a_line_in_between() -> None:
    rates = np.arange(2 * NUM_BINS, dtype=np.float64).reshape(2, NUM_BINS) ** 2
    begins = np.concatenate(([0.0], BIN_EDGES[:-1]))
    for group in (0, 1):
        at_edges = rates_at(rates, np.full(NUM_BINS, group), begins)
        assert at_edges == pytest.approx(rates[group], rel=1e-9)
    between = np.sqrt(begins[1:-1] * begins[2:])
    halfway = rates_at(rates, np.ones(NUM_BINS - 2, dtype=np.int64), between)
    assert halfway == pytest.approx((rates[1, 1:-1] + rates[1, 2:]) / 2.0)
    far = rates_at(rates, np.array([0, 1, 0, 1]), np.array([0.1, 0.1, 1e9, 1e9]))
    assert far.tolist() == [0.0, NUM_BINS**2, (NUM_BINS - 1) ** 2, (2 * NUM_BINS - 1) ** 2]


def test_of_two_in_one_bin_the_older_one_is_nearer_to_its_end() -> None:
    """Nothing was ever used when older than 8 s: one of 7.9 s is hardly worth more than one of 8.1 s."""
    early, late, over = taught().score(columns((NOW - 5.7, FINAL), (NOW - 7.9, FINAL), (NOW - 8.1, FINAL)), NOW)
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
