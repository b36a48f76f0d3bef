"""The engine's loop: schedule, restore, execute, record. The same whether the runner is real or simulated."""

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from hybridcache.histogram import Histogram
from hybridcache.namespace import Namespace
from hybridcache.prefix_cache import PrefixCache, PrefixMatch
from hybridcache.request import Choice, FinishReason, Request
from hybridcache.sampler import Sampler
from hybridcache.scheduler import Scheduled, Scheduler
from hybridcache.step import NOT_A_NUMBER, Runner, ScheduledSequence, StepBatch, StepResult

LATENCY_BOUNDS = tuple(a * 10.0**b for b in range(-3, 3) for a in (1, 2.5, 5))
"""Seconds, of the histograms."""


class Clock(Protocol):
    """Where the engine's time comes from, seconds; it does not run backwards."""

    @abstractmethod
    def now(self) -> float:
        """Seconds since some fixed moment."""


class StepOutput(NamedTuple):
    """What a step did for one request."""

    request: Request
    token: int | None
    """The token generated; None for an end token, an inner chunk, or a request that failed."""
    choice: Choice | None
    """How it was chosen, where log probabilities were asked for."""


@dataclass(slots=True)
class EngineStats:
    """Counts since the start; none ever falls."""

    steps: int = 0
    failed_steps: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    """Requests that ended in any way."""
    aborted: int = 0
    failed: int = 0
    stopped: int = 0
    """Requests that ended in an end token or a stop text; the rest of the finished had their length."""
    failed_inserts: int = 0
    """Requests that ended well and whose tokens the cache could not take."""
    queue_seconds: Histogram = field(default_factory=lambda: Histogram(LATENCY_BOUNDS))
    """From submission to the first step, of requests that had one."""
    ttft_seconds: Histogram = field(default_factory=lambda: Histogram(LATENCY_BOUNDS))
    """From submission to the first token."""
    itl_seconds: Histogram = field(default_factory=lambda: Histogram(LATENCY_BOUNDS))
    """From each token to the next one."""
    e2e_seconds: Histogram = field(default_factory=lambda: Histogram(LATENCY_BOUNDS))
    """From submission to the end, however the request ended."""

    def copy(self) -> Self:
        """As they stand now."""
        return replace(
            self,
            queue_seconds=self.queue_seconds.copy(),
            ttft_seconds=self.ttft_seconds.copy(),
            itl_seconds=self.itl_seconds.copy(),
            e2e_seconds=self.e2e_seconds.copy(),
        )


