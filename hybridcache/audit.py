"""Recounts a cache from scratch."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from hybridcache.cached_tree import CachedTree
from hybridcache.lease import Lease
from hybridcache.node import Node, Root
from hybridcache.node_table import INNER, LEAF, NOT_EVICTABLE
from hybridcache.pool import IdPool
from hybridcache.prefix_hash import extended
from hybridcache.tokens import TOKEN_BYTES
from hybridcache.tree import subtree


def audit(store: CachedTree, leases: dict[int, Lease]) -> None:
    """Walk every tree and lease; AssertionError when a count, a link or a fact differs. Modifies nothing."""
    roots = {*store.tree.roots.values(), *(lease.root for lease in leases.values())}
    pins = Counter(lease.node for lease in leases.values())
    sources = [lease.source for lease in leases.values() if lease.source is not None]
    slot_pins = Counter(source for source in sources if source.slot is not None)
    blocks: list[NDArray[np.int64]] = [lease.blocks for lease in leases.values()]
    slots = [lease.slot for lease in leases.values() if lease.slot is not None]
    slots += [lease.staged[1] for lease in leases.values() if lease.staged is not None]
    slots += [emit.slot for lease in leases.values() for emit in lease.emits]
    num_nodes = 0
    for root in roots:
        assert root.leases == sum(lease.root is root for lease in leases.values()), root
        assert root.attached == (store.tree.roots.get(root.namespace) is root), root
        _audit_root(root, pins)
        for node in subtree(root):
            if node is root:
                continue
            num_nodes += 1
            blocks.append(node.blocks)
            if node.slot is not None:
                slots.append(node.slot)
            _audit_node(store, node, pins[node], slot_pins[node], root.attached)
    assert num_nodes == store.table.num_nodes, (num_nodes, store.table.num_nodes)
    _audit_pool(store.blocks, np.concatenate(blocks) if blocks else np.empty(0, dtype=np.int64))
    _audit_pool(store.slots, np.array(slots, dtype=np.int64))
    assert store.table.resumable.sum() <= num_nodes
    assert len(store.ghost.gone) == store.ghost.recount_facts(), "a remembered position lost its facts"
    budget = store.budget
    assert budget.used_bytes == sum(budget.used.values()) <= budget.peak_bytes <= budget.budget_bytes, budget
    assert all(budget.used[pool] <= budget.limits[pool] for pool in budget.used), budget
    for lease in leases.values():
        _audit_lease(store, lease)


def _audit_root(root: Root, pins: "Counter[Node]") -> None:
    assert root.parent is None and root.stop == 0 and root.slot is None and not len(root.blocks), root
    assert root.pins == pins[root], (root, pins[root])


def _audit_node(store: CachedTree, node: Node, pins: int, slot_pins: int, attached: bool) -> None:
    parent, table, row = node.parent, store.table, node.row
    assert parent is not None and parent.children[node.first_token] is node, node
    assert node.start == parent.stop < node.stop == node.start + len(node.edge) // TOKEN_BYTES, node
    assert node.pins == pins and node.slot_pins == slot_pins, (node, pins, slot_pins)
    assert all(child.parent is node for child in node.children.values()), node
    assert all(child.expires_at <= node.expires_at for child in node.children.values()), node
    size = store.tree.block_size
    if size:
        assert len(node.blocks) == -(-node.stop // size) - node.start // size, node
    else:
        assert not len(node.blocks), node
    assert table.nodes[row] is node and table.depth[row] == node.stop, node
    assert table.children[row] == len(node.children), node
    assert table.resumable[row] == (node.slot is not None or not store.recurrent), node
    assert table.expires_at[row] == node.expires_at, node
    assert table.slot_expires_at[row] == node.slot_expires_at, node
    assert min(node.expires_at, node.slot_expires_at) >= store.next_expiry or not attached, node
    if node.hash is not None:
        afresh = extended(store.tree.prefix_hash(parent), node.edge)
        assert node.hash.intdigest() == afresh.intdigest(), node
    if attached:
        assert table.state[row] == _state(node), (node, table.state[row])
        mergeable = len(node.children) == 1 and node.slot is None and not node.pins
        if mergeable:
            (child,) = node.children.values()
            assert child.expires_at != node.expires_at, f"{node} should have been absorbed by {child}"
    else:
        assert table.state[row] == NOT_EVICTABLE and (node.children or node.pins), node
    if table.state[row] != NOT_EVICTABLE:
        _audit_facts(store, node)


def _state(node: Node) -> int:
    if node.slot_pins:
        return NOT_EVICTABLE
    if node.children or node.pins:
        return NOT_EVICTABLE if node.slot is None else INNER
    return LEAF


def _audit_facts(store: CachedTree, node: Node) -> None:
    """What the table says an eviction frees and loses, against the tree."""
    table, row = store.table, node.row
    above = node.parent
    while above is not None and above.slot is None:
        above = above.parent
    anchor = 0 if above is None else above.stop
    freed = 0
    if not node.children and not node.pins:
        freed += sum(store.blocks.refs(int(block)) == 1 for block in node.blocks) * store.blocks.bytes_per_id
    if node.slot is not None:
        assert table.anchor[row] == anchor, (node, anchor, table.anchor[row])
        freed += store.slots.bytes_per_id
        saved = store.spec.flops(anchor, node.stop)
    else:
        saved = 0.0 if store.recurrent else store.spec.flops(node.start, node.stop)
    assert table.bytes_freed[row] == max(freed, 1), (node, freed, table.bytes_freed[row])
    prefix = node.stop * store.spec.kv_bytes_per_token + store.spec.checkpoint_bytes
    assert table.prefix_bytes[row] == max(prefix, 1), (node, prefix, table.prefix_bytes[row])
    assert np.isclose(table.flops_saved[row], saved, rtol=1e-12), (node, saved, table.flops_saved[row])


def _audit_pool(pool: IdPool, held: NDArray[np.int64]) -> None:
    """Reference counts against the ids that nodes and leases hold."""
    pool.check(np.bincount(held, minlength=pool.num_ids).astype(np.int64))


def _audit_lease(store: CachedTree, lease: Lease) -> None:
    blocks = store.blocks
    assert not lease.ended and lease.hit <= lease.num_computed, lease
    assert lease.planned == sorted(lease.kinds), lease
    passed = {position for position in lease.planned if position < lease.num_computed}
    assert passed <= lease.being_written <= set(lease.planned), lease
    assert lease.num_computed <= max(lease.node.stop, 0) or (
        blocks.blocks_for(lease.num_computed) <= blocks.index(lease.node.stop) + len(lease.blocks)
    ), lease
    assert (lease.slot is not None) == store.recurrent, lease
    path = lease.edge(0, min(lease.node.stop, lease.num_tokens))
    node: Node | None = lease.node
    while node is not None:
        assert path.startswith(node.edge, node.start * TOKEN_BYTES), (lease, node)
        node = node.parent
    if store.recurrent and blocks.bytes_per_id:
        assert sum(lease.lost.values()) + lease.hit == lease.num_prompt, lease
