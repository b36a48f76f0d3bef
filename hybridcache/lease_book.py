"""Opens leases, moves their tokens to the tree, and ends them."""

import numpy as np

from hybridcache.cached_tree import CachedTree
from hybridcache.lease import BlockCopy, Lease, StateCopy
from hybridcache.node import NO_IDS, Match, Root
from hybridcache.policies.columns import REQUEST_ENDS
from hybridcache.reclaimer import Reclaimer


class LeaseBook:
    """The leases that have not ended, and what each pins and holds."""

    __slots__ = ("store", "reclaimer", "leases", "_next_id")

    def __init__(self, store: CachedTree) -> None:
        self.store = store
        self.leases: dict[int, Lease] = {}
        """By id."""
        self.reclaimer = Reclaimer(store, self.leases)
        self._next_id = 0

    def usable(self, match: Match, root: Root, num_tokens: int) -> Match:
        """``match``, or none where a request of ``num_tokens`` in all could not run alone on its path.

        Going on from the middle of a block takes a second block there, and resuming a second slot
        while the state is copied, and a second block where the source ends inside one. A request that
        only just fits the budget runs cold instead. Modifies nothing.
        """
        fits = not match.matched or self._fits_shared(match, num_tokens)
        return match if fits else Match(root, None, 0, root, 0)

    def _fits_shared(self, match: Match, num_tokens: int) -> bool:
        blocks, budget = self.store.blocks, self.store.budget
        extra = 1 if blocks.tail(match.matched) else 0
        kv = (blocks.blocks_for(num_tokens) + extra) * blocks.bytes_per_id
        if blocks.tail(match.hit) and match.hit < match.matched:
            extra += 1
        # Its first step computes one token at least, before the source of the state may go.
        path = (blocks.blocks_for(max(match.matched, match.hit + 1)) + extra) * blocks.bytes_per_id
        state = self.store.slots.bytes_per_id
        restoring = state * (1 if match.resume.slot is None else 2)
        if budget.memory == "split":
            return max(kv, path) <= budget.limits["kv"] and restoring <= budget.limits["state"]
        return max(kv + state, path + restoring) <= budget.budget_bytes

    def open(self, root: Root, prompt: bytes, match: Match, num_reserved: int, now: float) -> Lease | None:
        """Pin what was matched, make room and allocate; None, with everything as before, without room.

        Blocks are allocated for the first ``num_reserved`` of the tokens to compute.
        """
        store, blocks = self.store, self.store.blocks
        node = match.node if match.partial is None else store.split(match.partial, match.matched)
        lease = Lease(self._next_id, root, prompt, node)
        self._next_id += 1
        self.leases[lease.id] = lease
        root.leases += 1
        node.pins += 1
        store.changed(node)
        resume = match.resume if store.recurrent else node
        lease.source = None if resume is root else resume
        source_slot = resume.slot
        if source_slot is not None:
            resume.slot_pins += 1
            store.changed(resume)
        tail = blocks.tail(match.matched)
        make_room = self.reclaimer.make_room
        if tail and not make_room("kv", blocks.bytes_per_id, now):
            self.end(lease)
            return None
        if tail:
            lease.blocks = blocks.allocate(1)
            lease.block_copy = BlockCopy(int(node.blocks[-1]), int(lease.blocks[0]), tail)
        if store.recurrent:
            if not make_room("state", store.slots.bytes_per_id, now):
                self.end(lease)
                return None
            lease.slot = store.slots.take()
            if source_slot is not None:
                lease.state_copy = StateCopy(source_slot, lease.slot)
        lease.hit = lease.num_computed = match.hit
        lease.matched = lease.kv_start = match.matched
        if not self.reserve(lease, min(num_reserved, lease.num_prompt - lease.hit), now):
            self.end(lease)
            return None
        return lease

    def reserve(self, lease: Lease, n: int, now: float) -> bool:
        """Blocks for ``n`` tokens beyond ``num_computed``; False, with no change, when there is no room."""
        blocks = self.store.blocks
        have = blocks.index(lease.node.stop) + len(lease.blocks)
        missing = blocks.blocks_for(lease.num_computed + n) - have
        if missing <= 0 or lease.num_computed + n <= lease.node.stop:
            return True
        if not self.reclaimer.make_room("kv", missing * blocks.bytes_per_id, now):
            return False
        # The pinned path may have changed shape while room was made, but not where it ends.
        ids = blocks.allocate(missing)
        lease.blocks = np.concatenate((lease.blocks, ids)) if len(lease.blocks) else ids
        return True

    def touch(self, lease: Lease, now: float) -> None:
        """Reading renews the expiry of the path, and of the checkpoint resumed at; notes what that is."""
        store, expires_at = self.store, now + lease.ttl_seconds
        store.live_until(lease.node, expires_at)
        source = lease.source
        if source is not None:
            lease.follows_up |= int(store.table.kind[source.row]) in REQUEST_ENDS
            store.hit(source, now)
            if source.slot is not None and source.slot_expires_at < expires_at:
                store.renew_slot(source, expires_at)

    def insert(self, lease: Lease, upto: int, now: float) -> None:
        """Make the lease's tokens before ``upto`` matchable, and move its pin to where they end."""
        node = lease.node
        if upto <= node.stop or not lease.root.attached:
            return
        store = self.store
        edge = lease.edge(node.stop, upto)
        lease.node, lease.blocks = store.insert(node, edge, lease.blocks, now, now + lease.ttl_seconds)
        if lease.node is node:
            return
        lease.node.pins += 1
        store.changed(lease.node)
        node.pins -= 1
        store.tidy(node)

    def end_restore(self, lease: Lease) -> None:
        """The source checkpoint's pin ends."""
        source, lease.source = lease.source, None
        if source is None or source.slot is None:
            return
        source.slot_pins -= 1
        if not lease.root.attached and not source.slot_pins:
            self.store.drop_slot(source)
            self.store.tidy(source)
        self.store.changed(source)

    def end(self, lease: Lease) -> None:
        """End every pin and free what the lease still holds: the one place that does."""
        store = self.store
        lease.ended = True
        del self.leases[lease.id]
        self.end_restore(lease)
        for _, slot in lease.emits if lease.staged is None else [lease.staged]:
            store.slots.free(slot)
        lease.staged = None
        lease.emits.clear()
        if lease.slot is not None:
            store.slots.free(lease.slot)
            lease.slot = None
        store.blocks.release(lease.blocks)
        lease.blocks = NO_IDS
        lease.node.pins -= 1
        store.tidy(lease.node)
        lease.root.leases -= 1
        store.tree.forget_if_empty(lease.root)
