"""Takes the checkpoints that leases planned."""

from collections.abc import Sequence

import numpy as np

from hybridcache.checkpoint_plan import end_planned, make_plan
from hybridcache.ghost import Gone, Remembered
from hybridcache.lease import Lease, StateCopy, StateEmit
from hybridcache.lease_book import LeaseBook
from hybridcache.node import Node
from hybridcache.policies.admission import AdmissionPolicy, PromptFacts
from hybridcache.policies.columns import INTERVAL


class CheckpointTaker:
    """Finds slots for the states at planned positions, and attaches them once they are written."""

    __slots__ = ("book", "store", "admission")

    def __init__(self, book: LeaseBook, admission: AdmissionPolicy) -> None:
        self.book = book
        self.store = book.store
        self.admission = admission
        if not isinstance(getattr(admission, "name", None), str):
            raise ValueError(f"admission policy {type(admission).__name__} has no name: give its class one")
        for flag in ("final", "latest_only"):
            if not isinstance(value := getattr(admission, flag), bool):
                raise ValueError(
                    f"admission policy {admission.name!r} has {flag}={value!r}: give True or False"
                )

    def plan(
        self,
        lease: Lease,
        remembered: Remembered,
        first: bool,
        *,
        leaves_path: bool,
        turn_end: int | None,
        hints: Sequence[int],
        boundaries: Sequence[int],
    ) -> None:
        """Plan the checkpoints of a new lease; with ``first`` the policy learns from its prompt.

        The rest is what PromptFacts tells the policy.
        """
        gone, price = remembered.resumable, self.book.reclaimer.price
        if first:
            evicted = gone is not None and gone.reason == Gone.EVICTED
            price.request(gone.depth - lease.hit if gone is not None and evicted else 0)
        prompt = PromptFacts(
            lease.num_prompt, lease.hit, lease.matched, leaves_path, turn_end, self.store.blocks.block_size,
            tuple(hints), tuple(boundaries), gone=0 if gone is None else gone.depth,
            price=price.of(self.store.slots.bytes_per_id),
        )  # fmt: skip
        make_plan(lease, prompt, self.admission, self.store, first)

    def emits(self, lease: Lease, stop: int, now: float) -> Sequence[StateEmit]:
        """Slots for the states planned in (num_computed, stop], for a step that computes up to ``stop``.

        The step writes them as it passes, so that a chunk need not end there. After the step call
        ``computed``, then ``checkpointed``. A position without room is skipped.
        """
        _nothing_is_written(lease)
        if not lease.planned:
            return ()
        positions = [position for position in lease.planned if lease.num_computed < position <= stop]
        intervals = [position for position in positions if lease.kinds[position] == INTERVAL]
        spare = set(intervals).difference(self._thin(lease, intervals))
        for position in positions:
            if position in spare or not self._room_for_state(lease, now):
                self._skip(lease, position)
            else:
                lease.emits.append(StateEmit(position, self.store.slots.take()))
        return tuple(lease.emits)

    def stage(self, lease: Lease, now: float) -> StateCopy | None:
        """A slot for the state at ``num_computed``, which must be ``planned[0]``; None: skip it.

        After performing the copy call ``checkpointed``; after None there is nothing to perform, and
        ``checkpointed`` does nothing.
        """
        _nothing_is_written(lease)
        if not lease.planned or lease.planned[0] != lease.num_computed:
            raise ValueError(f"no checkpoint is planned at {lease.num_computed}: planned {lease.planned}")
        assert lease.slot is not None, lease
        position = lease.planned[0]
        if lease.kinds[position] == INTERVAL:
            self._thin(lease, [position])
        if not self._room_for_state(lease, now):
            self._skip(lease, position)
            return None
        slot = self.store.slots.take()
        lease.staged = (position, slot)
        return StateCopy(lease.slot, slot)

    def attach(self, lease: Lease, now: float) -> None:
        """The copy of ``checkpoint`` is issued, or the step of ``emits`` is over: these are matchable.

        Raises ValueError when ``computed`` has not passed the emits yet.
        """
        if lease.emits and lease.emits[-1].position > lease.num_computed:
            raise ValueError(f"{lease.emits[-1]} lies beyond {lease.num_computed}: call computed first")
        staged = [*lease.emits] if lease.staged is None else [lease.staged]
        lease.staged = None
        lease.emits.clear()
        for position, slot in staged:
            if lease.root.attached:
                self.book.insert(lease, position, now)
                node = self.store.node_at(lease.node, position)
                kind = lease.kinds[position]
                hits = lease.revived.get(position, 0)
                taken = self.store.attach(node, slot, kind, now, now + lease.ttl_seconds, hits)
                if taken and kind == INTERVAL:
                    if self.admission.latest_only:
                        self._drop_unused(lease.interval_nodes)
                    lease.interval_nodes.append(node)
            else:
                self.store.slots.free(slot)
            self._end_planned(lease, position)
        self.skip_passed(lease)

    def skip_passed(self, lease: Lease) -> None:
        """Give up the planned positions that the lease has passed without writing the state there."""
        written = lease.being_written
        planned, first = lease.planned, 0
        # Only the passed positions are looked at: a long plan is not walked at each of its checkpoints.
        while first < len(planned) and planned[first] < lease.num_computed:
            if planned[first] in written:
                first += 1
            else:
                self._skip(lease, planned[first])

    def _skip(self, lease: Lease, position: int) -> None:
        self.store.stats.checkpoints_skipped += 1
        self._end_planned(lease, position)

    def _end_planned(self, lease: Lease, position: int) -> None:
        end_planned(lease, position, self.admission, self.store)

    def _thin(self, lease: Lease, positions: list[int]) -> list[int]:
        """Keep a request's interval checkpoints within a quarter of the budget; which ``positions`` to take.

        Beyond it the one goes, of those that are there and those that are to come, whose loss costs the least
        recomputation: the one with the closest neighbours. The last one stays, and so does one more.
        """
        most = max(self.store.budget.limits["state"] / 4 / self.store.slots.bytes_per_id, 2)
        if len(lease.interval_nodes) + len(positions) <= most:
            return positions
        nodes = self._still_there(lease.interval_nodes)
        ends = np.array([0, *(node.stop for node in nodes), *positions])
        kept = np.arange(1, len(ends))
        while len(kept) > most:
            around = np.concatenate(([0], kept))
            kept = np.delete(kept, np.argmin(ends[around[2:]] - ends[around[:-2]]))
        for node in (node for i, node in enumerate(nodes, 1) if i not in kept):
            self.store.drop_slot(node)
            self.store.tidy(node)
        lease.interval_nodes = [node for node in nodes if node.slot is not None]
        return [int(ends[i]) for i in kept if i > len(nodes)]

    def _still_there(self, nodes: list[Node]) -> list[Node]:
        """Those of ``nodes`` whose INTERVAL checkpoint is there and not pinned, ascending, each once.

        A node that has lost its checkpoint may have grown since, and have got the next one, or another
        request's.
        """
        kind = self.store.table.kind
        held = {node for node in nodes if node.slot is not None and kind[node.row] == INTERVAL}
        return sorted((node for node in held if not node.slot_pins), key=lambda node: node.stop)

    def _drop_unused(self, nodes: list[Node]) -> None:
        """Give up the checkpoints of ``nodes`` that no request has resumed at, and forget them all."""
        for node in self._still_there(nodes):
            if not self.store.table.hits[node.row]:
                self.store.drop_slot(node)
                self.store.tidy(node)
        nodes.clear()

    def _room_for_state(self, lease: Lease, now: float) -> bool:
        return lease.root.attached and self.book.reclaimer.make_room(
            "state", self.store.slots.bytes_per_id, now
        )


def _nothing_is_written(lease: Lease) -> None:
    if lease.staged is not None or lease.emits:
        positions = sorted(lease.being_written)
        raise ValueError(f"checkpoints at {positions} are being written: call checkpointed first")
