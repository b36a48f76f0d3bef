"""Gives bytes back: eviction, expiry, flush."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridcache.cached_tree import CachedTree
from hybridcache.ghost import GhostEntry, Gone
from hybridcache.lease import Lease
from hybridcache.node import FOREVER, Node, Root
from hybridcache.pool import PoolName
from hybridcache.tree import subtree


class Held(NamedTuple):
    """Ids that leases keep from being evicted, each counted once."""

    pinned_blocks: int
    pinned_slots: int
    leased_blocks: int
    leased_slots: int


def held_by(leases: Iterable[Lease]) -> Held:
    """What ``leases`` pin in the tree and hold besides. Walks each pinned path once."""
    seen: set[Node] = set()
    pinned_blocks = pinned_slots = leased_blocks = leased_slots = 0
    for lease in leases:
        node: Node | None = lease.node
        leased_blocks += len(lease.blocks)
        if len(lease.blocks) and len(lease.node.blocks) and lease.blocks[0] == lease.node.blocks[-1]:
            leased_blocks -= 1
        leased_slots += (lease.slot is not None) + (lease.staged is not None) + len(lease.emits)
        while node is not None and node not in seen:
            seen.add(node)
            pinned_blocks += len(node.blocks)
            parent = node.parent
            if parent is not None and len(parent.blocks) and len(node.blocks):
                pinned_blocks -= int(parent.blocks[-1] == node.blocks[0])
            pinned_slots += node.slot_pins > 0
            node = parent
    return Held(pinned_blocks, pinned_slots, leased_blocks, leased_slots)


class Reclaimer:
    """Takes nodes and checkpoints out of the cached tree, never one that a lease pins."""

    __slots__ = ("store", "leases")

    def __init__(self, store: CachedTree, leases: dict[int, Lease]) -> None:
        self.store = store
        self.leases = leases
        """Leases that have not ended, by id; shared with PrefixCache."""

    def make_room(self, pool: PoolName, num_bytes: int, now: float) -> bool:
        """Evict until ``pool`` has room for ``num_bytes``; False, with nothing evicted, if that cannot be."""
        store, budget = self.store, self.store.budget
        if budget.room(pool) >= num_bytes:
            return True
        if not self._attainable(pool, num_bytes):
            return False
        split = budget.memory == "split"
        while budget.room(pool) < num_bytes:
            store.refresh()
            victim = store.evictor.next(now, split and pool == "state", split and pool == "kv")
            if victim is None:
                return False
            self.evict(victim, now)
        return True

    def evict(self, node: Node, now: float) -> None:
        """Evict a leaf, or the checkpoint of an inner node, or the last block of a leaf (``by_block``)."""
        store = self.store
        if store.evictor.policy.by_block and not node.children and store.blocks.bytes_per_id:
            cut = (node.stop - 1) // store.blocks.block_size * store.blocks.block_size
            if cut > node.start:
                store.split(node, cut)
        store.evictor.evicted(node.row, now)
        store.stats.evictions += 1
        if not node.children:
            store.stats.evicted_tokens += node.stop - node.start
        self._remember(node, Gone.EVICTED)
        if node.slot is not None:
            store.drop_slot(node)
        if node.children:
            store.tidy(node)
        else:
            store.tidy(store.remove(node), cascade=True)

    def expire(self, now: float) -> None:
        """Free what has expired at ``now`` and is not pinned. Cheap when nothing has."""
        store = self.store
        if now < store.next_expiry:
            return
        table = store.table
        for node in self._rows_before(table.slot_expires_at, now):
            if node.slot is not None and not node.slot_pins:
                self._remember(node, Gone.EXPIRED)
                store.stats.expirations += 1
                store.drop_slot(node)
                store.tidy(node)
        # Children first: a parent's KV expires no earlier than a child's.
        for node in self._rows_before(table.expires_at, now):
            if node.row >= 0 and not node.children and not node.pins and node.slot is None:
                self._remember(node, Gone.EXPIRED)
                store.stats.expirations += 1
                store.tidy(store.remove(node), cascade=True)
        size = table.size
        store.next_expiry = float(
            np.minimum(table.expires_at[:size], table.slot_expires_at[:size]).min(initial=FOREVER)
        )

    def flush(self, root: Root) -> None:
        """Free all below a detached root but what leases pin; that goes when they end."""
        store = self.store
        for node in reversed(list(subtree(root))):
            if node is root:
                continue
            if node.slot is not None and not node.slot_pins:
                store.drop_slot(node)
            if not node.children and not node.pins and node.slot is None:
                store.remove(node)

    def _remember(self, node: Node, reason: Gone) -> None:
        store = self.store
        entry = GhostEntry(node.stop, int(store.table.hits[node.row]), reason, node.slot is not None)
        store.ghost.remember(store.tree.digest(node), entry, store.table.num_nodes)

    def _rows_before(self, expiry: NDArray[np.float64], now: float) -> list[Node]:
        """Nodes whose ``expiry`` (a column of the table) has come, the deepest first."""
        table = self.store.table
        rows = np.flatnonzero(expiry[: table.size] <= now)
        nodes = [table.nodes[row] for row in rows[np.argsort(-table.depth[rows], kind="stable")].tolist()]
        return [node for node in nodes if node is not None]

    def _attainable(self, pool: PoolName, num_bytes: int) -> bool:
        """Whether evicting everything evictable would make the room."""
        store = self.store
        held = held_by(self.leases.values())
        kv = (held.pinned_blocks + held.leased_blocks) * store.blocks.bytes_per_id
        state = (held.pinned_slots + held.leased_slots) * store.slots.bytes_per_id
        if store.budget.memory == "split":
            return (kv if pool == "kv" else state) + num_bytes <= store.budget.limits[pool]
        return kv + state + num_bytes <= store.budget.budget_bytes
