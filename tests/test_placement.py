"""Where a few checkpoints save the most recomputation, against trying all choices."""

from itertools import combinations

import numpy as np
import pytest

from hybridcache.policies.placement import least_recompute


def recomputed(positions: list[int], leaves: list[float], anchor: int, chosen: tuple[int, ...]) -> float:
    """Expected tokens."""
    starts = [max([anchor, *(at for at in chosen if at <= position)]) for position in positions]
    return sum(leave * (at - start) for leave, at, start in zip(leaves, positions, starts, strict=True))


@pytest.mark.parametrize(
    ("leaves", "most", "price", "chosen"),
    [
        ([0.0, 0.0, 1.0], 4, 0.0, [300]),
        ([0.5, 0.0, 0.5], 1, 0.0, [300]),  # 300 saves 150 tokens, 100 saves 100
        ([0.9, 0.0, 0.1], 1, 0.0, [100]),
        ([0.5, 0.0, 0.5], 2, 0.0, [100, 300]),
        ([0.5, 0.0, 0.5], 2, 49.0, [100, 300]),  # with 300 there, 100 saves 50 more
        ([0.5, 0.0, 0.5], 2, 51.0, [300]),
        ([0.5, 0.0, 0.5], 2, 200.0, []),
        ([0.0, 0.0, 0.0], 4, 0.0, []),
        ([0.2, 0.2, 0.2], 1, 0.0, [200]),  # leaves spread over a path: in the middle
    ],
)
def test_literal_choices(leaves: list[float], most: int, price: float, chosen: list[int]) -> None:
    assert least_recompute([100, 200, 300], leaves, 0, most, price) == chosen


def test_nothing_to_choose_from() -> None:
    assert least_recompute([], [], 5, 4, 0.0) == []


def test_no_choice_is_better() -> None:
    rng = np.random.default_rng(0)
    for _ in range(1500):
        n, most = int(rng.integers(0, 9)), int(rng.integers(0, 5))
        positions = sorted(rng.choice(np.arange(11, 60), n, replace=False).tolist())
        leaves = np.where(rng.random(n) < 0.5, rng.random(n), 0.0).tolist()
        price = float(rng.choice([0.0, 0.5, 3.0]))
        found = least_recompute(positions, leaves, 10, most, price)
        assert found == sorted(set(found)) and len(found) <= most and set(found) <= set(positions)
        best = min(
            recomputed(positions, leaves, 10, chosen) + price * count
            for count in range(min(most, n) + 1)
            for chosen in combinations(positions, count)
        )
        cost = recomputed(positions, leaves, 10, tuple(found)) + price * len(found)
        assert cost == pytest.approx(best, abs=1e-9)


def test_a_long_path_is_chosen_from_at_once() -> None:
    positions = list(range(16, 16 * 20_001, 16))
    found = least_recompute(positions, [1e-4] * len(positions), 0, 4, 0.0)
    # Evenly spread leaves: evenly spread checkpoints.
    assert np.diff([0, *found, 320_016]) == pytest.approx(64_000, rel=0.01)
