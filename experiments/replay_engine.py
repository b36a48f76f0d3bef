"""mode=engine and mode=worker: requests arrive when the trace says, run together, and take seconds."""

import math
from collections.abc import Iterable

import numpy as np

from hybridcache.experiments.policy_failure import check_policies
from hybridcache.experiments.request_rows import RequestRows, Row
from hybridcache.experiments.simulation import TimedEngine
from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.loss import LOSS_REASONS
from hybridcache.namespace import Namespace
from hybridcache.prefix_cache import RequestTooLarge
from hybridcache.request import Request
from hybridcache.sampling_params import SamplingParams
from hybridcache.spec import ModelSpec

_TOO_LARGE = LOSS_REASONS.index("too_large")
_MOST_IDLE_STEPS = 1_000
"""Steps in a row that run nothing; a preemption takes one."""


class _Recorder:
    """Rows in the trace's order, though requests end in another.

    What was evicted and admitted since the request before ended counts for the next one that ends.
    """

    def __init__(self, served: TimedEngine, spec: ModelSpec, rows: RequestRows) -> None:
        self._cache = served.engine.cache
        self._stats = self._cache.stats
        self._flops = spec.prefix_flops
        self._rows = rows
        self._facts: dict[int, Row] = {}
        self._ended: dict[int, Row] = {}
        self._next = 0
        self._evicted = self._admitted = 0

    def submitted(self, index: int, facts: Row) -> None:
        self._facts[index] = facts

    def refused(self, index: int, num_prompt: int) -> None:
        lost = [0] * len(LOSS_REASONS)
        lost[_TOO_LARGE] = num_prompt
        row = (True, 0, 0, self._flops(num_prompt), 0.0, 0, 0, *lost, math.nan, math.nan, math.nan, 0)
        self._end(index, row)

    def finished(self, request: Request) -> None:
        """Raises what the request's step failed with, ValueError where a policy did."""
        if request.error is not None:
            raise request.error
        check_policies(self._cache)
        assert request.admitted_at is not None and request.first_token_at is not None, request
        assert request.finished_at is not None, request
        lost = [request.lost.get(reason, 0) for reason in LOSS_REASONS]
        evicted, admitted = self._stats.evictions, self._stats.checkpoints_admitted
        moments = (request.admitted_at, request.first_token_at, request.finished_at)
        row = (
            False, request.hit, request.matched,
            self._flops(request.num_prompt), self._flops(request.hit),
            admitted - self._admitted, evicted - self._evicted, *lost,
            *(moment - request.arrival for moment in moments), request.num_preemptions,
        )  # fmt: skip
        self._evicted, self._admitted = evicted, admitted
        self._end(request.id, row)

    def _end(self, index: int, row: Row) -> None:
        self._ended[index] = (*self._facts.pop(index), *row)
        while self._next in self._ended:
            self._rows.append(self._ended.pop(self._next))
            self._next += 1

    def close(self) -> None:
        assert not self._facts and not self._ended, "every request ends"


def replay_engine(
    trace: Iterable[TraceRequest],
    served: TimedEngine,
    spec: ModelSpec,
    rows: RequestRows,
    *,
    speed: float = 1.0,
) -> None:
    """Replay ``trace`` through the engine; ``rows`` takes TIMED_COLUMNS.

    A request arrives at its trace's time divided by ``speed``, whatever became of those before it, and is
    taken in by the first step from then on. Answers are the trace's. Where nothing runs, the clock goes on to
    the next arrival. A request without an answer is given one token, which nobody computes.

    Raises ValueError when a policy fails.
    """
    engine, clock = served.engine, served.clock
    namespace = Namespace(spec.fingerprint)
    recorder = _Recorder(served, spec, rows)
    arrivals = enumerate(trace)
    upcoming = next(arrivals, None)
    idle = 0
    while upcoming is not None or engine.has_work:
        while upcoming is not None and (arrival := upcoming[1].arrival / speed) <= clock.now():
            _submit(*upcoming, arrival, namespace, served, recorder)
            upcoming = next(arrivals, None)
        if engine.has_work:
            steps = engine.stats.steps
            for output in engine.step():
                if output.request.finished:
                    recorder.finished(output.request)
            idle = 0 if engine.stats.steps > steps else idle + 1
            assert idle < _MOST_IDLE_STEPS, f"no progress: {engine.scheduler.waiting}, {engine.cache.usage()}"
        elif upcoming is not None:
            clock.advance_to(upcoming[1].arrival / speed)
    recorder.close()


def _submit(
    index: int,
    traced: TraceRequest,
    arrival: float,
    namespace: Namespace,
    served: TimedEngine,
    recorder: _Recorder,
) -> None:
    num_prompt = traced.num_prompt
    answer = traced.tokens[num_prompt:]
    recorder.submitted(index, (index, arrival, traced.session, traced.turn, num_prompt, len(answer)))
    if not len(answer):
        answer = np.zeros(1, dtype=np.uint32)
    request = Request(
        index,
        traced.tokens[:num_prompt],
        SamplingParams(temperature=0.0),
        max_tokens=len(answer),
        namespace=namespace,
        arrival=arrival,
        boundaries=traced.boundaries.tolist(),
        script=answer,
    )
    try:
        served.engine.submit(request)
    except RequestTooLarge:
        recorder.refused(index, num_prompt)