class Engine:
    """Runs requests to their end over one cache, one scheduler and one runner.

    Not thread-safe: one thread owns it. ``step`` until ``has_work`` is False.
    """

    __slots__ = ("cache", "scheduler", "runner", "clock", "sampler", "stats", "_requests")

    def __init__(
        self, cache: PrefixCache, scheduler: Scheduler, runner: Runner, clock: Clock, sampler: Sampler
    ) -> None:
        self.cache = cache
        self.scheduler = scheduler
        self.runner = runner
        self.clock = clock
        self.sampler = sampler
        self.stats = EngineStats()
        self._requests: dict[int, Request] = {}

    @property
    def has_work(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._requests)

    def submit(self, request: Request) -> None:
        """Queue a request. Raises RequestTooLarge when it could never run, ValueError for an id in use."""
        if request.id in self._requests:
            raise ValueError(f"request id {request.id} is in use by a request that has not ended")
        if not self.cache.fits(request.num_prompt, request.max_tokens):
            raise self.cache.refuse(request.num_prompt, request.max_tokens)
        self._requests[request.id] = request
        self.scheduler.add(request)

    def abort(self, request_id: int) -> bool:
        """End a request wherever it stands; False when it has ended before."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._end(request, FinishReason.ABORT, self.clock.now(), cut=True)
        return True

    def flush(self, namespace: Namespace | None = None) -> None:
        """Forget what is cached, of one namespace or of all."""
        self.cache.flush(namespace)
        self.sweep()

    def sweep(self) -> None:
        """Free what has expired, and give up the memory of all that is free, with no step to do it.

        Between steps: all copies that were asked for are performed then.
        """
        self.cache.expire(self.clock.now())
        self.runner.release(*self.cache.drain_freed())

    def explain(self, request: Request) -> tuple[PrefixMatch, dict[str, int]]:
        """What the cache would give a request now, and what of its prompt would be lost; it is not queued.

        Raises as PrefixCache.explain.
        """
        return self.cache.explain(
            request.prompt,
            request.namespace,
            self.clock.now(),
            max_tokens=request.max_tokens,
            boundaries=request.boundaries,
        )

    def step(self) -> list[StepOutput]:
        """Run one step; what it did for each request that got a token or ended.

        A pass that fails ends its requests with the error, and what fails for one request (its sampling,
        say) ends that one; the next step works again.
        """
        now = self.clock.now()
        scheduled = self.scheduler.schedule(now)
        if not scheduled:
            return self._unstick(now)
        batch = self._batch(scheduled)
        self.stats.steps += 1
        try:
            result = self.runner.execute(batch)
        except Exception as error:
            self.stats.failed_steps += 1
            now = self.clock.now()
            return [self._fail(part.request, error, now) for part in scheduled]
        now = self.clock.now()
        outputs = []
        for i, part in enumerate(scheduled):
            try:
                output = self._record(part, result, i, now)
            except Exception as error:
                output = self._fail(part.request, error, now)
            if output is not None:
                outputs.append(output)
        return outputs

    def _batch(self, scheduled: Sequence[Scheduled]) -> StepBatch:
        sequences, state_copies, block_copies = [], [], []
        for request, count, emits, fresh in scheduled:
            lease = request.lease
            assert lease is not None, request
            if fresh and lease.state_copy is not None:
                state_copies.append(lease.state_copy)
            if fresh and lease.block_copy is not None:
                block_copies.append(lease.block_copy)
            start = lease.num_computed
            ends = start + count == request.num_tokens
            sequences.append(
                ScheduledSequence(
                    request.tokens(start, start + count),
                    start,
                    lease.slot,
                    self.cache.block_table(lease),
                    lease.kv_start,
                    emits,
                    count if request.params.prompt_logprobs is not None else int(ends),
                )
            )
        freed_blocks, freed_slots = self.cache.drain_freed()
        return StepBatch(sequences, state_copies, block_copies, freed_blocks, freed_slots)

    def _record(self, part: Scheduled, result: StepResult, index: int, now: float) -> StepOutput | None:
        """Tell the cache what was computed, and choose the next token where the known ones ended."""
        request, count, emits, fresh = part
        lease = request.lease
        assert lease is not None, request
        if result.tokens[index] == NOT_A_NUMBER:
            # Before the cache hears of it: others would be given these numbers.
            raise FloatingPointError(f"{request}: its logits are NaN")
        if fresh:
            self.cache.restored(lease)
        start = lease.num_computed
        self.cache.computed(lease, request.tokens(start, start + count), now)
        if emits:
            self.cache.checkpointed(lease, now)
        self.stats.computed_tokens += count
        if request.params.prompt_logprobs is not None:
            self._judge_prompt(request, start, result.logits_of(index))
        if lease.num_computed < request.num_tokens:
            return None
        return self._next(request, result, index, now)

    def _next(self, request: Request, result: StepResult, index: int, now: float) -> StepOutput:
        params = request.params
        choice = None
        if request.script is not None:
            token = int(request.script[len(request.output)])
        elif params.plain:
            token = int(result.tokens[index])
        else:
            if not result.logits.size:
                raise ValueError(
                    f"{request} samples, and this runner has no logits: temperature=0.0, or a script"
                )
            logits = result.logits_of(index)[-1]
            token = self.sampler.next_token(request, logits)
            if params.logprobs is not None:
                choice = self.sampler.choice(token, logits, params.logprobs)
        if token in request.end_token_ids and len(request.output) >= params.min_tokens:
            self._end(request, FinishReason.STOP, now)
            return StepOutput(request, None, choice)
        if request.first_token_at is None:
            request.first_token_at = now
            self.stats.ttft_seconds.observe(now - request.arrival)
        else:
            self.stats.itl_seconds.observe(now - request.last_token_at)
        request.last_token_at = now
        request.output.append(token)
        self.stats.generated_tokens += 1
        if request.reader is not None and request.reader.read(token):
            self._end(request, FinishReason.STOP, now, cut=True)
        elif len(request.output) == request.max_tokens:
            self._end(request, FinishReason.LENGTH, now)
        return StepOutput(request, token, choice)

    def _judge_prompt(self, request: Request, start: int, logits: NDArray[np.float32]) -> None:
        """The row of a position tells how likely the token behind it was."""
        num_top = request.params.prompt_logprobs
        assert num_top is not None
        for row, position in enumerate(range(start + 1, min(start + 1 + len(logits), request.num_prompt))):
            if position == len(request.prompt_choices) + 1:
                token = int(request.prompt[position])
                request.prompt_choices.append(self.sampler.choice(token, logits[row], num_top))

    def _end(self, request: Request, reason: FinishReason, now: float, *, cut: bool = False) -> None:
        """End a request well: the cache keeps the tokens that the client can send back.

        These are all of them, unless the answer was `cut` before its last token.
        """
        lease = request.lease
        if lease is not None:
            keep = 0 if request.private else lease.num_computed
            if cut and request.reader is not None:
                keep = min(keep, request.num_prompt + request.reader.num_given)
            try:
                self.cache.finish(lease, keep, now)
            except Exception as error:
                # The answer is there all the same.
                self.stats.failed_inserts += 1
                warnings.warn(f"{request}: its tokens are not kept: {error!r}", stacklevel=2)
                self._drop(request, now)
        self._forget(request, reason, now)

    def _fail(self, request: Request, error: Exception, now: float) -> StepOutput:
        request.error = error
        if request.finish_reason is None:
            self._drop(request, now)
            self._forget(request, FinishReason.ERROR, now)
        return StepOutput(request, None, None)

    def _drop(self, request: Request, now: float) -> None:
        if request.lease is not None and not request.lease.ended:
            self.cache.drop(request.lease, now)

    def _forget(self, request: Request, reason: FinishReason, now: float) -> None:
        """The one place where a request leaves the queues and frees its id; its lease has ended."""
        request.lease = None
        request.finish_reason = reason
        request.finished_at = now
        self.scheduler.remove(request)
        del self._requests[request.id]
        self.stats.finished += 1
        self.stats.aborted += reason is FinishReason.ABORT
        self.stats.failed += reason is FinishReason.ERROR
        self.stats.stopped += reason is FinishReason.STOP
        self.stats.e2e_seconds.observe(now - request.arrival)
        if request.admitted_at is not None:
            self.stats.queue_seconds.observe(request.admitted_at - request.arrival)
        if request.private:
            self.cache.flush(request.namespace)
        if not self._requests:
            self.runner.release(*self.cache.drain_freed())

    def _unstick(self, now: float) -> list[StepOutput]:
        """Nothing can run. With no lease left to wait for, the first request would wait for ever."""
        if self.cache.leases or not self.scheduler.waiting:
            return []
        request = self.scheduler.waiting[0]
        request.error = RuntimeError(f"{request} finds no room in an idle cache: {self.cache.usage()}")
        self._forget(request, FinishReason.ERROR, now)
        return [StepOutput(request, None, None)]
