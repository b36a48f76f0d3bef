"""One request of a trace, and what every trace offers."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hybridcache.tokens import TokenIds


class TraceRequest(NamedTuple):
    """A request as it was served: its input, its output, and when it arrived."""

    arrival: float  # seconds after the trace's first request, never decreasing
    session: int  # requests of one session have the same number
    turn: int  # place within the session, as the trace states it or counted from 0
    tokens: TokenIds  # [num_prompt + n] uint32: the input, then the n >= 1 output tokens
    num_prompt: int  # input length P in tokens, at least 1
    boundaries: NDArray[np.int64]  # [k] int64, tokens: ascending ends of the input's messages; the last is P

    @property
    def prompt(self) -> TokenIds:
        """[num_prompt] uint32: the input tokens, a view."""
        return self.tokens[: self.num_prompt]


class Trace(Protocol):
    """A sequence of requests in order of arrival; every `iter()` starts at the first request again."""

    @property
    def name(self) -> str:
        """What tables and figures call this trace."""
        ...

    @property
    def num_requests(self) -> int:
        """Requests one iteration yields, after thinning and `limit`."""
        ...

    @property
    def has_outputs(self) -> bool:
        """False where later inputs cannot repeat outputs because the file does not identify them.

        Reuse measured on such a trace is a lower bound.
        """
        ...

    def __iter__(self) -> Iterator[TraceRequest]: ...
