"""Decides which tokens run next."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from hybridcache.lease import Lease, StateEmit, Wait
from hybridcache.prefix_cache import PrefixCache
from hybridcache.request import Request

ORDERS = ("fcfs", "longest_hit")


class Scheduled(NamedTuple):
    """A request's part of a step."""

    request: Request
    num_tokens: int
    """Tokens to compute, from the lease's `num_computed` on."""
    emits: tuple[StateEmit, ...]
    """States that the step writes on the way."""
    fresh: bool
    """Whether the lease is new: its copies have yet to be performed."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of a step. Raises ValueError for values that nothing could run under."""

    max_num_seqs: int = 256
    """Requests that run at a time."""
    max_num_batched_tokens: int = 2048
    """Tokens of one step."""
    order: str = "fcfs"
    """Of waiting requests: first come first served, or the longest hit first."""
    max_wait_seconds: float = 5.0
    """With longest_hit: whoever has waited longer goes before all others, so that none starves."""

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise ValueError(f"max_num_seqs={self.max_num_seqs}: at least one request has to run")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is below max_num_seqs="
                f"{self.max_num_seqs}: every running request needs a token a step"
            )
        if self.order not in ORDERS:
            raise ValueError(f"order={self.order!r}: choose one of {', '.join(ORDERS)}")
        if not self.max_wait_seconds >= 0:
            raise ValueError(f"max_wait_seconds={self.max_wait_seconds!r}: give seconds of at least 0")


@dataclass(slots=True)
class SchedulerStats:
    """Counts since the start; none ever falls."""

    num_preemptions: int = 0
    num_started: int = 0
    """Times that a request got a lease."""
    num_waits: int = 0
    """Times that a request was told to wait for a prefix that another one is computing."""


