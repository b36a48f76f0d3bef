"""``check()`` finds whatever is put out of step, one count, link or fact at a time."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from hybridcache.node import Node
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.prefix_hash import PrefixHash
from tests.cache_driver import Driver
from tests.toy_spec import HYBRID

Harm = Callable[[Driver], None]


@pytest.fixture
def driver() -> Driver:
    """A tree with a branch and checkpoints, one request in its prompt and one in its answer."""
    driver = Driver(
        HYBRID,
        budget_bytes=10_000,
        eviction=build_eviction("age_density"),
        admission=build_admission("branch_final_prompt"),
        ttl_seconds=1000.0,
    )
    driver.serve(range(10))
    driver.serve([*range(6), 50, 51])
    prompt = driver.submit([*range(10), 60, 61, 62, 63])
    driver.step(prompt, driver.next_tokens(prompt, 2))
    answer = driver.submit([*range(6), 70], max_tokens=5)
    driver.step(answer, [*range(6), 70][answer.lease.num_computed if answer.lease else 0 :])
    driver.step(answer, [80])
    driver.check()
    return driver


def nodes(driver: Driver) -> list[Node]:
    return [node for node in driver.cache.store.table.nodes if node is not None]


def free_leaf(driver: Driver) -> Node:
    return next(
        node for node in nodes(driver) if not node.children and not node.pins and node.slot is not None
    )


def inner(driver: Driver) -> Node:
    return next(node for node in nodes(driver) if node.children)


def lease(driver: Driver) -> object:
    return next(iter(driver.cache.leases.values()))


def set_column(name: str, value: float) -> Harm:
    def harm(driver: Driver) -> None:
        getattr(driver.cache.store.table, name)[free_leaf(driver).row] = value

    return harm


def set_node(name: str, value: object) -> Harm:
    return lambda driver: setattr(free_leaf(driver), name, value)


def set_lease(name: str, value: object) -> Harm:
    return lambda driver: setattr(lease(driver), name, value)


def steal_block(driver: Driver) -> None:
    leaf = free_leaf(driver)
    leaf.blocks = leaf.blocks[:-1]


def same_block_twice(driver: Driver) -> None:
    leaf = free_leaf(driver)
    leaf.blocks = np.full_like(leaf.blocks, inner(driver).blocks[0])


def leak_block(driver: Driver) -> None:
    driver.cache.store.blocks.allocate(1)


def leak_slot(driver: Driver) -> None:
    driver.cache.store.slots.take()


def retain_block(driver: Driver) -> None:
    driver.cache.store.blocks.retain(int(free_leaf(driver).blocks[-1]))


def free_block(driver: Driver) -> None:
    driver.cache.store.blocks.release(free_leaf(driver).blocks[-1:])


def lose_slot(driver: Driver) -> None:
    free_leaf(driver).slot = None


def wrong_slot(driver: Driver) -> None:
    free_leaf(driver).slot = inner_slot(driver)


def inner_slot(driver: Driver) -> int:
    return next(
        node.slot for node in nodes(driver) if node.slot is not None and node is not free_leaf(driver)
    )


def lose_lease(driver: Driver) -> None:
    driver.cache.leases.popitem()


def lose_node(driver: Driver) -> None:
    leaf = free_leaf(driver)
    assert leaf.parent is not None
    del leaf.parent.children[leaf.first_token]


def wrong_parent(driver: Driver) -> None:
    free_leaf(driver).parent = next(iter(driver.cache.store.tree.roots.values()))


def wrong_edge(driver: Driver) -> None:
    node = next(node for node in nodes(driver) if node.pins)
    node.edge = node.edge[:4] + bytes(len(node.edge) - 4) if len(node.edge) > 4 else b"\x09\0\0\0"


def wrong_digest(driver: Driver) -> None:
    free_leaf(driver).hash = PrefixHash(b"another")


def parent_expires_first(driver: Driver) -> None:
    node = inner(driver)
    node.expires_at = driver.cache.store.table.expires_at[node.row] = 1.0
    driver.cache.store.next_expiry = 0.0


def not_absorbed(driver: Driver) -> None:
    node = next(node for node in nodes(driver) if node.stop - node.start > 1)
    driver.cache.store.split(node, node.start + 1)


def bytes_drawn_twice(driver: Driver) -> None:
    driver.cache.budget.used["kv"] += 32
    driver.cache.budget.used_bytes += 32


def over_budget(driver: Driver) -> None:
    driver.cache.budget.budget_bytes = driver.cache.budget.used_bytes - 1


def forgotten_peak(driver: Driver) -> None:
    driver.cache.budget.peak_bytes = 0


def root_of_nobody(driver: Driver) -> None:
    next(iter(driver.cache.store.tree.roots.values())).leases += 1


def detached_root(driver: Driver) -> None:
    next(iter(driver.cache.store.tree.roots.values())).attached = False


HARMS: list[Harm] = [
    steal_block, same_block_twice, leak_block, leak_slot, retain_block, free_block, lose_slot, wrong_slot,
    lose_lease, lose_node, wrong_parent, wrong_edge, wrong_digest, parent_expires_first, not_absorbed,
    bytes_drawn_twice, over_budget, forgotten_peak, root_of_nobody, detached_root,
]  # fmt: skip
COLUMNS = {
    "state": 0, "bytes_freed": 5.0, "flops_saved": 5.0, "depth": 99, "children": 7, "anchor": 3,
    "expires_at": 5.0, "slot_expires_at": 5.0,
}  # fmt: skip
NODE = {"pins": 1, "slot_pins": 1, "stop": 99, "start": 1, "expires_at": 5.0, "slot_expires_at": 5.0}
LEASE = {
    "ended": True, "hit": 99, "num_computed": 99, "planned": [99], "slot": None, "lost": {"new": 1},
}  # fmt: skip


def test_the_clean_cache_passes(driver: Driver) -> None:
    driver.cache.check()


@pytest.mark.parametrize(
    "harm",
    [
        *(pytest.param(harm, id=harm.__name__) for harm in HARMS),
        *(pytest.param(set_column(name, value), id=f"column {name}") for name, value in COLUMNS.items()),
        *(pytest.param(set_node(name, value), id=f"node {name}") for name, value in NODE.items()),
        *(pytest.param(set_lease(name, value), id=f"lease {name}") for name, value in LEASE.items()),
    ],
)
def test_harm_is_found(driver: Driver, harm: Harm) -> None:
    driver.cache.store.refresh()
    harm(driver)
    with pytest.raises(AssertionError):
        driver.cache.check()


def test_an_infinite_cache_passes() -> None:
    driver = Driver(
        HYBRID,
        budget_bytes=math.inf,
        eviction=build_eviction("lru"),
        admission=build_admission("final_only"),
    )
    driver.cache.check()
    driver.serve(range(5))
    driver.cache.check()
