"""The evictor: batches of 2%, changed nodes passed over, and policies that fail."""

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridcache.evictor import Evictor
from hybridcache.node import NO_IDS, Node
from hybridcache.node_table import INNER, LEAF, NOT_EVICTABLE, NodeTable
from hybridcache.policies.columns import Columns, Facts
from hybridcache.policies.eviction import EvictionPolicy
from hybridcache.policies.lfu import Lfu
from hybridcache.policies.lru import Lru
from tests.serving import KINDS, Serving, text

Scores = NDArray[np.float64]


class ByHits(EvictionPolicy):
    """The node with the fewest hits goes."""

    name: ClassVar[str] = "by_hits"

    def score(self, columns: Columns, now: float) -> Scores:
        return columns.hits.astype(np.float64)


def filled(n: int, state: int = LEAF) -> NodeTable:
    """``n`` nodes; node i has i hits, and was accessed at n - i seconds."""
    table = NodeTable()
    for i in range(n):
        node = Node(None, i, b"\0\0\0\0", NO_IDS)
        row = table.add(node, now=float(n - i), clock=0.0)
        table.hits[row] = i
        table.state[row] = state
    return table


def take(evictor: Evictor, n: int, frees_state: bool = False, frees_kv: bool = False) -> list[int]:
    """Evict ``n`` nodes; the rows they had, in order."""
    rows = []
    for _ in range(n):
        node = evictor.next(1000.0, frees_state, frees_kv)
        if node is None:
            break
        rows.append(node.row)
        evictor.table.remove(node)
    return rows


def node_of(table: NodeTable, row: int) -> Node:
    node = table.nodes[row]
    assert node is not None
    return node


def test_the_lowest_go_first_and_two_percent_at_a_time() -> None:
    evictor = Evictor(filled(1000), ByHits())
    assert take(evictor, 20) == list(range(20)) and evictor.num_scorings == 1
    assert take(evictor, 1) == [20] and evictor.num_scorings == 2
    assert take(evictor, 979) == list(range(21, 1000))
    assert take(evictor, 1) == []


def test_few_candidates_go_one_by_one() -> None:
    evictor = Evictor(filled(50), ByHits())
    take(evictor, 10)
    assert evictor.num_scorings == 10


def test_a_node_that_changed_since_is_passed_over() -> None:
    table = filled(1000)
    evictor = Evictor(table, ByHits())
    take(evictor, 1)
    node = node_of(table, 1)
    node.version += 1
    table.hits[1] = 5000
    assert take(evictor, 18) == list(range(2, 20))
    assert evictor.num_scorings == 1


def test_a_node_that_left_since_is_passed_over() -> None:
    table = filled(1000)
    evictor = Evictor(table, ByHits())
    take(evictor, 1)
    table.remove(node_of(table, 1))
    assert take(evictor, 1) == [2]


def test_first_out_goes_before_all_others() -> None:
    table = filled(200)
    table.first_out[[150, 160]] = True
    assert take(Evictor(table, ByHits()), 4)[:2] == [160, 150], "the one accessed longer ago first"
    assert take(Evictor(table, ByHits()), 1) == [2]


def test_equal_scores_go_by_age_then_depth_then_row() -> None:
    table = filled(4)
    table.hits[:4] = 7
    table.accessed[:4] = [5.0, 3.0, 3.0, 3.0]
    table.depth[:4] = [1, 10, 20, 10]
    assert take(Evictor(table, ByHits()), 4) == [2, 1, 3, 0]


def test_what_cannot_be_evicted_is_not() -> None:
    table = filled(10)
    table.state[[0, 1]] = NOT_EVICTABLE
    table.state[2] = INNER
    assert take(Evictor(table, ByHits()), 100) == list(range(2, 10))


def test_leaves_only() -> None:
    table = filled(6)
    table.state[[5, 4]] = INNER
    for row in (4, 5):
        node_of(table, row).slot = row
    rows = take(Evictor(table, Lru()), 100)
    assert rows[:4] == [3, 2, 1, 0], "lru: from the oldest on"
    assert rows[4:] == [5, 4], "when no leaf is left, what requests pin gives up its checkpoints"


def test_a_pool_of_its_own_asks_for_what_frees_it() -> None:
    table = filled(6)
    table.state[[1, 3]] = INNER
    for row in (1, 3, 4):
        node_of(table, row).slot = row
    assert take(Evictor(table, ByHits()), 100, frees_state=True) == [1, 3, 4]
    assert take(Evictor(table, ByHits()), 100, frees_kv=True) == [0, 2, 5]


def test_what_was_queued_for_one_pool_is_judged_again_for_the_other() -> None:
    table = filled(200)
    table.state[0:100:2] = INNER
    for row in range(0, 200, 2):
        node_of(table, row).slot = row
    evictor = Evictor(table, ByHits())
    assert take(evictor, 1) == [0]
    assert take(evictor, 1, frees_kv=True) == [1]
    assert take(evictor, 1, frees_state=True) == [2]


class Failing(EvictionPolicy):
    """Scores as long as all is well, then does what it is told to."""

    name: ClassVar[str] = "failing"

    def __init__(self, failure: Callable[[Columns], Scores]) -> None:
        self.failure = failure
        self.well = True

    def score(self, columns: Columns, now: float) -> Scores:
        return np.zeros(len(columns.hits)) if self.well else self.failure(columns)

    def on_hit(self, facts: Facts, now: float) -> None:
        if not self.well:
            raise ZeroDivisionError("hit")

    def on_evict(self, facts: Facts, now: float) -> None:
        if not self.well:
            raise ZeroDivisionError("evict")


