"""Each eviction policy picks the victim that its rule names, and scores rise with a node's worth."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache.policies.build import EVICTION, build_eviction
from hybridcache.policies.columns import BRANCH, FINAL, Columns, Facts
from hybridcache.policies.gdsf import Gdsf
from hybridcache.policies.hit_density import (
    BIN_EDGES,
    EVENTS_PER_UPDATE,
    LEARNT_BIN,
    LEAST_EVENTS,
    HitDensity,
    class_index,
)

NOW = 100.0
ALL = sorted(EVICTION)
Value = list[float] | list[int]


def columns(**facts: Value) -> Columns:
    """Nodes that differ in ``facts`` and are alike in all else: accessed at 50 s, one FLOP a byte saved."""
    n = len(next(iter(facts.values())))
    like: dict[str, Value] = {
        "accessed": [50.0] * n,
        "path_accessed": [50.0] * n,
        "hits": [0] * n,
        "children": [0] * n,
        "kind": [FINAL] * n,
        "flops_saved": [100.0] * n,
        "bytes_freed": [100.0] * n,
        "prefix_bytes": [400.0] * n,
        "depth": [10] * n,
        "clock": [0.0] * n,
        **facts,
    }
    blank = Columns.blank(n)
    return Columns(**{name: np.array(like[name], dtype=getattr(blank, name).dtype) for name in like})


def victim(name: str, nodes: Columns, **settings: float) -> int:
    return int(build_eviction(name, **settings).score(nodes, NOW).argmin())


@pytest.mark.parametrize(
    ("name", "values", "nodes", "expected"),
    [
        ("lru", {}, columns(path_accessed=[30.0, 10.0, 20.0], accessed=[1.0, 9.0, 5.0]), 1),
        ("lru", {}, columns(path_accessed=[3.0, 2.0], hits=[0, 9], flops_saved=[1.0, 900.0]), 1),
        ("block_lru", {}, columns(path_accessed=[30.0, 10.0, 20.0], accessed=[1.0, 9.0, 5.0]), 1),
        ("lfu", {}, columns(hits=[2, 1, 3], accessed=[1.0, 99.0, 1.0]), 1),
        ("lfu", {}, columns(hits=[1, 1, 1], accessed=[3.0, 2.0, 4.0]), 1),
        ("gdsf", {}, columns(flops_saved=[8.0, 9.0], bytes_freed=[1.0, 2.0]), 1),
        ("gdsf", {}, columns(hits=[0, 1], flops_saved=[10.0, 4.0], bytes_freed=[1.0, 1.0]), 1),
        ("gdsf", {}, columns(clock=[5.0, 0.0], flops_saved=[1.0, 5.0], bytes_freed=[1.0, 1.0]), 1),
        ("marconi", {"alpha": 0.0}, columns(accessed=[3.0, 2.0, 4.0], flops_saved=[1.0, 900.0, 1.0]), 1),
        ("marconi", {"alpha": 9.0}, columns(accessed=[3.0, 4.0], flops_saved=[900.0, 1.0]), 1),
        # Recency 0, 1/2, 1 and 1, 0, 1/2 of the FLOPs per byte: with alpha 1 the middle one goes.
        ("marconi", {}, columns(accessed=[0.0, 5.0, 10.0], flops_saved=[300.0, 100.0, 200.0]), 1),
        # Large, but it saves more per byte than the small one: the paper's code would evict it.
        ("marconi", {}, columns(flops_saved=[900.0, 5.0], bytes_freed=[90.0, 1.0]), 1),
        # The published rule divides by the whole prefix's memory: the deep one goes.
        ("marconi_published", {}, columns(flops_saved=[9.0, 9.0], prefix_bytes=[10.0, 90.0]), 1),
        ("marconi", {}, columns(accessed=[3.0, 2.0], flops_saved=[9.0, 9.0], prefix_bytes=[90.0, 10.0]), 1),
        ("marconi_published", {"alpha": 0.0}, columns(accessed=[3.0, 2.0], prefix_bytes=[90.0, 1.0]), 1),
        # The state used longest ago, wherever it stands; of those used together the one nearest the root.
        ("state_lru", {}, columns(path_accessed=[30.0, 10.0, 20.0], children=[0, 3, 0]), 1),
        ("state_lru", {}, columns(depth=[900, 100, 500]), 1),
        ("state_lru", {}, columns(path_accessed=[10.0, 10.1], depth=[10**6, 1]), 0),
        ("age_density", {}, columns(flops_saved=[8.0, 9.0], bytes_freed=[1.0, 2.0]), 1),
        ("age_density", {}, columns(accessed=[99.0, 10.0]), 1),
        # 1 / (1 + 90/30) of 3 is less than 1 / (1 + 10/30) of 1; with a long memory it is more.
        ("age_density", {}, columns(accessed=[90.0, 10.0], flops_saved=[1.0, 2.9]), 1),
        ("age_density", {"tau_seconds": 1e6}, columns(accessed=[10.0, 90.0], flops_saved=[3.0, 1.0]), 1),
        ("hit_density", {}, columns(accessed=[99.0, 10.0]), 1),
        ("reuse_rate", {}, columns(accessed=[99.0, 10.0]), 1),
        ("reuse_rate", {}, columns(flops_saved=[8.0, 9.0], bytes_freed=[1.0, 2.0]), 1),
        ("hit_density", {}, columns(flops_saved=[8.0, 9.0], bytes_freed=[1.0, 2.0]), 1),
    ],
)
def test_the_victim(name: str, values: dict[str, float], nodes: Columns, expected: int) -> None:
    assert victim(name, nodes, **values) == expected


USES = {
    "accessed": {"lfu", "marconi", "marconi_published", "age_density", "hit_density", "reuse_rate"},
    "path_accessed": {"lru", "block_lru", "state_lru"},
    "hits": {"lfu", "gdsf"},
    "flops_saved": {"gdsf", "marconi", "marconi_published", "age_density", "hit_density", "reuse_rate"},
    "bytes_freed": {"gdsf", "marconi", "age_density", "hit_density", "reuse_rate"},
    "prefix_bytes": {"marconi_published"},
    "clock": {"gdsf"},
}
"""Facts that move a score; bytes lower it, the others raise it."""


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("fact", USES)
@settings(max_examples=25, deadline=None)
@given(low=st.integers(1, 40), high=st.integers(1, 40), other=st.integers(1, 40))
def test_scores_rise_with_worth(name: str, fact: str, low: int, high: int, other: int) -> None:
    low, high = sorted((low, high))
    scores = build_eviction(name).score(columns(**{fact: [low, high, other]}), NOW)
    assert np.isfinite(scores).all()
    if name not in USES[fact] or low == high:
        assert scores[0] == scores[1]
        return
    worse, better = (1, 0) if fact in ("bytes_freed", "prefix_bytes") else (0, 1)
    # These know an age by its bin only.
    assert scores[worse] < scores[better] or (
        name in ("hit_density", "reuse_rate") and fact == "accessed" and scores[0] == scores[1]
    )


@pytest.mark.parametrize("name", ALL)
def test_scoring_modifies_nothing(name: str) -> None:
    nodes = columns(accessed=[3.0, 2.0, 4.0], hits=[1, 2, 3])
    policy = build_eviction(name)
    before = {field: getattr(nodes, field).copy() for field in Columns.__dataclass_fields__}
    first = policy.score(nodes, NOW).copy()
    assert (policy.score(nodes, NOW) == first).all()
    for field, values in before.items():
        assert (getattr(nodes, field) == values).all(), field


@pytest.mark.parametrize("name", ALL)
def test_no_rows_have_no_scores(name: str) -> None:
    assert build_eviction(name).score(Columns.blank(0), NOW).shape == (0,)


@pytest.mark.parametrize("name", ALL)
def test_only_what_learns_has_learnt(name: str) -> None:
    learnt = build_eviction(name).learnt()
    assert bool(learnt) == (name in ("hit_density", "reuse_rate"))
    assert all(type(value) is float and np.isfinite(value) for value in learnt.values())


def test_which_take_leaves_and_blocks_only() -> None:
    assert {name for name in ALL if build_eviction(name).leaves_only} == {"lru", "block_lru"}
    assert {name for name in ALL if build_eviction(name).by_block} == {"block_lru"}


def facts(
    accessed: float, hits: int = 0, kind: int = FINAL, clock: float = 0.0, flops: float = 100.0
) -> Facts:
    return Facts(accessed, hits, 0, kind, flops, 100.0, clock, 10)


def test_gdsf_clock_follows_the_victims_and_never_falls() -> None:
    policy = Gdsf()
    policy.on_evict(facts(0.0, hits=2), NOW)
    assert policy.clock == 3.0
    policy.on_evict(facts(0.0), NOW)
    assert policy.clock == 3.0
    policy.on_evict(facts(0.0, clock=3.0), NOW)
    assert policy.clock == 4.0
    policy.on_hit(facts(0.0, hits=9), NOW)
    assert policy.clock == 4.0
    policy.reset()
    assert policy.clock == 0.0


def learnt(early_hits: int, late_evictions: int) -> HitDensity:
    """Request ends: hit at an age of 1 s, or evicted at 1000 s. Branch points: the reverse."""
    policy = HitDensity()
    for _ in range(early_hits):
        policy.on_hit(facts(NOW - 1.0), NOW)
        policy.on_evict(facts(NOW - 1.0, kind=BRANCH), NOW)
    for _ in range(late_evictions):
        policy.on_evict(facts(NOW - 1000.0), NOW)
        policy.on_hit(facts(NOW - 1000.0, kind=BRANCH), NOW)
    return policy


def test_hit_density_learns_when_a_class_is_hit() -> None:
    policy = learnt(early_hits=EVENTS_PER_UPDATE // 4, late_evictions=EVENTS_PER_UPDATE // 4)
    ages = columns(accessed=[NOW, NOW - 3.0, NOW - 900.0] * 2, kind=[FINAL] * 3 + [BRANCH] * 3)
    young, older, old, *branch = policy.score(ages, NOW).tolist()
    assert young > 10 * older, "it was hit early"
    assert older == old == 0.0, "and never after"
    assert branch[2] > branch[1] > 0.0, "the other class is hit late"
    assert branch[2] > 100 * old


def test_hit_density_shows_what_it_learnt() -> None:
    assert BIN_EDGES[LEARNT_BIN] == 32.0
    assert set(HitDensity().learnt().values()) == {1.0 / 33.0}
    policy = HitDensity()
    for _ in range(EVENTS_PER_UPDATE // 2):
        policy.on_hit(facts(NOW - 40.0), NOW)
        policy.on_evict(facts(NOW - 40.0, kind=BRANCH), NOW)
    shown = policy.learnt()
    # All go in the bin that ends at 45.25 s, 13.25 s after the age shown; its own width counts too.
    assert shown["request end, 0 hits"] == pytest.approx(1.0 / (BIN_EDGES[15] - 32.0 + 0.25))
    assert shown["request end, 1 hit"] == shown["other, 3 hits"] == 1.0 / 33.0
    assert set(HitDensity().learnt()) == set(shown), "the names stay"


def test_hit_density_learns_each_class_by_itself() -> None:
    policy = learnt(early_hits=EVENTS_PER_UPDATE // 4, late_evictions=EVENTS_PER_UPDATE // 4)
    untouched = class_index(0, 2, 1)
    assert policy.density[untouched] == pytest.approx(1.0 / (1.0 + BIN_EDGES))
    assert policy.density[class_index(0, 0, 0)] != pytest.approx(1.0 / (1.0 + BIN_EDGES))


def test_hit_density_falls_back_on_age_below_twenty_counts() -> None:
    for count, known in ((int(LEAST_EVENTS) - 1, False), (int(LEAST_EVENTS), True)):
        policy = HitDensity()
        for _ in range(count):
            policy.on_evict(facts(NOW - 1.0, hits=1), NOW)
        for _ in range(EVENTS_PER_UPDATE - count):
            policy.on_evict(facts(NOW - 1.0), NOW)
        density = policy.density[class_index(0, 1, 0)]
        assert (density[0] == pytest.approx(0.8)) is not known
        assert (density == 0.0).all() == known, "evicted, never hit"


def hit_then_evicted(updates_between: int) -> float:
    """Density of new request ends after 100 hits, a pause, and 100 evictions, at the age of a second."""
    policy = HitDensity()
    for _ in range(100):
        policy.on_hit(facts(NOW - 1.0), NOW)
    for _ in range(EVENTS_PER_UPDATE * updates_between):
        policy.on_hit(facts(NOW - 1.0, kind=BRANCH), NOW)
    for _ in range(100):
        policy.on_evict(facts(NOW - 1.0), NOW)
    return float(policy.density[class_index(0, 0, 0), 0])


def test_hit_density_forgets_what_is_long_ago() -> None:
    assert hit_then_evicted(0) > 1.3 * hit_then_evicted(20) > 0.0


def test_reset() -> None:
    policy = learnt(early_hits=EVENTS_PER_UPDATE // 4, late_evictions=EVENTS_PER_UPDATE // 4)
    policy.on_hit(facts(NOW), NOW)
    policy.reset()
    new = HitDensity()
    assert (policy.density == new.density).all()
    for _ in range(EVENTS_PER_UPDATE):
        policy.on_evict(facts(NOW - 1.0), NOW)
        new.on_evict(facts(NOW - 1.0), NOW)
    assert (policy.density == new.density).all()


def test_hit_density_counts_all_ages() -> None:
    policy = HitDensity()
    for age in (0.0, 0.25, 1e-9, BIN_EDGES[-1], 1e12):
        policy.on_hit(facts(NOW - age), NOW)
    scores = policy.score(columns(accessed=[NOW, NOW - 1e12, NOW + 5.0]), NOW)
    assert np.isfinite(scores).all()


def test_classes_are_all_different() -> None:
    classes = [
        class_index(kind, hits, children) for kind in (0, 1) for hits in range(4) for children in range(3)
    ]
    assert sorted(classes) == list(range(24))


@pytest.mark.parametrize(
    ("name", "values", "word"),
    [
        ("mru", {}, "mru.*choose one of"),
        ("marconi", {"alpha": -1.0}, "alpha=-1"),
        ("marconi", {"alpha": float("nan")}, "alpha=nan"),
        ("age_density", {"tau_seconds": 0.0}, "tau_seconds=0"),
        ("marconi_published", {"alpha": -1.0}, "alpha=-1"),
        ("marconi_tuned", {"alphas": []}, r"alphas=\[\]: give a list"),
        ("marconi_tuned", {"alphas": 0.5}, "alphas=0.5: give a list"),
        ("marconi_tuned", {"alphas": ["a"]}, r"alphas=\['a'\]: give a list of weights"),
        ("marconi_tuned", {"once": "perhaps"}, "once='perhaps': give true or false"),
        ("marconi_tuned", {"published": 1}, "published=1: give true or false"),
        ("marconi_tuned", {"alphas": [0.0, -1.0]}, "alpha=-1.0"),
        ("marconi_tuned", {"window": 0.0}, "window=0.0: give"),
        ("lru", {"alpha": 1.0}, "does not take"),
    ],
)
def test_bad_settings_are_refused(name: str, values: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        build_eviction(name, **values)