@dataclass(slots=True)
class Scheduler:
    """Continuous batching over one PrefixCache: what runs, by priority and arrival, then new requests.

    Matching, pinning and allocating the prompt's blocks are one act at admission, so that how a prompt is cut
    into chunks changes nothing in the cache. When there is no room for the next tokens of a
    running request, the last of the others is preempted: what it computed goes to the tree, and it acquires
    again later. Knows neither tensors nor bytes.
    """

    cache: PrefixCache
    config: SchedulerConfig = field(default_factory=SchedulerConfig)
    waiting: list[Request] = field(default_factory=list)
    """In order of arrival."""
    running: list[Request] = field(default_factory=list)
    """By priority, then arrival: the last is preempted first."""
    stats: SchedulerStats = field(default_factory=SchedulerStats)

    def add(self, request: Request) -> None:
        """Queue a request that can fit the budget (`PrefixCache.fits`)."""
        self.waiting.append(request)

    def remove(self, request: Request) -> None:
        """Forget a request that ended; its lease has been ended before."""
        assert request.lease is None, request
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)

    def schedule(self, now: float) -> list[Scheduled]:
        """What the next step computes; leases are taken, blocks and slots reserved."""
        parts: list[tuple[Request, int, bool]] = []
        budget = self.config.max_num_batched_tokens
        preempted = False
        # Copied, since preemption takes requests off the end.
        for request in list(self.running):
            if request.lease is None or not budget:
                continue
            count, lost_one = self._next_tokens(request, budget, now)
            preempted |= lost_one
            if count:
                parts.append((request, count, False))
                budget -= count
        if not preempted:
            parts.extend((request, count, True) for request, count in self._admit(budget, now))
        assert len({request.id for request, *_ in parts}) == len(parts), parts
        # Last, for those admitted now may wait for a state that another one passes in this step.
        return [
            Scheduled(request, count, self._emits(request, count, now), fresh)
            for request, count, fresh in parts
        ]

    def _next_tokens(self, request: Request, budget: int, now: float) -> tuple[int, bool]:
        """How many tokens a running request computes next, and whether one was preempted for them."""
        assert request.lease is not None
        count = min(request.num_tokens - request.lease.num_computed, budget)
        preempted = False
        while not self.cache.reserve(request.lease, count, now):
            victim = self.running[-1]
            preempted = True
            self.preempt(victim, now)
            if victim is request:
                return 0, True
        return count, preempted

    def _emits(self, request: Request, count: int, now: float) -> tuple[StateEmit, ...]:
        lease = request.lease
        assert lease is not None, request
        stop = lease.num_computed + count
        if not lease.planned or lease.planned[0] > stop:
            return ()
        return tuple(self.cache.emits(lease, stop, now))

    def preempt(self, request: Request, now: float) -> None:
        """End a running request's lease; it goes back to the queue, to the place of its arrival."""
        assert request.lease is not None, request
        self.cache.finish(request.lease, request.lease.num_computed, now)
        request.lease = None
        request.num_preemptions += 1
        self.stats.num_preemptions += 1
        self.running.remove(request)
        self.waiting.append(request)
        self.waiting.sort(key=_arrival)

    def _admit(self, budget: int, now: float) -> Iterable[tuple[Request, int]]:
        """Start waiting requests in order, until one finds no room; how many tokens each computes."""
        looks = 0
        for request in self._in_order(now):
            if len(self.running) + looks >= self.config.max_num_seqs:
                return
            if request.wait is not None and not request.wait.over:
                continue
            request.wait = None
            if not budget:
                # Only the step's tokens keep it from starting: a prefix that another request passes in this
                # step would otherwise go by unmarked.
                looks += 1
                self._look(request, now)
                continue
            most = budget
            lease = self._acquire(request, request.num_tokens, now)
            if lease is None and not self.running:
                # Room comes once the state is restored and its source may go: one token is computed before.
                most = 1
                lease = self._acquire(request, most, now)
            if isinstance(lease, Wait):
                self._told_to_wait(request, lease)
                continue
            if lease is None:
                return
            count = min(request.num_tokens - lease.num_computed, most)
            self._start(request, lease, now)
            yield request, count
            budget -= count

    def _look(self, request: Request, now: float) -> None:
        """Have a waiting request wait for what others compute; it looks again once another has started."""
        if request.looked_at == self.stats.num_started:
            return
        request.looked_at = self.stats.num_started
        tokens = request.tokens(0, request.num_tokens)
        wait = self.cache.await_pending(tokens, request.namespace, now, request.waited)
        if wait is not None:
            self._told_to_wait(request, wait)

    def _told_to_wait(self, request: Request, wait: Wait) -> None:
        request.wait = wait
        request.waited.add(wait.position)
        self.stats.num_waits += 1

    def _acquire(self, request: Request, num_reserved: int, now: float) -> Lease | Wait | None:
        return self.cache.acquire(
            request.tokens(0, request.num_tokens),
            request.namespace,
            now,
            max_tokens=request.max_tokens - len(request.output),
            reserve=num_reserved,
            boundaries=request.boundaries,
            turn_end=request.turn_end,
            hints=request.hints,
            ttl_seconds=request.ttl_seconds,
            waited=request.waited,
            first=request.admitted_at is None and not request.sample,
        )

    def _start(self, request: Request, lease: Lease, now: float) -> None:
        request.lease = lease
        self.stats.num_started += 1
        if request.admitted_at is None:
            request.admitted_at = now
            request.hit, request.matched, request.lost = lease.hit, lease.matched, lease.lost
        self.waiting.remove(request)
        self.running.append(request)
        self.running.sort(key=_rank)

    def _in_order(self, now: float) -> list[Request]:
        """Waiting requests, those to start first at the front."""
        if self.config.order == "fcfs":
            return sorted(self.waiting, key=_rank)
        oldest = now - self.config.max_wait_seconds

        def rank(request: Request) -> tuple[float, ...]:
            if request.arrival < oldest:
                return (request.priority, 0, request.arrival, request.id)
            match = self.cache.match_prefix(request.tokens(0, request.num_tokens), request.namespace, now)
            return (request.priority, 1, -match.hit, request.arrival, request.id)

        return sorted(self.waiting, key=rank)


def _arrival(request: Request) -> tuple[float, int]:
    return (request.arrival, request.id)


def _rank(request: Request) -> tuple[float, ...]:
    return (request.priority, request.arrival, request.id)
