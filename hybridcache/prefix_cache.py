"""The prefix cache: leases over one tree and two pools under one byte budget."""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from hybridcache.audit import audit
from hybridcache.cached_tree import CachedTree
from hybridcache.checkpoint_taker import CheckpointTaker
from hybridcache.lease import Lease, StateCopy, StateEmit, Wait
from hybridcache.lease_book import LeaseBook
from hybridcache.loss import losses
from hybridcache.namespace import Namespace
from hybridcache.pending import ask_to_wait, longest_pending
from hybridcache.policies.admission import AdmissionPolicy
from hybridcache.policies.columns import FINAL, FOLLOW_UP
from hybridcache.policies.eviction import EvictionPolicy
from hybridcache.pool import Ids, MemoryBudget
from hybridcache.reclaimer import checked_ttl, held_by
from hybridcache.revival import revive
from hybridcache.spec import ModelSpec
from hybridcache.stats import CacheStats, PoolUsage, Usage
from hybridcache.tokens import TOKEN_BYTES, TokenIds, as_positions, as_token_ids


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
    lives, sliding; None for ever. ``timer`` gives seconds, for measuring how long evictions take.
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
        timer: Callable[[], float] | None = None,
    ) -> None:
        self.spec = spec
        self.admission = admission
        self.budget = MemoryBudget(budget_bytes, memory, kv_fraction)
        self.store = CachedTree(spec, self.budget, block_size, eviction)
        self.ttl_seconds = checked_ttl(ttl_seconds)
        self._book = LeaseBook(self.store)
        self._reclaimer = self._book.reclaimer
        self._reclaimer.timer = timer
        self._taker = CheckpointTaker(self._book, admission)

    @property
    def stats(self) -> CacheStats:
        """Running counters; the object itself, not a copy."""
        return self.store.stats

    @property
    def leases(self) -> dict[int, Lease]:
        """Leases that have not ended, by id."""
        return self._book.leases

    @property
    def peak_bytes(self) -> int:
        """The most bytes that blocks and slots ever held together, running requests included."""
        return self.budget.peak_bytes

    # Questions: these modify nothing

    def match_prefix(self, tokens: Sequence[int] | TokenIds, namespace: Namespace, now: float) -> PrefixMatch:
        """What ``acquire`` would hit and match at ``now``, if it had room."""
        root = self.store.tree.known_root(namespace)
        prompt = as_token_ids(tokens)
        if root is None or not len(prompt):
            return PrefixMatch(0, 0)
        match = self.store.tree.match(root, prompt.tobytes(), now)
        return PrefixMatch(match.hit, match.matched)

    def explain(
        self,
        tokens: Sequence[int] | TokenIds,
        namespace: Namespace,
        now: float,
        *,
        max_tokens: int = 1,
        boundaries: Sequence[int] = (),
    ) -> tuple[PrefixMatch, dict[str, int]]:
        """What ``acquire`` would hit and match, if it had room, and the tokens that it would lose, by reason.

        Frees what has expired, as ``acquire`` does first, and modifies nothing else. Raises as it does.
        """
        tree, prompt = self.store.tree, self._admissible(tokens, max_tokens, first=False)
        boundaries = as_positions("boundaries", boundaries)
        self._reclaimer.expire(now)
        root, raw = tree.root(namespace), prompt.tobytes()
        match = self._book.usable(tree.match(root, raw, now), root, len(prompt) + max_tokens - 1)
        lost, _ = losses(self.store, match, raw, boundaries)
        tree.forget_if_empty(root)
        return PrefixMatch(match.hit, match.matched), lost

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
        kv_pinned, kv_leased = (count * bytes_per_block for count in held.blocks())
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

    def refuse(self, num_prompt: int, max_tokens: int, *, first: bool = True) -> RequestTooLarge:
        """Count a request that can never fit (see ``fits``), and the error to raise for it."""
        if first:
            self.stats.requests += 1
            self.stats.requests_refused += 1
            self.stats.input_tokens += num_prompt
            self.stats.lose("too_large", num_prompt)
        blocks, memory = self.store.blocks, self.budget.memory
        if memory == "split":
            memory += f", {self.budget.limits['kv']:.0f} of them for blocks"
        return RequestTooLarge(
            f"{num_prompt} prompt tokens and max_tokens={max_tokens} need "
            f"{blocks.blocks_for(num_prompt + max_tokens - 1)} blocks of {blocks.bytes_per_id} bytes and a "
            f"state of {self.spec.checkpoint_bytes} bytes; the budget is {self.budget.budget_bytes:.0f} "
            f"bytes (memory={memory}): shorten the request or raise the budget"
        )

    def acquire(
        self,
        tokens: Sequence[int] | TokenIds,
        namespace: Namespace,
        now: float,
        *,
        max_tokens: int = 1,
        boundaries: Sequence[int] = (),
        turn_end: int | None = None,
        hints: Sequence[int] = (),
        ttl_seconds: float | None = None,
        waited: Collection[int] = (),
        reserve: int = 0,
        first: bool = True,
    ) -> Lease | Wait | None:
        """Match, pin and allocate in one act: a Lease; None when there is no room now; or a Wait.

        ``tokens`` [P] is the prompt; ``max_tokens`` how many may be generated (the last one is never
        computed); ``boundaries`` the ends of its messages, ascending, for explaining losses;
        ``turn_end`` the end of the last turn of a user or tool and ``hints`` other positions likely to be
        left by prompts to come, both for admission; ``waited`` the positions this request has waited for
        before; ``reserve`` how many of the tokens to compute get their blocks at once; ``first``
        False when the prompt has been counted: a preempted request comes back, or it asks for another answer.
        None and Wait change nothing but the plan of the lease to wait for.

        Raises RequestTooLarge when the request could never fit, ValueError for an empty prompt, ids
        out of range, a bad limit, a position that is no whole number, a time that is none or no namespace.
        """
        ttl = self.ttl_seconds if ttl_seconds is None else checked_ttl(ttl_seconds)
        hints, boundaries = as_positions("hints", hints), as_positions("boundaries", boundaries)
        as_positions("turn_end and reserve", (0 if turn_end is None else turn_end, reserve))
        prompt = self._admissible(tokens, max_tokens, first=first)
        store, num_prompt = self.store, len(prompt)
        self._reclaimer.expire(now)
        root = store.tree.root(namespace)
        raw = prompt.tobytes()
        match = store.tree.match(root, raw, now)
        wait = ask_to_wait(store, self.leases.values(), root, raw, match.hit, waited)
        if wait is not None:
            return wait
        match = self._book.usable(match, root, num_prompt + max_tokens - 1)
        path_goes_on = match.path_goes_on
        lost, remembered = losses(store, match, raw, boundaries)
        lease = self._book.open(root, raw, match, reserve, now)
        if lease is None:
            return None
        lease.ttl_seconds = ttl
        if store.recurrent:
            self._taker.plan(
                lease, remembered, first, leaves_path=path_goes_on, turn_end=turn_end, hints=hints,
                boundaries=boundaries,
            )  # fmt: skip
        lease.lost = lost
        if first:
            self._count(lease)
        if remembered.passed:
            price = self._reclaimer.price.of(store.slots.bytes_per_id)
            revive(lease, remembered.passed, store, now, price, first)
        self._book.touch(lease, now)
        return lease

    def restored(self, lease: Lease) -> None:
        """The copies of ``acquire`` are issued: the source checkpoint may be evicted again."""
        self._active(lease)
        self._book.end_restore(lease)

    def reserve(self, lease: Lease, n: int, now: float) -> bool:
        """Blocks for ``n`` tokens beyond ``num_computed``; False, with no change, when there is no room."""
        self._active(lease)
        return self._book.reserve(lease, n, now)

    def computed(self, lease: Lease, tokens: Sequence[int] | TokenIds, now: float) -> None:
        """A step succeeded: ``tokens`` are the ids at positions from ``num_computed`` on.

        Their blocks must be reserved. Prompt tokens become matchable; generated ones do at the next
        checkpoint or at ``finish``. A planned position that the step passed without stopping is skipped,
        unless it wrote the state there (see ``emits``).

        Raises ValueError when ``tokens`` differ from the prompt, or were not reserved.
        """
        self._active(lease)
        ids = np.ascontiguousarray(as_token_ids(tokens))
        start, stop = lease.num_computed, lease.num_computed + len(ids)
        blocks = self.store.blocks
        in_tree = lease.node.stop
        if stop > in_tree and blocks.blocks_for(stop) > blocks.index(in_tree) + len(lease.blocks):
            raise ValueError(f"tokens [{start}, {stop}) have no blocks: call reserve before the step")
        known = max(lease.num_prompt - start, 0)
        if known and not lease.prompt.startswith(ids[:known].data, start * TOKEN_BYTES):
            raise ValueError(f"the tokens computed at [{start}, {stop}) are not the prompt's")
        if known < len(ids):
            lease.generated += ids[known:].data.cast("B")
        lease.num_computed = stop
        if lease.planned and lease.planned[0] < stop:
            self._taker.skip_passed(lease)
        if lease.awaited and not self.store.recurrent:
            lease.awaited -= {position for position in lease.awaited if position <= stop}
        self._book.insert(lease, min(stop, lease.num_prompt), now)

    def emits(self, lease: Lease, stop: int, now: float) -> Sequence[StateEmit]:
        """Slots for the states planned in (num_computed, stop], for a step that computes up to ``stop``.

        The step writes them as it passes, so that a chunk need not end there. After the step call
        ``computed``, then ``checkpointed``. A position without room is skipped. Raises ValueError while
        the checkpoints of an earlier step or copy are not ``checkpointed``.
        """
        self._active(lease)
        return self._taker.emits(lease, stop, now)

    def checkpoint(self, lease: Lease, now: float) -> StateCopy | None:
        """A slot for the state at ``num_computed``, which must be ``planned[0]``; None: skip it.

        Once the copy is issued call ``checkpointed``, be it after the next step; after None there is
        nothing to perform, and ``checkpointed`` does nothing. Raises ValueError before that.
        """
        self._active(lease)
        return self._taker.stage(lease, now)

    def checkpointed(self, lease: Lease, now: float) -> None:
        """The copy of ``checkpoint`` is issued, or the step of ``emits`` is over: these are matchable.

        Raises ValueError when ``computed`` has not passed the emits yet.
        """
        self._active(lease)
        self._taker.attach(lease, now)

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
        end = min(keep_tokens, lease.num_computed)
        if lease.root.attached:
            self._book.insert(lease, end, now)
            if lease.slot is not None and self.admission.final and lease.hit < end == lease.num_computed:
                node = self.store.node_at(lease.node, end)
                kind = FOLLOW_UP if lease.follows_up else FINAL
                self.store.attach(node, lease.slot, kind, now, now + lease.ttl_seconds)
                lease.slot = None
        self._end(lease, now)

    def drop(self, lease: Lease, now: float) -> None:
        """End a lease whose step failed: what earlier steps made matchable stays, nothing is added."""
        self._active(lease)
        self._end(lease, now)

    def expire(self, now: float) -> None:
        """Free what has expired at ``now`` and is not pinned, as every call that makes room does first."""
        self._reclaimer.expire(now)

    def flush(self, namespace: Namespace | None = None) -> None:
        """Forget a namespace, or all: nothing of before is matchable; what leases hold goes as they end."""
        for root in self.store.tree.detach(namespace):
            self._reclaimer.flush(root)

    # Inside

    def _admissible(self, tokens: Sequence[int] | TokenIds, max_tokens: int, *, first: bool) -> TokenIds:
        """The ids [P] of a prompt that can run. Raises ValueError, RequestTooLarge."""
        prompt = as_token_ids(tokens)
        if not len(prompt):
            raise ValueError("the prompt is empty: give at least one token")
        if max_tokens < 1 or max_tokens % 1:
            raise ValueError(f"max_tokens={max_tokens}: give a whole number, at least 1")
        if not self.fits(len(prompt), max_tokens):
            raise self.refuse(len(prompt), max_tokens, first=first)
        return prompt

    def await_pending(
        self, tokens: TokenIds, namespace: Namespace, now: float, waited: Collection[int] = ()
    ) -> Wait | None:
        """The Wait that `acquire` would give now, for a prompt that nothing else would come of yet."""
        store, raw = self.store, tokens.tobytes()
        root, leases = store.tree.known_root(namespace), self.leases.values()
        if root is None:
            return None
        if longest_pending(leases, root, raw, 0, store.blocks.block_size, waited) is None:
            return None
        return ask_to_wait(store, leases, root, raw, store.tree.match(root, raw, now).hit, waited)

    def _count(self, lease: Lease) -> None:
        stats = self.store.stats
        stats.requests += 1
        stats.input_tokens += lease.num_prompt
        stats.matched_tokens += lease.matched
        for reason, count in lease.lost.items():
            stats.lose(reason, count)
        if lease.hit:
            source = lease.source
            at = None if source is None or source.slot is None else self.store.table.kind.item(source.row)
            stats.hit(lease.hit, self.spec.prefix_flops(lease.hit), at)

    def _end(self, lease: Lease, now: float) -> None:
        """What had expired and was pinned by ``lease`` goes with it."""
        self._book.end(lease)
        self._reclaimer.expire(now)

    def _active(self, lease: Lease) -> None:
        if lease.ended:
            raise ValueError(f"lease {lease.id} has ended: a lease ends once, and is not used afterwards")
        if self.leases.get(lease.id) is not lease:
            raise ValueError(f"lease {lease.id} is another cache's")
