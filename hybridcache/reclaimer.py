"""Gives bytes back: eviction, expiry, flush."""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridcache.byte_price import BytePrice
from hybridcache.cached_tree import CachedTree
from hybridcache.ghost import GhostEntry, Gone
from hybridcache.lease import Lease
from hybridcache.node import FOREVER, NO_IDS, Node, Root
from hybridcache.pool import Ids, PoolName
from hybridcache.tree import subtree


class Held(NamedTuple):
    """Ids that leases keep from being evicted. An id may come several times: see ``blocks``."""

    pinned_blocks: list[Ids]
    leased_blocks: list[Ids]
    pinned_slots: int
    leased_slots: int

    def at_most(self) -> int:
        """No fewer than the blocks held; cheap."""
        return sum(map(len, self.pinned_blocks)) + sum(map(len, self.leased_blocks))

    def blocks(self) -> tuple[int, int]:
        """Blocks held in the tree, and blocks held by leases alone; each once."""
        pinned = np.unique(np.concatenate((NO_IDS, *self.pinned_blocks)))
        both = np.unique(np.concatenate((pinned, *self.leased_blocks)))
        return len(pinned), len(both) - len(pinned)


def held_by(leases: Iterable[Lease]) -> Held:
    """What ``leases`` pin in the tree and hold besides. Walks each pinned path once."""
    seen: set[Node] = set()
    held: list[Ids] = []
    leased: list[Ids] = []
    pinned_slots = leased_slots = 0
    for lease in leases:
        leased.append(lease.blocks)
        leased_slots += (lease.slot is not None) + (lease.staged is not None) + len(lease.emits)
        node: Node | None = lease.node
        while node is not None and node not in seen:
            seen.add(node)
            held.append(node.blocks)
            pinned_slots += node.slot_pins > 0
            node = node.parent
    return Held(held, leased, pinned_slots, leased_slots)


