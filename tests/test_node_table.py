"""Rows are reused, clean when handed out, and the table grows."""

import numpy as np

from hybridcache.node import FOREVER, NO_IDS, Node
from hybridcache.node_table import INNER, LEAF, NOT_EVICTABLE, NodeTable
from hybridcache.policies.columns import BRANCH, FINAL, Columns


def node(stop: int = 1) -> Node:
    return Node(None, 0, bytes(4 * stop), NO_IDS)


def test_a_new_row() -> None:
    table = NodeTable()
    one = node(5)
    one.expires_at = 9.0
    row = table.add(one, now=3.0, clock=2.0)
    assert one.row == row == 0 and table.nodes[row] is one and (table.size, table.num_nodes) == (1, 1)
    assert table.facts(row) == (table.facts(row).__class__(3.0, 0, 0, FINAL, 0.0, 1.0, 2.0, 5))
    assert (table.depth[row], table.path_accessed[row], table.state[row]) == (5, 3.0, NOT_EVICTABLE)
    assert (table.expires_at[row], table.slot_expires_at[row]) == (9.0, FOREVER)


def test_rows_are_reused_and_clean() -> None:
    table = NodeTable()
    one, other = node(), node()
    row = table.add(one, 1.0, 0.0)
    table.add(other, 1.0, 0.0)
    table.hits[row], table.kind[row], table.state[row], table.anchor[row] = 5, BRANCH, LEAF, 7
    table.first_out[row] = table.used[row] = True
    table.flops_saved[row], table.bytes_freed[row], table.slot_expires_at[row] = 8.0, 9.0, 4.0
    version = one.version
    table.remove(one)
    assert one.row == -1 and one.version > version, "what was queued for it is void"
    assert table.nodes[row] is None and table.num_nodes == 1
    assert table.state[row] == NOT_EVICTABLE and table.slot_expires_at[row] == FOREVER
    again = node(3)
    assert table.add(again, 2.0, 6.0) == row and table.size == 2
    assert (table.hits[row], table.kind[row], table.state[row], table.anchor[row]) == (
        0,
        FINAL,
        NOT_EVICTABLE,
        0,
    )
    assert not table.first_out[row] and not table.used[row]
    assert (table.flops_saved[row], table.bytes_freed[row], table.clock[row]) == (0.0, 1.0, 6.0)


def test_growing_keeps_everything() -> None:
    table = NodeTable()
    for i in range(5000):
        row = table.add(node(i + 1), float(i), 0.0)
        table.state[row] = LEAF
    assert table.size == table.num_nodes == 5000
    assert (table.accessed[:5000] == np.arange(5000)).all()
    assert (table.depth[:5000] == np.arange(1, 5001)).all()
    assert (table.expires_at[:5000] == FOREVER).all()
    columns = table.columns()
    for field in Columns.__dataclass_fields__:
        assert getattr(columns, field).shape == (5000,), field


def test_columns_are_views() -> None:
    table = NodeTable()
    table.add(node(), 1.0, 0.0)
    columns = table.columns()
    table.hits[0] = 4
    assert columns.hits.tolist() == [4]


def test_evictable_rows_and_those_with_a_checkpoint() -> None:
    table = NodeTable()
    for state in (NOT_EVICTABLE, LEAF, INNER, LEAF):
        one = node()
        table.state[table.add(one, 0.0, 0.0)] = state
        one.slot = 0 if state == INNER or one.row == 3 else None
    assert table.evictable(False).tolist() == [1, 2, 3]
    assert table.evictable(True).tolist() == [1, 3]
    assert table.has_slot(np.array([1, 2, 3])).tolist() == [False, True, True]
