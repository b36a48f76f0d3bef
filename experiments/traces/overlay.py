"""Contents for arrivals and lengths that came without: those of a generator, cut to measure.

Each request goes on with the live session of the generator that is due and whose history fits into it best
(is the longest that leaves at least a token); where none is, a session starts. Its last message, which is its
own in every generator here, is lengthened or cut so that the input has the length asked for, and so is the
output. Which tokens repeat is therefore the generator's assumption, not a measurement.
"""

import heapq
from bisect import bisect_right, insort
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.experiments.traces.sampler import Sampler
from hybridcache.experiments.traces.workload import Call, Workload
from hybridcache.tokens import TokenIds

_SESSION, _TEXTS = 2, 4  # second names of the random streams; shared texts have 1, arrivals 3
_LIVE_SESSIONS = 4_096  # that wait for a request; the one that has waited longest is given up


class Shape(NamedTuple):
    """What is known of a request."""

    arrival: float  # seconds after the first
    num_input: int  # tokens, at least 1
    num_output: int  # tokens, at least 1


class _Live(NamedTuple):
    """A session that waits for its next request."""

    fixed: int  # tokens of the next call's messages but the last, as they were cut so far
    session: int
    turn: int
    call: Call
    calls: Iterator[Call]
    cut: dict[int, tuple[TokenIds, TokenIds]]  # by id of the generator's message: it, and what became of it


class Overlay:
    """Lays shapes over the sessions of one workload; the same seed gives the same tokens in any process."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self._workload = workload
        self._seed = seed

    def requests(self, shapes: Iterator[Shape]) -> Iterator[TraceRequest]:
        """One request for each shape, in order; shapes must be in order of arrival."""
        vocab_size = self._workload.settings.vocab_size
        texts = Sampler(self._seed, _TEXTS, vocab_size=vocab_size)
        waiting: list[tuple[float, int, _Live]] = []  # a heap by the time from which a session is due
        due: list[tuple[int, int, _Live]] = []  # by (fixed tokens, session)
        num_sessions = 0
        for arrival, num_input, num_output in shapes:
            while waiting and waiting[0][0] <= arrival:
                _, session, live = heapq.heappop(waiting)
                insort(due, (live.fixed, session, live), key=_fixed_and_session)
                if len(due) > _LIVE_SESSIONS:
                    due.remove(min(due, key=lambda entry: entry[1]))
            place = bisect_right(due, (num_input - 1, num_sessions), key=_fixed_and_session)
            if place:
                live = due.pop(place - 1)[2]
            else:
                sampler = Sampler(self._seed, _SESSION, num_sessions, vocab_size=vocab_size)
                calls = self._workload.session(self._seed, sampler)
                live = _Live(0, num_sessions, 0, next(calls), calls, {})
                num_sessions += 1
            yield self._request(live, arrival, num_input, num_output, texts)
            after = next(live.calls, None)
            if after is not None:
                fixed = sum(len(_as_cut(message, live.cut)) for message in after.messages[:-1])
                live = _Live(fixed, live.session, live.turn + 1, after, live.calls, live.cut)
                heapq.heappush(waiting, (arrival + after.wait, live.session, live))

    @staticmethod
    def _request(
        live: _Live, arrival: float, num_input: int, num_output: int, texts: Sampler
    ) -> TraceRequest:
        parts: list[TokenIds] = []
        left = num_input
        for message in live.call.messages[:-1]:
            part = _as_cut(message, live.cut)[: left - 1]  # too long in a session's first request alone
            live.cut[id(message)] = message, part
            parts.append(part)
            left -= len(part)
        for message, num_tokens in ((live.call.messages[-1], left), (live.call.output, num_output)):
            part = message[:num_tokens]
            if len(part) < num_tokens:
                part = np.concatenate([part, texts.text(num_tokens - len(part))])
            live.cut[id(message)] = message, part
            parts.append(part)
        ends = np.unique(np.cumsum([len(part) for part in parts[:-1]], dtype=np.int64))
        return TraceRequest(
            arrival, live.session, live.turn, np.concatenate(parts), num_input, ends[ends > 0]
        )


def _as_cut(message: TokenIds, cut: dict[int, tuple[TokenIds, TokenIds]]) -> TokenIds:
    known = cut.get(id(message))
    return message if known is None else known[1]


def _fixed_and_session(entry: tuple[int, int, _Live]) -> tuple[int, int]:
    return entry[:2]