class Reclaimer:
    """Takes nodes and checkpoints out of the cached tree, never one that a lease pins."""

    __slots__ = ("store", "leases", "timer", "price")

    def __init__(self, store: CachedTree, leases: dict[int, Lease]) -> None:
        self.store = store
        self.leases = leases
        """Leases that have not ended, by id; shared with PrefixCache."""
        self.timer: Callable[[], float] | None = None
        """Seconds; None: evictions are not timed."""
        self.price = BytePrice()

    def make_room(self, pool: PoolName, num_bytes: int, now: float) -> bool:
        """Evict until ``pool`` has room for ``num_bytes``; False if that cannot be.

        Then nothing was evicted, unless a single request runs.
        """
        store, budget = self.store, self.store.budget
        if budget.room(pool) >= num_bytes:
            return True
        if not self._attainable(pool, num_bytes):
            return False
        if self.timer is None:
            return self._evict_until(pool, num_bytes, now)
        begin = self.timer()
        made = self._evict_until(pool, num_bytes, now)
        store.stats.eviction_seconds.observe(self.timer() - begin)
        return made

    def _evict_until(self, pool: PoolName, num_bytes: int, now: float) -> bool:
        store, budget = self.store, self.store.budget
        split = budget.memory == "split"
        while budget.room(pool) < num_bytes:
            store.refresh()
            victim = store.evictor.next(now, split and pool == "state", split and pool == "kv")
            if victim is not None:
                self.evict(victim, now)
            elif (split and pool == "state") or len(self.leases) > 1 or not self._squeeze(now):
                return False
        return True

    def _squeeze(self, now: float) -> bool:
        """Join the nodes on the path of the one request that runs; False when there is nothing to join.

        Nodes that end inside a block hold a block each for it, which a request that only just fits needs.
        """
        store, squeezed = self.store, False
        for lease in self.leases.values():
            squeezed |= self._share_last_block(lease)
            node = lease.node.parent
            while node is not None and node.parent is not None:
                above = node.parent
                if not node.pins and not node.slot_pins:
                    squeezed = True
                    if node.slot is not None:
                        self.evict(node, now)
                    if node.row >= 0:
                        store.join(node)
                node = above
        return squeezed

    def _share_last_block(self, lease: Lease) -> bool:
        """Let the node that a lease's path ends at have the lease's own block of its last tokens.

        Two blocks have them where the node was there before, and ends inside a block::

            [ node.blocks[-1] |            ]    from another request: freed
            [ lease.blocks[0] ............ ]    copied from it, or computed anew
        """
        node, blocks = lease.node, self.store.blocks
        copied = lease.block_copy is None or lease.num_computed > lease.hit
        if node.parent is None or node.children or not blocks.tail(node.stop) or not copied:
            return False
        if not len(lease.blocks):
            # The request begins just now, and asks for room for that block.
            return False
        old, own = node.blocks[-1:].copy(), lease.blocks[:1]
        if old[0] == own[0]:
            return False
        node.blocks[-1] = own[0]
        blocks.retain(int(own[0]))
        blocks.release(old)
        # Nodes above that lie in this block too may be its only holders now.
        above: Node | None = node
        while above is not None and above.parent is not None:
            self.store.changed(above)
            above = above.parent if blocks.tail(above.start) else None
        return True

    def evict(self, node: Node, now: float) -> None:
        """Evict a leaf, or the checkpoint of another node, or the last block of a leaf (``by_block``)."""
        store = self.store
        leaf = not node.children and not node.pins
        if store.evictor.policy.by_block and leaf and store.blocks.bytes_per_id:
            cut = (node.stop - 1) // store.blocks.block_size * store.blocks.block_size
            if cut > node.start:
                store.split(node, cut)
        store.evictor.evicted(node.row, now)
        store.stats.evictions += 1
        if leaf:
            store.stats.evicted_tokens += node.stop - node.start
        self._remember(node, Gone.EVICTED)
        used = store.budget.used_bytes
        if node.slot is not None:
            store.drop_slot(node)
        if leaf:
            store.tidy(store.remove(node), cascade=True)
        else:
            store.tidy(node)
        self.price.evicted(used - store.budget.used_bytes)

    def expire(self, now: float) -> None:
        """Free what has expired at ``now`` and is not pinned. Cheap when nothing has.

        Raises ValueError for a time that is infinite or NaN.
        """
        store = self.store
        if -FOREVER < now < store.next_expiry:
            return
        if not math.isfinite(now):
            raise ValueError(f"now={now}: give the time in seconds")
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
                store.tidy(store.remove(node))
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
                store.changed(store.remove(node))

    def _remember(self, node: Node, reason: Gone) -> None:
        store = self.store
        entry = GhostEntry(node.stop, int(store.table.hits[node.row]), reason, node.slot is not None)
        tree = store.tree
        digest = tree.prefix_hash(node).intdigest()
        policy = store.evictor.policy
        learns = (policy.remembers or policy.revives) and bool(store.table.resumable[node.row])
        facts = store.table.facts(node.row) if learns else None
        store.ghost.remember(digest, tree.tail(node), entry, store.table.num_nodes, facts)

    def _rows_before(self, expiry: NDArray[np.float64], now: float) -> list[Node]:
        """Nodes whose ``expiry`` (a column of the table) has come, the deepest first."""
        table = self.store.table
        rows = np.flatnonzero(expiry[: table.size] <= now)
        nodes = [table.nodes[row] for row in rows[np.argsort(-table.depth[rows], kind="stable")].tolist()]
        return [node for node in nodes if node is not None]

    def _attainable(self, pool: PoolName, num_bytes: int) -> bool:
        """Whether evicting everything evictable would make the room.

        A request that runs alone is always worth the try: as its path loses its branches and
        checkpoints, nodes join, and blocks that they held besides each other are freed.
        """
        if len(self.leases) == 1:
            return True
        held = held_by(self.leases.values())
        return self._room_beside(pool, num_bytes, held.at_most(), held) or self._room_beside(
            pool, num_bytes, sum(held.blocks()), held
        )

    def _room_beside(self, pool: PoolName, num_bytes: int, num_blocks: int, held: Held) -> bool:
        """Whether ``num_bytes`` fit if ``pool`` had nothing but ``num_blocks`` and the slots of ``held``."""
        store = self.store
        kv = num_blocks * store.blocks.bytes_per_id
        state = (held.pinned_slots + held.leased_slots) * store.slots.bytes_per_id
        if store.budget.memory == "split":
            return (kv if pool == "kv" else state) + num_bytes <= store.budget.limits[pool]
        return kv + state + num_bytes <= store.budget.budget_bytes


def checked_ttl(ttl_seconds: float | None) -> float:
    """Seconds that an entry lives unused; None for ever. Raises ValueError for what is not above 0."""
    if ttl_seconds is None:
        return FOREVER
    if not ttl_seconds > 0:
        raise ValueError(f"ttl_seconds={ttl_seconds!r}: give seconds above 0, or None for no expiry")
    # No float can be made of a whole number that is much larger.
    return ttl_seconds if ttl_seconds < 1e300 else FOREVER
