"""Ids are dense and reused, counts are kept, and bytes stay within the budget."""

import numpy as np
import pytest

from hybridcache.pool import BlockPool, IdPool, Ids, MemoryBudget, SlotPool

INFINITE = float("inf")


def ids(*values: int) -> Ids:
    return np.array(values, dtype=np.int64)


@pytest.fixture
def budget() -> MemoryBudget:
    return MemoryBudget(1000)


@pytest.fixture
def pool(budget: MemoryBudget) -> BlockPool:
    return BlockPool(block_size=4, kv_bytes_per_token=2, budget=budget)


def test_ids_are_dense_and_reused(pool: BlockPool) -> None:
    first = pool.allocate(3)
    assert sorted(first.tolist()) == [0, 1, 2]
    assert pool.release(first[:2]) == 2
    assert sorted([*pool.allocate(1).tolist(), *pool.allocate(2).tolist()]) == [0, 1, 3]
    assert pool.num_ids == 4 and pool.num_used == 4


@pytest.mark.parametrize("n", [1, 3])
def test_many_ids(n: int) -> None:
    pool = BlockPool(1, 1, MemoryBudget(INFINITE))
    held = [pool.allocate(n) for _ in range(500)]
    assert sorted(np.concatenate(held).tolist()) == list(range(500 * n))
    assert sum(pool.release(some) for some in held) == 500 * n
    assert pool.num_used == 0 and pool.budget.used_bytes == 0
    assert sorted(pool.allocate(500 * n).tolist()) == list(range(500 * n)), "none is new"


def test_a_shared_id_is_freed_by_its_last_holder(pool: BlockPool, budget: MemoryBudget) -> None:
    (block,) = pool.allocate(1).tolist()
    pool.retain(block)
    assert pool.refs(block) == 2
    assert pool.release(ids(block)) == 0
    assert budget.used["kv"] == 8
    assert pool.release(ids(block)) == 1
    assert budget.used["kv"] == 0 and pool.refs(block) == 0


@pytest.mark.parametrize("others", [(), (1,), (1, 2)])
def test_releasing_what_is_not_held_changes_nothing(pool: BlockPool, others: tuple[int, ...]) -> None:
    pool.allocate(3)
    pool.release(ids(0))
    with pytest.raises(ValueError, match=r"0.*not held"):
        pool.release(ids(*others, 0))
    assert [pool.refs(i) for i in range(3)] == [0, 1, 1]
    assert pool.num_used == 2 and pool.budget.used["kv"] == 16
    pool.check(ids(0, 1, 1))


def test_freeing_a_slot_twice_raises(budget: MemoryBudget) -> None:
    slots = SlotPool(100, budget)
    slot = slots.take()
    slots.free(slot)
    with pytest.raises(ValueError, match="not held"):
        slots.free(slot)
    assert budget.used == {"kv": 0, "state": 0} and slots.take() == slot


def test_retaining_a_free_id_is_our_own_mistake(pool: BlockPool) -> None:
    pool.release(pool.allocate(1))
    with pytest.raises(AssertionError):
        pool.retain(0)


def test_a_pool_takes_no_more_than_the_budget(pool: BlockPool, budget: MemoryBudget) -> None:
    pool.allocate(125)
    assert budget.room("kv") == budget.room("state") == 0
    with pytest.raises(AssertionError):
        pool.allocate(1)


def test_unified_pools_draw_on_one_budget(pool: BlockPool, budget: MemoryBudget) -> None:
    slots = SlotPool(100, budget)
    pool.allocate(10)
    slots.take()
    assert budget.used == {"kv": 80, "state": 100}
    assert budget.room("kv") == budget.room("state") == 820


def test_split_pools_do_not_share() -> None:
    budget = MemoryBudget(1000, "split", kv_fraction=0.2)
    pool, slots = BlockPool(4, 25, budget), SlotPool(100, budget)
    pool.allocate(2)
    assert budget.room("kv") == 0 and budget.room("state") == 800
    with pytest.raises(AssertionError):
        pool.allocate(1)
    for _ in range(8):
        slots.take()
    assert budget.room("state") == 0


@pytest.mark.parametrize("memory", ["unified", "split"])
def test_an_infinite_budget_has_infinite_room(memory: str) -> None:
    budget = MemoryBudget(INFINITE, memory, kv_fraction=1.0)
    assert budget.room("kv") == budget.room("state") == INFINITE


def test_the_peak_stays(pool: BlockPool, budget: MemoryBudget) -> None:
    slots = SlotPool(100, budget)
    held = pool.allocate(10)
    slots.free(slots.take())
    pool.release(held)
    pool.allocate(5)
    assert budget.peak_bytes == 180 and budget.used_bytes == 40


def test_positions_and_blocks(pool: BlockPool) -> None:
    assert [pool.blocks_for(n) for n in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]
    assert [pool.index(n) for n in (0, 3, 4, 8)] == [0, 0, 1, 2]
    assert [pool.tail(n) for n in (0, 3, 4, 5)] == [0, 3, 0, 1]


def test_a_model_without_attention_has_no_blocks(budget: MemoryBudget) -> None:
    pool = BlockPool(4, 0, budget)
    assert [pool.blocks_for(9), pool.index(9), pool.tail(9)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"budget_bytes": -1}, "budget_bytes=-1"),
        ({"budget_bytes": float("nan")}, "budget_bytes=nan"),
        ({"budget_bytes": 1, "memory": "shared"}, "memory='shared'"),
        ({"budget_bytes": 1, "memory": "split", "kv_fraction": 1.5}, "kv_fraction=1.5"),
        ({"budget_bytes": 1, "memory": "split", "kv_fraction": -0.1}, "kv_fraction=-0.1"),
    ],
)
def test_bad_budgets_are_refused(settings: dict[str, float | str], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        MemoryBudget(**settings)  # type: ignore[arg-type]


def test_a_block_has_at_least_one_token(budget: MemoryBudget) -> None:
    with pytest.raises(ValueError, match="block_size=0"):
        BlockPool(0, 2, budget)


def test_check_finds_a_wrong_count(budget: MemoryBudget) -> None:
    pool = IdPool("kv", 8, budget)
    pool.allocate(2)
    pool.check(ids(1, 1))
    for wrong in (ids(1, 2), ids(0, 1)):
        with pytest.raises(AssertionError, match="reference counts"):
            pool.check(wrong)
    budget.used["kv"] -= 8
    with pytest.raises(AssertionError, match="bytes"):
        pool.check(ids(1, 1))


def test_a_share_worked_out_from_ids_is_that_of_these_ids() -> None:
    """Also where the fraction is a float a little too small, and worked out again from the limit."""
    for blocks in range(200):
        for slots in range(1, 40):
            kv, state = blocks * 16 * 65_536, slots * 26_787_840
            fraction = kv / (kv + state)
            for _ in range(2):
                limits = MemoryBudget(kv + state, "split", fraction).limits
                assert limits == {"kv": kv, "state": state}
                fraction = limits["kv"] / (kv + state)


@pytest.mark.parametrize("budget_bytes", [0, 0.4, 100.7, 2**63 - 1, 2**63, INFINITE])
@pytest.mark.parametrize("fraction", [0.0, 0.3, 1.0])
def test_shares_are_parts_of_the_budget(budget_bytes: float, fraction: float) -> None:
    limits = MemoryBudget(budget_bytes, "split", fraction).limits
    assert all(0 <= limit <= budget_bytes for limit in limits.values())
    if budget_bytes < INFINITE:
        assert sum(limits.values()) == budget_bytes
