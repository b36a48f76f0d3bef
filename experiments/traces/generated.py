"""A trace made by a seeded generator, session by session."""

import heapq
from collections.abc import Iterator

import numpy as np

from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.experiments.traces.sampler import Sampler
from hybridcache.experiments.traces.workload import Call, Workload

_SESSION, _ARRIVALS = 2, 3  # second names of the random streams; shared texts have 1


class GeneratedTrace:
    """Sessions of one workload, started by a Poisson process or in bursts, and merged by arrival.

    Nothing but live sessions is held. Every session has its own random stream, so the same seed gives the
    same requests in any process.
    """

    def __init__(
        self, name: str, workload: Workload, seed: int, every_kth_session: int = 1, limit: int | None = None
    ) -> None:
        self.name = name
        self.has_outputs = True
        self._workload = workload
        self._seed = seed
        self._every_kth = every_kth_session
        total = workload.settings.requests
        if every_kth_session > 1:  # how many stay is known only once they are made
            total = sum(session % every_kth_session == 0 for _, session, _, _ in self._calls())
        self.num_requests = total if limit is None else min(total, limit)

    def __iter__(self) -> Iterator[TraceRequest]:
        left = self.num_requests
        for arrival, session, turn, call in self._calls():
            if session % self._every_kth:
                continue
            if not left:
                return
            left -= 1
            ends = np.cumsum([len(message) for message in call.messages], dtype=np.int64)
            tokens = np.concatenate([*call.messages, call.output])
            yield TraceRequest(arrival, session, turn, tokens, int(ends[-1]), ends)

    def _calls(self) -> Iterator[tuple[float, int, int, Call]]:
        """(arrival, session, turn, call) of the whole trace in order of arrival."""
        settings = self._workload.settings
        gaps = Sampler(self._seed, _ARRIVALS, vocab_size=1)
        live: list[tuple[float, int, int, Call, Iterator[Call]]] = []  # a heap: each live session's next call
        start, sessions = 0.0, 0  # of the next session
        for _ in range(settings.requests):
            while not live or start <= live[0][0]:
                sampler = Sampler(self._seed, _SESSION, sessions, vocab_size=settings.vocab_size)
                calls = self._workload.session(self._seed, sampler)
                heapq.heappush(live, (start, sessions, 0, next(calls), calls))
                sessions += 1
                start += gaps.start_gap(1 / settings.sessions_per_second, settings.sessions_per_burst)
            arrival, session, turn, call, calls = heapq.heappop(live)
            yield arrival, session, turn, call
            if (after := next(calls, None)) is not None:
                heapq.heappush(live, (arrival + after.wait, session, turn + 1, after, calls))
