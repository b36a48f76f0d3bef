"""The prefix cache: leases over one tree and two pools under one byte budget."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from hybridcache.audit import audit
from hybridcache.cached_tree import CachedTree
from hybridcache.checkpoint_plan import add_awaited, end_planned, make_plan
from hybridcache.ghost import NOTHING
from hybridcache.lease import BlockCopy, Lease, StateCopy, StateEmit, Wait
from hybridcache.loss import Lookup, lost_tokens
from hybridcache.namespace import Namespace
from hybridcache.node import FOREVER, NO_IDS, TOKEN_BYTES, Match, Root
from hybridcache.pending import longest_pending
from hybridcache.policies.admission import AdmissionPolicy, PromptFacts
from hybridcache.policies.columns import FINAL, INTERVAL
from hybridcache.policies.eviction import EvictionPolicy
from hybridcache.pool import Ids, MemoryBudget
from hybridcache.prefix_hash import Digest
from hybridcache.reclaimer import Reclaimer, held_by
from hybridcache.spec import ModelSpec
from hybridcache.stats import CacheStats, PoolUsage, Usage
from hybridcache.tokens import TokenIds, as_token_ids


class RequestTooLarge(ValueError):
    """A request that could not run even if it had the whole budget."""


class PrefixMatch(NamedTuple):
    """What a prompt would find now; tokens."""

    hit: int
    matched: int


class PrefixCache:
    """Joins tree, pools, table and policies; the only writer of tree and pools; speaks in ids.

    Neither torch nor a clock: callers pass ``now`` in seconds, which must not run backwards. Not
    thread-safe: one thread owns it. The life of a request::

        lease = cache.acquire(prompt, namespace, now)      # perform lease.state_copy, lease.block_copy
        cache.restored(lease)
        while there are tokens to compute:                 # a chunk ends at lease.planned[0]
            cache.reserve(lease, n)                        # False: finish (preempt) some lease
            cache.computed(lease, tokens, now)
            if lease.planned and lease.planned[0] == lease.num_computed:
                copy = cache.checkpoint(lease, now)        # perform it, unless None
                cache.checkpointed(lease, now)
        cache.finish(lease, keep_tokens, now)

    ``budget_bytes`` may be infinite. ``memory='unified'`` lets blocks and checkpoints share it;
    ``'split'`` gives blocks ``kv_fraction`` of it. ``ttl_seconds``: how long what is computed or read
    lives, sliding; None for ever.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        budget_bytes: float,
        eviction: EvictionPolicy,
        admission: AdmissionPolicy,
        block_size: int = 16,
        memory: str = "unified",
        kv_fraction: float = 0.5,
        ttl_seconds: float | None = None,
    ) -> None:
        self.spec = spec
        self.admission = admission
        self.budget = MemoryBudget(budget_bytes, memory, kv_fraction)
        self.store = CachedTree(spec, self.budget, block_size, eviction)
        self.ttl_seconds = _checked_ttl(ttl_seconds)
        self.leases: dict[int, Lease] = {}
        """Leases that have not ended, by id."""
        self._reclaimer = Reclaimer(self.store, self.leases)
        self._next_id = 0

    @property
    def stats(self) -> CacheStats:
        """Running counters; the object itself, not a copy."""
        return self.store.stats

    @property
    def peak_bytes(self) -> int:
        """The most bytes that blocks and slots ever held together, running requests included."""
        return self.budget.peak_bytes

    # Questions: these modify nothing

    def match_prefix(self, tokens: Sequence[int] | TokenIds, namespace: Namespace, now: float) -> PrefixMatch:
        """What ``acquire`` would hit and match at ``now``, if it had room."""
        root = self.store.tree.roots.get(namespace)
        prompt = as_token_ids(tokens)
        if root is None or not len(prompt):
            return PrefixMatch(0, 0)
        match = self.store.tree.match(root, prompt.tobytes(), now)
        return PrefixMatch(match.hit, match.matched)

    def fits(self, num_prompt: int, max_tokens: int = 1) -> bool:
        """Whether a request of ``num_prompt`` + ``max_tokens`` tokens could run with the whole budget."""
        kv = self.store.blocks.blocks_for(num_prompt + max_tokens - 1) * self.store.blocks.bytes_per_id
        state = self.store.slots.bytes_per_id
        limits = self.budget.limits
        if self.budget.memory == "split":
            return kv <= limits["kv"] and state <= limits["state"]
        return kv + state <= self.budget.budget_bytes

    def usage(self) -> Usage:
        """Bytes now, recounted from what leases hold."""
        held, bytes_per_block, bytes_per_slot = (
            held_by(self.leases.values()),
            self.store.blocks.bytes_per_id,
            self.store.slots.bytes_per_id,
        )
        kv_pinned, kv_leased = held.pinned_blocks * bytes_per_block, held.leased_blocks * bytes_per_block
        st_pinned, st_leased = held.pinned_slots * bytes_per_slot, held.leased_slots * bytes_per_slot
        return Usage(
            self.budget.budget_bytes,
            self.budget.budget_bytes - self.budget.used_bytes,
            PoolUsage(self.budget.used["kv"] - kv_pinned - kv_leased, kv_pinned, kv_leased),
            PoolUsage(self.budget.used["state"] - st_pinned - st_leased, st_pinned, st_leased),
        )

    def check(self) -> None:
        """Recount everything from scratch; AssertionError when a count, link or fact is wrong."""
        self.store.refresh()
        audit(self.store, self.leases)

    # The lease

    def acquire(
        self,
        tokens: Sequence[int] | TokenIds,
        namespace: Namespace,
        now: float,
        *,
        max_tokens: int = 1,
        boundaries: Sequence[int] = (),
        turn_end: int | None = None,
        ttl_seconds: float | None = None,
        waited: Collection[int] = (),
        first: bool = True,
    ) -> Lease | Wait | None:
        """Match, pin and allocate in one act: a Lease; None when there is no room now; or a Wait.

        ``tokens`` [P] is the prompt; ``max_tokens`` how many may be generated (the last one is never
        computed); ``boundaries`` the ends of its messages, ascending, for explaining losses;
        ``turn_end`` the end of the last user turn, a hint for admission; ``waited`` the positions this
        request has waited for before; ``first`` False when a preempted request comes back (it is not
        counted again). None and Wait change nothing but the plan of the lease to wait for.

        Raises RequestTooLarge when the request could never fit, ValueError for an empty prompt, ids
        out of range or a bad limit.
        """
        prompt = as_token_ids(tokens)
        num_prompt = len(prompt)
        if not num_prompt:
            raise ValueError("the prompt is empty: give at least one token")
        if max_tokens < 1:
            raise ValueError(f"max_tokens={max_tokens}: give at least 1")
        ttl = self.ttl_seconds if ttl_seconds is None else _checked_ttl(ttl_seconds)
        if not self.fits(num_prompt, max_tokens):
            raise self._refusal(num_prompt, max_tokens, first)
        store = self.store
        self._reclaimer.expire(now)
        root = store.tree.root(namespace)
        raw = prompt.tobytes()
        match = store.tree.match(root, raw, now)
        if self.leases:
            block_size = self.store.blocks.block_size
            wait = longest_pending(self.leases.values(), root, raw, match.hit, block_size, waited)
            if wait is not None:
                add_awaited(wait.lease, wait.position, store.recurrent)
                store.stats.waits += 1
                return wait
        if match.matched and not self._fits_shared(match, num_prompt + max_tokens - 1):
            match = Match(root, None, 0, root, 0)
        path_goes_on = match.partial is not None or bool(match.node.children)
        lost, digest = self._losses(match, raw, path_goes_on, boundaries)
        lease = self._admit(root, raw, match, now)
        if lease is None:
            return None
        lease.ttl_seconds = ttl
        if store.recurrent:
            facts = PromptFacts(
                num_prompt, lease.hit, lease.matched, path_goes_on, turn_end, store.blocks.block_size
            )
            make_plan(lease, facts, self.admission)
        lease.lost, lease.digest = lost, digest
        if first:
            self._count(lease)
        self._touch(lease, now)
        return lease

    def restored(self, lease: Lease) -> None:
        """The copies of ``acquire`` are issued: the source checkpoint may be evicted again."""
        self._active(lease)
        self._end_restore(lease)

    def reserve(self, lease: Lease, n: int, now: float) -> bool:
        """Blocks for ``n`` tokens beyond ``num_computed``; False, with no change, when there is no room."""
        self._active(lease)
        blocks = self.store.blocks
        have = blocks.index(lease.node.stop) + len(lease.blocks)
        missing = blocks.blocks_for(lease.num_computed + n) - have
        if missing <= 0 or lease.num_computed + n <= lease.node.stop:
            return True
        if not self._reclaimer.make_room("kv", missing * blocks.bytes_per_id, now):
            return False
        # The pinned path may have changed shape while room was made, but not where it ends.
        lease.blocks = np.concatenate((lease.blocks, blocks.allocate(missing)))
        return True

    def computed(self, lease: Lease, tokens: Sequence[int] | TokenIds, now: float) -> None:
        """A step succeeded: ``tokens`` are the ids at positions from ``num_computed`` on.

        Their blocks must be reserved. Prompt tokens become matchable; generated ones do at the next
        checkpoint or at ``finish``. A planned position that the step passed without stopping is skipped,
        unless it wrote the state there (see ``emits``).

        Raises ValueError when ``tokens`` differ from the prompt, or were not reserved.
        """
        self._active(lease)
        ids = as_token_ids(tokens)
        start, stop = lease.num_computed, lease.num_computed + len(ids)
        blocks = self.store.blocks
        in_tree = lease.node.stop
        if stop > in_tree and blocks.blocks_for(stop) > blocks.index(in_tree) + len(lease.blocks):
            raise ValueError(f"tokens [{start}, {stop}) have no blocks: call reserve before the step")
        raw = ids.tobytes()
        known = max(lease.num_prompt - start, 0) * TOKEN_BYTES
        if known and not lease.prompt.startswith(raw[:known], start * TOKEN_BYTES):
            raise ValueError(f"the tokens computed at [{start}, {stop}) are not the prompt's")
        lease.generated += raw[known:]
        lease.num_computed = stop
        if lease.planned and lease.planned[0] < stop:
            self._skip_passed(lease)
        if lease.awaited and not self.store.recurrent:
            lease.awaited -= {position for position in lease.awaited if position <= stop}
        self._insert(lease, min(stop, lease.num_prompt), now)

    def emits(self, lease: Lease, stop: int, now: float) -> Sequence[StateEmit]:
        """Slots for the states planned in (num_computed, stop], for a step that computes up to ``stop``.

        The step writes them as it passes, so that a chunk need not end there. After the step call
        ``computed``, then ``checkpointed``. A position without room is skipped.
        """
        self._active(lease)
        assert lease.slot is not None and lease.staged is None and not lease.emits, lease
        for position in [position for position in lease.planned if lease.num_computed < position <= stop]:
            interval = lease.kinds[position] == INTERVAL
            if (interval and not self._thin(lease, position)) or not self._room_for_state(lease, now):
                self._skip(lease, position)
            else:
                lease.emits.append(StateEmit(position, self.store.slots.take()))
        return tuple(lease.emits)

    def checkpoint(self, lease: Lease, now: float) -> StateCopy | None:
        """A slot for the state at ``num_computed``, which must be ``planned[0]``; None: skip it.

        After performing the copy call ``checkpointed``; after None there is nothing to perform, and
        ``checkpointed`` does nothing.
        """
        self._active(lease)
        if not lease.planned or lease.planned[0] != lease.num_computed:
            raise ValueError(f"no checkpoint is planned at {lease.num_computed}: planned {lease.planned}")
        assert lease.slot is not None and lease.staged is None, lease
        position = lease.planned[0]
        if lease.kinds[position] == INTERVAL:
            self._thin(lease, position)
        if not self._room_for_state(lease, now):
            self._skip(lease, position)
            return None
        slot = self.store.slots.take()
        lease.staged = (position, slot)
        return StateCopy(lease.slot, slot)

    def checkpointed(self, lease: Lease, now: float) -> None:
        """The copy of ``checkpoint`` is issued, or the step of ``emits`` is over: these are matchable.

        Raises ValueError when ``computed`` has not passed the emits yet.
        """
        self._active(lease)
        if lease.emits and lease.emits[-1].position > lease.num_computed:
            raise ValueError(f"{lease.emits[-1]} lies beyond {lease.num_computed}: call computed first")
        staged = [*lease.emits] if lease.staged is None else [lease.staged]
        lease.staged = None
        lease.emits.clear()
        for position, slot in staged:
            if lease.root.attached:
                self._insert(lease, position, now)
                node = self.store.node_at(lease.node, position)
                kind = lease.kinds[position]
                if self.store.attach(node, slot, kind, now, now + lease.ttl_seconds) and kind == INTERVAL:
                    lease.interval_nodes.append(node)
            else:
                self.store.slots.free(slot)
            self._end_planned(lease, position)

    def block_table(self, lease: Lease) -> Ids:
        """Ids of the blocks of a lease's tokens from 0 on, reserved ones included. Modifies nothing."""
        return lease.block_table(self.store.blocks.block_size)

    def drain_freed(self) -> tuple[Ids, Ids]:
        """Blocks and slots freed since the last call that are still free; storage gives up their memory.

        The copies asked for so far may read from them, and are performed first.
        """
        return self.store.blocks.drain_freed(), self.store.slots.drain_freed()

    def finish(self, lease: Lease, keep_tokens: int, now: float) -> None:
        """End a lease (finished, aborted or preempted): keep what was computed up to ``keep_tokens``.

        The running slot becomes the checkpoint at the end, without a copy, when its state stands
        there; when the state is beyond ``keep_tokens`` the slot is freed. Raises ValueError when the
        lease has ended before, or for a negative ``keep_tokens``.
        """
        self._active(lease)
        if keep_tokens < 0:
            raise ValueError(f"keep_tokens={keep_tokens}: give the tokens to keep, at least 0")
        self._reclaimer.expire(now)
        end = min(keep_tokens, lease.num_computed)
        if lease.root.attached:
            self._insert(lease, end, now)
            if lease.slot is not None and self.admission.final and lease.hit < end == lease.num_computed:
                node = self.store.node_at(lease.node, end)
                self.store.attach(node, lease.slot, FINAL, now, now + lease.ttl_seconds)
                lease.slot = None
        self._end(lease)

    def drop(self, lease: Lease, now: float) -> None:
        """End a lease whose step failed: what earlier steps made matchable stays, nothing is added."""
        self._active(lease)
        self._end(lease)

    def flush(self, namespace: Namespace | None = None) -> None:
        """Forget a namespace, or all: nothing of before is matchable; what leases hold goes as they end."""
        tree = self.store.tree
        for name in [namespace] if namespace is not None else list(tree.roots):
            root = tree.detach(name)
            if root is not None:
                self._reclaimer.flush(root)

    # Inside

    def _refusal(self, num_prompt: int, max_tokens: int, first: bool) -> RequestTooLarge:
        blocks = self.store.blocks
        count = blocks.blocks_for(num_prompt + max_tokens - 1)
        if first:
            self.stats.requests += 1
            self.stats.requests_refused += 1
            self.stats.input_tokens += num_prompt
        return RequestTooLarge(
            f"{num_prompt} prompt tokens and max_tokens={max_tokens} need {count} blocks of "
            f"{blocks.bytes_per_id} bytes and a state of {self.spec.checkpoint_bytes} bytes; the budget is "
            f"{self.budget.budget_bytes:.0f} bytes (memory={self.budget.memory}): shorten the request or "
            "raise the budget"
        )

    def _fits_shared(self, match: Match, num_tokens: int) -> bool:
        """Whether a request of ``num_tokens`` in all could run alone on the path it matched.

        Going on from the middle of a block takes a second block there, and resuming a second slot
        while the state is copied. A request that only just fits the budget runs cold instead.
        """
        blocks = self.store.blocks
        extra = 1 if blocks.tail(match.matched) else 0
        kv = (blocks.blocks_for(num_tokens) + extra) * blocks.bytes_per_id
        path = (blocks.blocks_for(match.matched) + extra) * blocks.bytes_per_id
        state = self.spec.checkpoint_bytes
        restoring = state * (1 if match.resume.slot is None else 2)
        if self.budget.memory == "split":
            return kv <= self.budget.limits["kv"] and restoring <= self.budget.limits["state"]
        return max(kv + state, path + restoring) <= self.budget.budget_bytes

    def _admit(self, root: Root, prompt: bytes, match: Match, now: float) -> Lease | None:
        """Pin what was matched, make room and allocate; None, with everything as before, without room."""
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
        make_room = self._reclaimer.make_room
        if tail and not make_room("kv", blocks.bytes_per_id, now):
            self._end(lease)
            return None
        if tail:
            lease.blocks = blocks.allocate(1)
            lease.block_copy = BlockCopy(int(node.blocks[-1]), int(lease.blocks[0]), tail)
        if store.recurrent:
            if not make_room("state", self.spec.checkpoint_bytes, now):
                self._end(lease)
                return None
            lease.slot = store.slots.take()
            if source_slot is not None:
                lease.state_copy = StateCopy(source_slot, lease.slot)
        lease.hit = lease.num_computed = match.hit
        lease.matched = lease.kv_start = match.matched
        return lease

    def _losses(
        self, match: Match, prompt: bytes, path_goes_on: bool, boundaries: Sequence[int]
    ) -> tuple[dict[str, int], Digest | None]:
        """Tokens of ``prompt`` that are lost, by reason; the prompt's digest, if that took it.

        Modifies nothing but the digests that nodes remember.
        """
        store, num_prompt = self.store, len(prompt) // TOKEN_BYTES
        remembered, digest = NOTHING, None
        if len(store.ghost) and match.hit < num_prompt - 1:
            base = match.resume.stop
            digests = store.tree.hash.running(
                store.tree.digest(match.resume), prompt[base * TOKEN_BYTES :], base
            )
            remembered = store.ghost.look_up(digests, base, match.matched)
            digest = int(digests[0, -1]), int(digests[1, -1])
        lookup = Lookup(
            num_prompt, match.hit, match.matched, path_goes_on, boundaries, store.blocks.block_size
        )
        return lost_tokens(lookup, remembered), digest

    def _count(self, lease: Lease) -> None:
        stats = self.store.stats
        stats.requests += 1
        stats.input_tokens += lease.num_prompt
        stats.matched_tokens += lease.matched
        if lease.hit:
            stats.hit_tokens += lease.hit
            stats.request_hits += 1
            stats.flops_saved += self.spec.prefix_flops(lease.hit)

    def _touch(self, lease: Lease, now: float) -> None:
        """Reading renews the expiry of the path, and of the checkpoint resumed at."""
        store, expires_at = self.store, now + lease.ttl_seconds
        store.live_until(lease.node, expires_at)
        source = lease.source
        if source is not None:
            store.hit(source, now)
            if source.slot is not None and source.slot_expires_at < expires_at:
                store.renew_slot(source, expires_at)

    def _insert(self, lease: Lease, upto: int, now: float) -> None:
        """Make the lease's tokens before ``upto`` matchable, and move its pin to where they end."""
        node = lease.node
        if upto <= node.stop or not lease.root.attached:
            return
        store = self.store
        edge = lease.edge(node.stop, upto)
        lease.node, lease.blocks = store.insert(node, edge, lease.blocks, now, now + lease.ttl_seconds)
        if lease.node.stop == lease.num_prompt and lease.node.digest is None:
            lease.node.digest = lease.digest
        if lease.node is node:
            return
        lease.node.pins += 1
        store.changed(lease.node)
        node.pins -= 1
        store.tidy(node)

    def _thin(self, lease: Lease, position: int) -> bool:
        """Keep one request's interval checkpoints within a quarter of the budget; whether one more fits.

        Beyond it the one goes whose loss costs the least recomputation: the one with the closest
        neighbours. Those that the running step is to write stay.
        """
        most = self.budget.limits["state"] / 4 / self.spec.checkpoint_bytes
        taken = len(lease.emits) + 1
        if len(lease.interval_nodes) + taken <= most:
            return True
        nodes = [node for node in lease.interval_nodes if node.slot is not None and not node.slot_pins]
        if len(nodes) >= 2 and len(nodes) + taken > most:
            ends = [node.stop for node in nodes] + [position]
            gaps = [ends[i + 1] - (ends[i - 1] if i else 0) for i in range(len(nodes))]
            node = nodes.pop(gaps.index(min(gaps)))
            self.store.drop_slot(node)
            self.store.tidy(node)
        lease.interval_nodes = nodes
        return taken == 1 or len(nodes) + taken <= most

    def _room_for_state(self, lease: Lease, now: float) -> bool:
        return lease.root.attached and self._reclaimer.make_room("state", self.spec.checkpoint_bytes, now)

    def _skip_passed(self, lease: Lease) -> None:
        emitted = {emit.position for emit in lease.emits}
        while passed := [at for at in lease.planned if at < lease.num_computed and at not in emitted]:
            self._skip(lease, passed[0])

    def _skip(self, lease: Lease, position: int) -> None:
        self.store.stats.checkpoints_skipped += 1
        self._end_planned(lease, position)

    def _end_planned(self, lease: Lease, position: int) -> None:
        end_planned(lease, position, self.admission, self.store.blocks.block_size)

    def _end_restore(self, lease: Lease) -> None:
        """The source checkpoint's pin ends."""
        source, lease.source = lease.source, None
        if source is None or source.slot is None:
            return
        source.slot_pins -= 1
        if not lease.root.attached and not source.slot_pins:
            self.store.drop_slot(source)
            self.store.tidy(source)
        self.store.changed(source)

    def _end(self, lease: Lease) -> None:
        """End every pin and free what the lease still holds: the one place that does."""
        store = self.store
        lease.ended = True
        del self.leases[lease.id]
        self._end_restore(lease)
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

    @staticmethod
    def _active(lease: Lease) -> None:
        if lease.ended:
            raise ValueError(f"lease {lease.id} has ended: a lease ends once, and is not used afterwards")


def _checked_ttl(ttl_seconds: float | None) -> float:
    if ttl_seconds is None:
        return FOREVER
    if not ttl_seconds > 0:
        raise ValueError(f"ttl_seconds={ttl_seconds!r}: give seconds above 0, or None for no expiry")
    return ttl_seconds
