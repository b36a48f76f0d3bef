"""A PrefixCache driven as an engine would, beside a naive cache and a fake runner that judge it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from hybridcache.lease import Lease, Wait
from hybridcache.namespace import Namespace
from hybridcache.node import Node
from hybridcache.policies.admission import AdmissionPolicy
from hybridcache.policies.eviction import EvictionPolicy
from hybridcache.prefix_cache import PrefixCache, RequestTooLarge
from hybridcache.spec import ModelSpec
from hybridcache.tree import subtree
from tests.fake_runner import FakeRunner
from tests.naive_cache import Found, NaiveCache, Tokens


@dataclass(slots=True, eq=False)
class Request:
    """What one request asks for, and where it stands."""

    namespace: Namespace
    prompt: Tokens
    max_tokens: int
    ttl_seconds: float | None
    epoch: int = 0
    generated: Tokens = ()
    first: bool = True
    waited: set[int] = field(default_factory=set)
    lease: Lease | None = None
    wait: Wait | None = None
    restored: bool = False
    inserted: int = 0
    """Tokens of it that are matchable."""

    @property
    def tokens(self) -> Tokens:
        """The prompt and what was computed beyond it."""
        return self.prompt + self.generated


class Driver:
    """One cache and everything that is known about it from outside."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        budget_bytes: float,
        eviction: EvictionPolicy,
        admission: AdmissionPolicy,
        block_size: int = 4,
        memory: str = "unified",
        kv_fraction: float = 0.5,
        ttl_seconds: float | None = None,
    ) -> None:
        self.spec = spec
        self.cache = PrefixCache(
            spec, budget_bytes=budget_bytes, eviction=eviction, admission=admission, block_size=block_size,
            memory=memory, kv_fraction=kv_fraction, ttl_seconds=ttl_seconds,
        )  # fmt: skip
        self.final = admission.final
        self.block_size = block_size
        self.recurrent = spec.checkpoint_bytes > 0
        self.ttl_seconds = ttl_seconds
        self.exact = math.isinf(budget_bytes)
        """Nothing is ever evicted, so what the naive cache finds has to be found."""
        self.naive = NaiveCache(spec.kv_bytes_per_token > 0, self.recurrent)
        self.runner = FakeRunner(self.cache)
        self.now = 0.0
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.counted = 0
        self.counted_tokens = 0

    # The life of a request

    def submit(
        self,
        prompt: Sequence[int],
        namespace: Namespace | None = None,
        *,
        max_tokens: int = 1,
        ttl_seconds: float | None = None,
    ) -> Request:
        """A new request, acquired once: it runs, waits, or does neither (no room, or too large)."""
        request = Request(namespace or Namespace(), tuple(prompt), max_tokens, ttl_seconds)
        self.acquire(request)
        return request

    def acquire(self, request: Request) -> None:
        """Acquire once and compare the answer with the naive cache."""
        cache, naive, name, tokens = self.cache, self.naive, request.namespace, request.tokens
        remaining = request.max_tokens - len(request.generated)
        found = cache.match_prefix(tokens, name, self.now)
        best = naive.find(name, tokens, self.now)
        self._compare(name, tokens, Found(*found), best)
        told = None
        if self._fits(len(tokens) + remaining - 1):
            told = cache.explain(tokens, name, self.now, max_tokens=remaining)
        alone = not cache.leases
        free = cache.usage().free
        try:
            answer = cache.acquire(
                tokens, name, self.now, max_tokens=remaining, ttl_seconds=request.ttl_seconds,
                waited=request.waited, first=request.first,
            )  # fmt: skip
        except RequestTooLarge:
            assert not self._fits(len(tokens) + remaining - 1), request
            if request.first:
                self._count(tokens)
            return
        assert self._fits(len(tokens) + remaining - 1), request
        request.lease = request.wait = None
        if isinstance(answer, Wait):
            assert answer.position not in request.waited, "a request waits once for a position"
            assert answer.lease.root.namespace == name and not answer.over
            assert found.hit < answer.position < len(tokens) and answer.position > answer.lease.num_computed
            request.waited.add(answer.position)
            request.wait = answer
            self.waiting.append(request)
            return
        if answer is None:
            assert not alone, f"{request} fits and nothing runs: it has to run"
            assert cache.usage().free >= free, "nothing is taken by a request that has no room"
            return
        assert answer.hit + sum(answer.lost.values()) == len(tokens), (answer, answer.lost)
        assert told == ((answer.hit, answer.matched), answer.lost), "what is explained is what happens"
        given = Found(answer.hit, answer.matched)
        if request.ttl_seconds is None and self.ttl_seconds is None:
            assert given in (tuple(found), (0, 0)), "what is said is what is given"
        else:  # expiry takes along KV that no checkpoint covers any more
            assert given.hit in (found.hit, 0) and given.matched <= found.matched, (given, found)
        if self.exact:
            assert answer.hit == found.hit
        if request.first:
            self._count(tokens)
        naive.read(name, tokens, Found(answer.hit, answer.matched), self._expiry(request))
        request.lease, request.first, request.restored = answer, False, False
        request.epoch, request.inserted = naive.epoch(name), answer.matched
        self.runner.start(answer, name, request.epoch)
        self.running.append(request)

    def restore(self, request: Request) -> None:
        lease = _lease(request)
        if not request.restored:
            self.cache.restored(lease)
            request.restored = True

    def step(self, request: Request, tokens: Sequence[int], emit: bool = False) -> bool:
        """Compute ``tokens`` (the prompt's, or anything beyond it); False when there was no room.

        With ``emit`` the step writes the states planned on its way, to be committed after it.
        """
        lease = _lease(request)
        self.restore(request)
        start, known = lease.num_computed, request.tokens
        if not self.cache.reserve(lease, len(tokens), self.now):
            return False
        if emit and self.recurrent:
            self.cache.emits(lease, start + len(tokens), self.now)
        self.runner.step(lease, list(tokens))
        self.cache.computed(lease, list(tokens), self.now)
        request.generated += tuple(tokens[max(len(known) - start, 0) :])
        stop = min(lease.num_computed, lease.num_prompt)
        if stop > request.inserted:
            request.inserted = stop
            self.naive.compute(request.namespace, request.epoch, request.tokens[:stop], self._expiry(request))
        return True

    def next_tokens(
        self, request: Request, n: int, stop_at_plan: bool = True, generate: Sequence[int] = (0,)
    ) -> list[int]:
        """Up to ``n`` tokens to compute next: those known, then an answer that repeats ``generate``."""
        lease = _lease(request)
        start, stop = lease.num_computed, lease.num_computed + n
        if stop_at_plan and lease.planned:
            stop = min(stop, lease.planned[0])
        stop = min(stop, len(request.prompt) + request.max_tokens - 1)
        known = request.tokens
        return [known[i] if i < len(known) else generate[i % len(generate)] for i in range(start, stop)]

    def at_plan(self, request: Request) -> bool:
        lease = _lease(request)
        return bool(lease.planned) and lease.planned[0] == lease.num_computed

    def checkpoint(self, request: Request) -> bool:
        """Stage the checkpoint planned here; False when there was no room."""
        lease = _lease(request)
        copy = self.cache.checkpoint(lease, self.now)
        if copy is None:
            return False
        assert copy.src_slot == lease.slot
        self.runner.copy_state(copy)
        return True

    def commit(self, request: Request) -> None:
        """The staged checkpoint has been copied, or the step that emits checkpoints is over."""
        lease = _lease(request)
        positions = [emit.position for emit in lease.emits]
        if lease.staged is not None:
            positions.append(lease.staged[0])
        assert positions
        self.cache.checkpointed(lease, self.now)
        for position in positions:
            tokens = request.tokens[:position]
            request.inserted = max(request.inserted, position)
            self.naive.keep_state(request.namespace, request.epoch, tokens, self._expiry(request))

    def finish(self, request: Request, keep_tokens: int | None = None) -> None:
        """End with what was computed, or with less."""
        lease = _lease(request)
        keep = lease.num_computed if keep_tokens is None else keep_tokens
        end = min(keep, lease.num_computed)
        kept, expires_at = request.tokens[:end], self._expiry(request)
        hit, whole = lease.hit, end == lease.num_computed
        self.cache.finish(lease, keep, self.now)
        if end > request.inserted:
            self.naive.compute(request.namespace, request.epoch, kept, expires_at)
        if self.recurrent and self.final and whole and end > hit:
            self.naive.keep_state(request.namespace, request.epoch, kept, expires_at)
        self._ended(request)

    def preempt(self, request: Request) -> None:
        """End it, and acquire again with what it generated."""
        self.finish(request)
        self.acquire(request)

    def drop(self, request: Request) -> None:
        self.cache.drop(_lease(request), self.now)
        self._ended(request)

    def wake(self, request: Request) -> bool:
        """Acquire again if the wait is over."""
        wait = request.wait
        assert wait is not None
        if not wait.over:
            lease = wait.lease
            assert not lease.ended
            assert lease.num_computed <= wait.position or lease.emits, "a wait is never missed"
            return False
        self.waiting.remove(request)
        self.acquire(request)
        return True

    def run(self, request: Request, chunk: int = 1_000_000) -> None:
        """Run to the end, a checkpoint wherever one is planned; fails when there is no room."""
        self.restore(request)
        while True:
            if staged(request) or (self.at_plan(request) and self.checkpoint(request)):
                self.commit(request)
            tokens = self.next_tokens(request, chunk)
            if not tokens and not self.at_plan(request):
                break
            assert not tokens or self.step(request, tokens), f"no room for {request}"
        self.finish(request)

    def serve(self, prompt: Sequence[int], namespace: Namespace | None = None, **settings: float) -> Lease:
        """One request from its first acquire to its end."""
        max_tokens = int(settings.pop("max_tokens", 1))
        request = self.submit(prompt, namespace, max_tokens=max_tokens, **settings)
        lease = _lease(request)
        self.run(request)
        return lease

    def flush(self, namespace: Namespace | None = None) -> None:
        names = [namespace] if namespace is not None else list(self.cache.store.tree.roots)
        self.cache.flush(namespace)
        for name in names:
            self.naive.flush(name)

    # Judging

    def check(self) -> None:
        """Everything that must hold between any two calls."""
        cache = self.cache
        cache.check()
        self.runner.check()
        self._check_usage()
        assert cache.peak_bytes <= cache.budget.budget_bytes
        assert (cache.stats.requests, cache.stats.input_tokens) == (self.counted, self.counted_tokens)

    def probe(self, namespace: Namespace, prompt: Tokens) -> None:
        """What ``prompt`` would find now, against the naive cache."""
        found = self.cache.match_prefix(prompt, namespace, self.now)
        best = self.naive.find(namespace, prompt, self.now)
        self._compare(namespace, prompt, Found(*found), best)

    def _compare(self, namespace: Namespace, prompt: Tokens, found: Found, best: Found) -> None:
        hit, matched = found
        assert hit <= len(prompt) - 1 and hit <= matched <= len(prompt), (found, prompt)
        assert matched <= best.matched and hit <= best.hit, (found, best, prompt)
        if self.recurrent and hit:
            assert self.naive.has_state(namespace, prompt[:hit], self.now), (found, prompt)
        if self.exact:
            assert hit == best.hit, (found, best, prompt)
            # Without KV, or with a path's end expired, a match that no checkpoint covers is worth nothing.
            if self.ttl_seconds is None and self.naive.has_attention:
                assert matched == best.matched, (found, best, prompt)

    def _check_usage(self) -> None:
        """``usage()`` against ids collected one by one."""
        cache = self.cache
        blocks, slots = _Ids(), _Ids()
        roots = {*cache.store.tree.roots.values(), *(lease.root for lease in cache.leases.values())}
        for root in roots:
            for node in subtree(root):
                blocks.tree.update(node.blocks.tolist())
                if node.slot is not None:
                    slots.tree.add(node.slot)
        for lease in cache.leases.values():
            blocks.leased.update(lease.blocks.tolist())
            slots.leased.update({lease.slot} - {None})
            if lease.staged is not None:
                slots.leased.add(lease.staged[1])
            slots.leased.update(emit.slot for emit in lease.emits)
            if lease.source is not None and lease.source.slot is not None:
                slots.pinned.add(lease.source.slot)
            above: Node | None = lease.node
            while above is not None:
                blocks.pinned.update(above.blocks.tolist())
                above = above.parent
        usage = cache.usage()
        for pool, ids, size in (
            (usage.kv, blocks, cache.store.blocks.bytes_per_id),
            (usage.state, slots, cache.store.slots.bytes_per_id),
        ):
            counts = (len(ids.tree - ids.pinned), len(ids.pinned), len(ids.leased - ids.tree))
            assert tuple(pool) == tuple(count * size for count in counts), (pool, counts, size)
        if not self.exact:
            total = usage.free + usage.evictable + usage.pinned + usage.leased
            assert total == usage.budget and usage.free >= 0, usage

    def _fits(self, num_tokens: int) -> bool:
        budget = self.cache.budget
        kv = -(-num_tokens // self.block_size) * self.block_size * self.spec.kv_bytes_per_token
        state = self.spec.checkpoint_bytes
        if budget.memory == "split":
            return kv <= budget.limits["kv"] and state <= budget.limits["state"]
        return kv + state <= budget.budget_bytes

    def _expiry(self, request: Request) -> float:
        ttl = self.ttl_seconds if request.ttl_seconds is None else request.ttl_seconds
        return math.inf if ttl is None else self.now + ttl

    def _count(self, tokens: Tokens) -> None:
        self.counted += 1
        self.counted_tokens += len(tokens)

    def _ended(self, request: Request) -> None:
        self.running.remove(request)
        request.lease = None


@dataclass(slots=True)
class _Ids:
    """Ids of one pool by who holds them."""

    tree: set[int] = field(default_factory=set)
    pinned: set[int] = field(default_factory=set)
    leased: set[int | None] = field(default_factory=set)


def staged(request: Request) -> bool:
    """Whether a checkpoint of the request has been written and is not matchable yet."""
    lease = _lease(request)
    return lease.staged is not None or bool(lease.emits)


def _lease(request: Request) -> Lease:
    assert request.lease is not None, f"{request} does not run"
    return request.lease