def raising(columns: Columns) -> Scores:
    raise ZeroDivisionError("score")


FAILURES: dict[str, Callable[[Columns], Scores]] = {
    "raises": raising,
    "one NaN": lambda columns: np.where(columns.hits == 3, np.nan, 0.0),
    "too few": lambda columns: np.zeros(len(columns.hits) - 1),
    "one for all": lambda columns: np.ones(()),
    "infinite": lambda columns: np.where(columns.hits == 3, np.inf, 0.0),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_a_policy_that_fails_is_logged_and_counted_and_eviction_goes_on(
    failure: Callable[[Columns], Scores], caplog: pytest.LogCaptureFixture
) -> None:
    policy = Failing(failure)
    evictor = Evictor(filled(10), policy)
    policy.well = False
    with caplog.at_level(logging.ERROR):
        assert take(evictor, 3) == [9, 8, 7], "the least recently used"
    assert evictor.num_policy_errors == 3
    assert len(caplog.records) == 3 and "failing" in caplog.text


def test_a_policy_that_fails_to_learn_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    policy = Failing(raising)
    evictor = Evictor(filled(10), policy)
    policy.well = False
    with caplog.at_level(logging.ERROR):
        evictor.hit(0, 1.0)
        evictor.evicted(0, 1.0)
    assert evictor.num_policy_errors == 2 and len(caplog.records) == 2


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_an_unusable_policy_is_refused_at_once(failure: Callable[[Columns], Scores]) -> None:
    policy = Failing(lambda columns: failure(_hits(columns)))
    policy.well = False
    with pytest.raises(ValueError, match="'failing' cannot score"):
        Evictor(NodeTable(), policy)


def _hits(columns: Columns) -> Columns:
    """New nodes have no hits; these failures look for three."""
    return replace(columns, hits=np.full_like(columns.hits, 3))


class InPlace(ByHits):
    """Works with the columns as if they were its own, once it is let."""

    well = True

    def score(self, columns: Columns, now: float) -> Scores:
        if self.well:
            return columns.flops_saved / columns.bytes_freed
        scores = columns.flops_saved
        scores /= columns.bytes_freed
        return scores


@pytest.mark.parametrize("relative", [False, True])
def test_a_policy_cannot_change_the_facts(relative: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it is shown are the cache's own columns: working in place fails, as any mistake does."""
    monkeypatch.setattr(InPlace, "relative", relative)
    table, policy = filled(4), InPlace()
    table.flops_saved[:4], table.bytes_freed[:4] = 8.0, 2.0
    evictor = Evictor(table, policy)
    policy.well = False
    assert evictor.next(0.0, False, False) is table.nodes[3], "the least recently used"
    assert evictor.num_policy_errors == 1
    assert table.flops_saved[:4].tolist() == [8.0] * 4
    with pytest.raises(ValueError, match=r"'by_hits' cannot score new nodes.*read-only"):
        Evictor(table, policy)


def test_a_policy_without_a_name_is_refused_at_once() -> None:
    """Errors and pictures name it, and an error that cannot be told would end the engine."""

    class Nameless(EvictionPolicy):
        def score(self, columns: Columns, now: float) -> Scores:
            return columns.accessed

    with pytest.raises(ValueError, match="eviction policy Nameless has no name"):
        Evictor(NodeTable(), Nameless())


@pytest.mark.parametrize(
    ("name", "value"), [("clock", "noon"), ("clock", None), ("clock", math.nan), ("leaves_only", "no")]
)
def test_what_a_policy_declares_of_itself_is_checked(name: str, value: object) -> None:
    """Every request that reads or computes would fail over it."""
    policy = type("Own", (Lfu,), {name: value, "name": "own"})()
    with pytest.raises(ValueError, match=rf"'own' has {name}={value!r}: give "):
        Evictor(NodeTable(), policy)


def test_a_clock_that_breaks_costs_the_clock_alone() -> None:
    policy = Lfu()
    evictor = Evictor(filled(4), policy)
    policy.clock = 3
    assert evictor.clock == 3.0 and evictor.num_policy_errors == 0
    policy.clock = "noon"  # type: ignore[assignment]
    assert evictor.clock == 0.0 and evictor.num_policy_errors == 1


def test_events_carry_the_facts_before_they_change() -> None:
    seen: list[tuple[str, Facts, float]] = []

    class Listening(Lfu):
        def on_hit(self, facts: Facts, now: float) -> None:
            seen.append(("hit", facts, now))

        def on_evict(self, facts: Facts, now: float) -> None:
            seen.append(("evict", facts, now))

    evictor = Evictor(filled(10), Listening())
    evictor.hit(4, 20.0)
    evictor.evicted(7, 30.0)
    expected = [
        ("hit", Facts(6.0, 4, 0, 0, 0.0, 1.0, 0.0, 5), 20.0),
        ("evict", Facts(3.0, 7, 0, 0, 0.0, 1.0, 0.0, 8), 30.0),
    ]
    assert seen == expected


def test_a_path_is_touched_once_for_all_its_states() -> None:
    """Not once for each: the work would grow with the square of a prompt."""

    def changes(length: int) -> int:
        serving = Serving(
            KINDS["hybrid"],
            blocks=2 * length,
            slots=8 * length,
            memory="split",
            eviction="state_lru",
            admission="all_blocks",
            block_size=1,
        )
        serving.serve(text(length))
        serving.check_idle()
        nodes = [node for node in serving.cache.store.table.nodes if node is not None]
        assert len(nodes) >= length - 1
        return sum(node.version for node in nodes)

    assert changes(96) < 2.5 * changes(48)
