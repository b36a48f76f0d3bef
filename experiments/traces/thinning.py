"""Thin a trace: whole sessions, then the first requests."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def kept_requests(
    sessions: NDArray[np.integer[Any]] | Sequence[int], every_kth: int, limit: int | None
) -> NDArray[np.int64]:
    """Indices [K] int64, ascending, of the requests that stay; `sessions` [R] has each request's session.

    Sessions are counted from 0 in order of first appearance; those divisible by `every_kth` stay, with all
    their requests: thinning by requests would tear conversations apart and change every hit rate.
    `limit` then keeps the first requests of what is left.
    """
    _, first, session = np.unique(sessions, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))  # by session value: its place by first appearance
    return np.flatnonzero(order[session] % every_kth == 0)[:limit]


def number_turns(sessions: Sequence[int]) -> NDArray[np.int64]:
    """[R] int64: each request's place within its session, from 0."""
    _, session, counts = np.unique(sessions, return_inverse=True, return_counts=True)
    turns = np.empty(len(session), np.int64)
    firsts = np.cumsum(counts) - counts  # of each session, when requests are ordered by session
    turns[np.argsort(session, kind="stable")] = np.arange(len(session)) - np.repeat(firsts, counts)
    return turns
