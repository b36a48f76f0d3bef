"""A sample of a trace by whole sessions, chosen by hash: spatial sampling for prefix caches.

SHARDS (Waldspurger et al., FAST '15) replays the references whose hash lies below a threshold through a cache
that is as much smaller. Here the unit is a session, since a prefix lives on its own session's turns.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from hybridcache.experiments.traces.request import Trace, TraceRequest
from hybridcache.prompt_log import common_tokens
from hybridcache.tokens import TokenIds

MOST_GROUP = 16
"""Sessions of which one is kept, at most."""
LEAST_SESSIONS = 150
"""Sessions that are kept, where there are so many: fewer say too little."""

_MOST_HELD = 64_000_000  # tokens of last requests


@dataclass(slots=True)
class _Session:
    """What one pass remembers of a session; tokens."""

    number: int
    input_tokens: int = 0
    repeated: int = 0
    """Of inputs: what they begin with in common with the request before, their last token left out."""


class SessionSample(NamedTuple):
    """Requests in order of arrival, and how they stand to the whole trace."""

    requests: Sequence[TraceRequest]
    rate: float
    """Input tokens of the sample per input token of the trace."""
    repetition: float
    """Tokens that repeat their own session's last request, as a part of the input: the trace's share over
    the sample's. Hits are in proportion to it, so that it takes out most of the chance in the choice."""
    num_sessions: int
    num_sampled: int


def sample_sessions(trace: Trace, group: int | None = None, seed: int = 0) -> SessionSample:
    """One session in ``group`` (None: as many as leave enough), in two passes.

    Sessions are taken in windows of group x group by their start, ordered by size there, and of every
    ``group`` neighbours the one with the least hash stays: the sample has the trace's load at all times, and
    its sizes. Holds a few numbers a session, the sample's tokens, and at most 64 million of last requests.
    """
    sessions: dict[int, _Session] = {}
    last: OrderedDict[int, TokenIds] = OrderedDict()
    held = 0
    for _, name, _, tokens, num_prompt, _ in trace:
        session = sessions.setdefault(name, _Session(name))
        session.input_tokens += num_prompt
        before = last.pop(name, None)
        if before is not None:
            held -= len(before)
            session.repeated += common_tokens(before[:-1], tokens[: num_prompt - 1])
        last[name] = tokens
        held += len(tokens)
        while held > _MOST_HELD:
            held -= len(last.popitem(last=False)[1])
    if group is None:
        group = min(max(len(sessions) // LEAST_SESSIONS, 1), MOST_GROUP)
    kept = _choose(list(sessions.values()), group, seed)
    sampled = [session for name, session in sessions.items() if name in kept]
    requests = [request for request in trace if request.session in kept]
    share, of_sample = _shares(list(sessions.values())), _shares(sampled)
    rate = sum(s.input_tokens for s in sampled) / sum(s.input_tokens for s in sessions.values())
    repetition = share / of_sample if share and of_sample else 1.0
    return SessionSample(requests, rate, repetition, len(sessions), len(sampled))


def _choose(sessions: Sequence[_Session], group: int, seed: int) -> set[int]:
    kept = set()
    window = group * group
    for start in range(0, len(sessions), window):
        by_size = sorted(sessions[start : start + window], key=lambda session: session.input_tokens)
        for first in range(0, len(by_size), group):
            kept.add(
                min(by_size[first : first + group], key=lambda session: _hash(session.number, seed)).number
            )
    return kept


def _hash(session: int, seed: int) -> bytes:
    return blake2b(f"{seed} {session}".encode(), digest_size=8).digest()


def _shares(sessions: Sequence[_Session]) -> float:
    total = sum(session.input_tokens for session in sessions)
    return sum(session.repeated for session in sessions) / max(total, 1)
