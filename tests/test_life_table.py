"""The life table, and the rates that follow from it."""

import numpy as np
import pytest

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


def test_the_rate_now_does_not_look_ahead() -> None:
    chances = np.full((1, NUM_BINS), 0.5)
    chances[0, 8] = 0.9
    assert rates_now(chances)[0, 7:9] == pytest.approx([0.5 / (0.75 * WIDTHS[7]), 0.9 / (0.55 * WIDTHS[8])])
    assert (rates_now(chances) <= best_rates(chances) + 1e-12).all()


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
