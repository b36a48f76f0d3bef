"""Stack distances beside a list that is searched, and beside an LRU cache."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hybridcache.experiments.stack_distance import stack_distances

uses = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), min_size=1, max_size=30)


@given(uses)
def test_each_is_what_was_used_since(uses: list[tuple[int, int]]) -> None:
    items, sizes = [item for item, _ in uses], [float(size) for _, size in uses]
    expected = []
    for place, item in enumerate(items):
        before = [use for use in range(place) if items[use] == item]
        between = items[before[-1] + 1 : place] if before else []
        now = {other: sizes[use] for use, other in enumerate(items[:place])}
        distance = sum(now[other] for other in set(between)) + sizes[place] if before else np.inf
        expected.append(distance)
    assert stack_distances(items, sizes).tolist() == expected


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(1, 6))
def test_lru_hits_what_is_near_enough(items: list[int], capacity: int) -> None:
    cached: list[int] = []
    hits = []
    for item in items:
        hits.append(item in cached)
        cached = [*(other for other in cached if other != item), item][-capacity:]
    assert (stack_distances(items, [1.0] * len(items)) <= capacity).tolist() == hits
