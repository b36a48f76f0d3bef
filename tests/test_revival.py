"""Remembered positions that prompts pass: what policies are told, and which checkpoints come back."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pytest

from hybridcache.evictor import Evictor
from hybridcache.gone_table import GoneTable
from hybridcache.lease import Lease
from hybridcache.namespace import Namespace
from hybridcache.node_table import NodeTable
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.policies.columns import BRANCH, FINAL, FOLLOW_UP, Census, Facts
from hybridcache.policies.eviction import EvictionPolicy
from hybridcache.policies.lru import Lru
from hybridcache.prefix_cache import PrefixCache
from hybridcache.spec import ModelSpec
from hybridcache.tree import subtree
from tests.toy_spec import ATTENTION_ONLY, HYBRID

HERE = Namespace()
SHARED = list(range(100, 110))


class Told(Lru):
    """Leaves go by recency; what the policy is told of is kept."""

    name: ClassVar[str] = "told"
    remembers = True
    revives = True

    def __init__(self) -> None:
        self.returns: list[Facts] = []
        self.censuses: list[Census] = []

    def on_return(self, facts: Facts, now: float) -> None:
        self.returns.append(facts)

    def census(self, positions: Census, now: float) -> None:
        self.wants_census = False
        self.censuses.append(positions)


class Clock:
    """Serves requests one a second."""

    def __init__(self, policy: EvictionPolicy, spec: ModelSpec = HYBRID) -> None:
        self.cache = PrefixCache(
            spec, budget_bytes=np.inf, eviction=policy, admission=build_admission("branch_and_final"),
            block_size=4,
        )  # fmt: skip
        self.now = 0.0

    def start(self, prompt: Sequence[int], *, first: bool = True) -> Lease:
        self.now += 1.0
        lease = self.cache.acquire(prompt, HERE, self.now, first=first)
        assert isinstance(lease, Lease)
        self.cache.restored(lease)
        return lease

    def serve(self, prompt: Sequence[int]) -> Lease:
        lease, now = self.start(prompt), self.now
        while lease.num_computed < len(prompt):
            stop = lease.planned[0] if lease.planned else len(prompt)
            assert self.cache.reserve(lease, stop - lease.num_computed, now)
            self.cache.computed(lease, list(prompt[lease.num_computed : stop]), now)
            if lease.planned:
                assert self.cache.checkpoint(lease, now) is not None
                self.cache.checkpointed(lease, now)
        self.cache.finish(lease, len(prompt), now)
        self.cache.check()
        return lease

    def evict_all(self) -> None:
        store = self.cache.store
        nodes = [node for root in store.tree.roots.values() for node in subtree(root) if node.parent]
        for node in sorted(nodes, key=lambda node: -node.stop):
            store.refresh()
            if node.row >= 0:
                self.cache._reclaimer.evict(node, self.now)
        assert store.table.num_nodes == 0
        self.cache.check()


@pytest.fixture
def told() -> Told:
    return Told()


def served(policy: EvictionPolicy, uses: int) -> Clock:
    """A prefix of ten tokens is a branch point that ``uses`` requests resumed at; then everything goes."""
    clock = Clock(policy)
    for i in range(2 + uses):
        lease = clock.serve([*SHARED, i, 7])
        assert lease.hit == (10 if i >= 2 else 0)
    clock.evict_all()
    return clock


@pytest.mark.parametrize("uses", [0, 1, 3])
def test_a_shared_position_comes_back_at_once(told: Told, uses: int) -> None:
    clock = served(told, uses)
    assert clock.serve([*SHARED, 50, 51]).hit == 0
    assert clock.serve([*SHARED, 60, 61]).hit == (10 if uses else 0), "where nobody resumed, it is as new"


@pytest.mark.parametrize(("price", "planned"), [(9.9, [10]), (10.1, [])])
def test_it_stays_away_where_its_bytes_cost_more_than_one_use_saves(
    told: Told, price: float, planned: list[int]
) -> None:
    clock = served(told, 3)
    book = clock.cache._reclaimer.price
    # Of so many bytes that the ten tokens of this very request change nothing.
    book.num_bytes = 1e9 * clock.cache.spec.checkpoint_bytes
    book.tokens = price * 1e9
    lease = clock.start([*SHARED, 50, 51])
    assert lease.planned == planned and list(lease.revived) == planned
    assert told.returns, "the policy is told all the same"


def test_what_it_saves_is_counted_from_the_checkpoint_before_it(told: Told) -> None:
    """Of two shared positions, two tokens apart, the second saves two tokens once the first is back."""
    clock = Clock(told)
    for i in range(3):
        clock.serve([*SHARED, i, 7])
    for i in range(3):
        clock.serve([*SHARED, 1, 1, 10 + i])
    clock.evict_all()
    book = clock.cache._reclaimer.price
    for price, planned in ((2.0, [10, 12]), (3.0, [10])):
        book.num_bytes = 1e9 * clock.cache.spec.checkpoint_bytes
        book.tokens = (price - 0.1) * 1e9
        lease = clock.start([*SHARED, 1, 1, 50])
        assert [position for position in lease.planned if position in lease.revived] == planned
        clock.cache.finish(lease, 0, clock.now)


def test_passing_counts_as_a_use(told: Told) -> None:
    clock = served(told, 0)
    first = clock.start([*SHARED, 50, 51])
    clock.cache.drop(first, clock.now)
    assert first.planned == []
    assert clock.start([*SHARED, 60, 61]).planned == [10]


def test_its_hits_come_back_too(told: Told) -> None:
    clock = served(told, 3)
    clock.serve([*SHARED, 50, 51])
    table = clock.cache.store.table
    (row,) = (row for row in range(table.size) if table.resumable[row] and table.depth[row] == 10)
    assert (table.hits[row], table.kind[row]) == (4, BRANCH), "three, and the one that would have been"


def test_policies_that_do_not_remember_see_nothing_of_it() -> None:
    clock = served(Lru(), 3)
    assert len(clock.cache.store.ghost) > 0 and len(clock.cache.store.ghost.gone) == 0
    lease = clock.start([*SHARED, 50, 51])
    assert lease.planned == []


def test_the_policy_is_told_of_the_deepest_and_of_path_ends(told: Told) -> None:
    clock = Clock(told)
    clock.serve(SHARED)
    clock.serve([*SHARED, 1, 2])
    clock.serve([*SHARED, 1, 2, 3, 4])
    assert told.returns == [], "all of it hit"
    clock.evict_all()
    clock.cache.drop(clock.start([*SHARED, 1, 2, 3, 4, 5, 6]), clock.now)
    # The positions went from the tip on, so each was its path's end when it went.
    assert [(facts.depth, facts.hits, facts.accessed) for facts in told.returns] == [
        (10, 1, 2.0),
        (12, 1, 3.0),
        (14, 0, 3.0),
    ]
    told.returns.clear()
    # From then on the shallower ones lie on a path that goes on.
    clock.start([*SHARED, 1, 2, 3, 4, 5, 6])
    assert [(facts.depth, facts.hits, facts.accessed) for facts in told.returns] == [(14, 1, 4.0)]


def test_a_turn_of_a_chat_is_not_a_shared_position(told: Told) -> None:
    clock = Clock(told)
    clock.serve(SHARED)
    clock.serve([*SHARED, 1, 2])
    clock.evict_all()
    assert clock.start([*SHARED, 1, 2, 3]).planned == [], "resumed once, by the next turn"


@pytest.mark.parametrize("gone", [False, True])
def test_a_turn_that_goes_on_is_a_follow_up_whether_or_not_the_last_one_is_there(
    told: Told, gone: bool
) -> None:
    clock = Clock(told)
    kinds = []
    for prompt in (SHARED, [*SHARED, 1, 2], [*SHARED, 1, 2, 3], [*SHARED, 8]):
        clock.serve(prompt)
        table = clock.cache.store.table
        (row,) = (r for r in range(table.size) if table.resumable[r] and table.depth[r] == len(prompt))
        kinds.append(int(table.kind[row]))
        if gone:
            clock.evict_all()
    assert kinds == [FINAL, FOLLOW_UP, FOLLOW_UP, FOLLOW_UP]
    clock.serve([9, 9, 9])
    assert table.kind[[r for r in range(table.size) if table.depth[r] == 3]].tolist() == [FINAL]


def test_who_leaves_a_path_does_not_follow_up(told: Told) -> None:
    clock = served(told, 1)
    lease = clock.start([*SHARED, 50, 51])
    assert not lease.follows_up, "it shares a prefix, and goes on from no request's end"
    clock.cache.drop(lease, clock.now)
    assert clock.start([*SHARED, 0, 7, 8]).follows_up


def test_a_preempted_request_plans_again_and_tells_nothing_twice(told: Told) -> None:
    clock = served(told, 1)
    lease = clock.start([*SHARED, 50, 51])
    told_of = list(told.returns)
    assert lease.planned == [10] and told_of
    clock.cache.finish(lease, 0, clock.now)
    again = clock.start([*SHARED, 50, 51], first=False)
    assert again.planned == [10] and again.revived == lease.revived
    assert told.returns == told_of


def test_a_position_that_is_back_is_remembered_no_longer(told: Told) -> None:
    clock = served(told, 1)
    gone = clock.cache.store.ghost.gone
    before = len(gone)
    clock.serve([*SHARED, 50, 51])
    assert len(gone) == before - 1
    # The end of the first request comes back as the end of the same request.
    clock.serve([*SHARED, 0, 7])
    assert len(gone) == before - 2


def test_without_recurrent_layers_path_ends_are_told_of(told: Told) -> None:
    clock = Clock(told, ATTENTION_ONLY)
    clock.serve(SHARED)
    clock.evict_all()
    lease = clock.start([*SHARED, 1])
    assert lease.planned == []
    assert [facts.depth for facts in told.returns] == [10]


def test_a_census_shows_the_tree_and_what_is_remembered(told: Told) -> None:
    clock = Clock(told)
    clock.serve([1, 2, 3])
    clock.evict_all()
    clock.serve(SHARED)
    told.wants_census = True
    clock.serve([*SHARED, 1])
    (census,) = told.censuses
    assert sorted(zip(census.depth.tolist(), census.accessed.tolist(), strict=True)) == [(3, 1.0), (10, 2.0)]


def test_a_policy_that_fails_to_count_costs_nothing_else() -> None:
    class Broken(Told):
        def on_return(self, facts: Facts, now: float) -> None:
            raise RuntimeError("no")

    clock = served(Broken(), 1)
    clock.serve([*SHARED, 50, 51])
    assert clock.cache.store.evictor.num_policy_errors > 0
    assert clock.serve([*SHARED, 60, 61]).hit == 10


def test_an_evictor_by_itself_remembers_nothing(told: Told) -> None:
    evictor = Evictor(NodeTable(), told)
    told.wants_census = True
    evictor.returned(Facts(1.0, 0, 0, FINAL, 0.0, 1.0, 0.0, 5), 2.0)
    assert [len(census.depth) for census in told.censuses] == [0]


def facts(depth: int, accessed: float = 1.0, children: int = 0) -> Facts:
    return Facts(accessed, 2, children, BRANCH, 9.0, 9.0, 9.0, depth)


def test_rows_of_what_is_gone() -> None:
    table = GoneTable()
    first, second = table.add(facts(10)), table.add(facts(20, children=2))
    assert table.facts(first) == Facts(1.0, 2, 0, BRANCH, 0.0, 1.0, 0.0, 10)
    table.returned(first, 5.0)
    table.returned(second, 6.0)
    assert table.facts(first) == Facts(5.0, 3, 1, BRANCH, 0.0, 1.0, 0.0, 10)
    assert table.facts(second)[:3] == (6.0, 3, 2)
    table.remove(first)
    assert len(table) == 1 and table.census().depth.tolist() == [20]
    assert table.add(facts(30)) == first
    assert table.facts(first) == Facts(1.0, 2, 0, BRANCH, 0.0, 1.0, 0.0, 30)


def test_many_rows() -> None:
    table = GoneTable()
    rows = [table.add(facts(depth)) for depth in range(3000)]
    for row in rows[::2]:
        table.remove(row)
    assert len(table) == 1500 and table.census().depth.tolist() == list(range(1, 3000, 2))


def test_the_default_policy_brings_shared_positions_back() -> None:
    clock = served(build_eviction("reuse_rate"), 2)
    clock.serve([*SHARED, 50, 51])
    assert clock.serve([*SHARED, 60, 61]).hit == 10
