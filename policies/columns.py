"""The facts an eviction policy sees: one column a fact, one row a node of the tree."""

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FINAL, BRANCH, PROMPT_END, INTERVAL, MESSAGE_END, FOLLOW_UP = range(6)
"""Kinds of position: a request's end, a branch point, the end of a prompt (or of its last
turn), a multiple of n tokens, the end of a message within a prompt, kept when it was first seen,
the end of a request that went on from another one's end."""

REQUEST_ENDS = (FINAL, FOLLOW_UP)

KIND_NAMES = ("final", "branch", "prompt_end", "interval", "message_end", "follow_up")
"""By kind, as people and counters are told."""
NUM_KINDS = len(KIND_NAMES)


@dataclass(frozen=True, slots=True)
class Columns:
    """Shape [n] each. Rows that cannot be evicted now are there too, and their scores ignored, unless the
    policy is ``relative``.

    A leaf frees its own blocks and its checkpoint; an inner node its checkpoint alone.
    """

    accessed: NDArray[np.float64]
    """Seconds: the last time a request resumed at this node, or its creation."""
    path_accessed: NDArray[np.float64]
    """Seconds: the same for the node or anything that was ever below it, once it is a leaf; at any time
    when the policy ``touches_path``."""
    hits: NDArray[np.int64]
    """Requests that resumed at this node."""
    children: NDArray[np.int64]
    """Children of the node now."""
    kind: NDArray[np.int8]
    """FINAL, BRANCH, PROMPT_END, INTERVAL, MESSAGE_END or FOLLOW_UP."""
    flops_saved: NDArray[np.float64]
    """FLOPs from the nearest checkpointed ancestor to the node; 0 for KV that no checkpoint covers."""
    bytes_freed: NDArray[np.float64]
    """Bytes that evicting the node frees, at least 1."""
    prefix_bytes: NDArray[np.float64]
    """Bytes of the KV of all tokens before the node's end and of one checkpoint, at least 1."""
    depth: NDArray[np.int64]
    """Tokens from the start of the prompt to the node's end."""
    clock: NDArray[np.float64]
    """The policy's own ``clock`` when the node was last accessed (GDSF)."""

    def freeze(self) -> None:
        """Refuse writes from now on: a policy that works in place would change the cache's own facts."""
        for column in fields(self):
            getattr(self, column.name).flags.writeable = False

    @classmethod
    def blank(cls, n: int) -> "Columns":
        """``n`` nodes as they are when new at time 0: nothing accessed, nothing saved."""
        return cls(
            accessed=np.zeros(n),
            path_accessed=np.zeros(n),
            hits=np.zeros(n, dtype=np.int64),
            children=np.zeros(n, dtype=np.int64),
            kind=np.zeros(n, dtype=np.int8),
            flops_saved=np.zeros(n),
            bytes_freed=np.ones(n),
            prefix_bytes=np.ones(n),
            depth=np.zeros(n, dtype=np.int64),
            clock=np.zeros(n),
        )


class Facts(NamedTuple):
    """One node's facts at the moment of an event; units as in Columns."""

    accessed: float
    hits: int
    children: int
    kind: int
    flops_saved: float
    bytes_freed: float
    clock: float
    depth: int


class Census(NamedTuple):
    """Positions that a request could resume at, in the tree or remembered; shape [n] each, as in Columns."""

    accessed: NDArray[np.float64]
    hits: NDArray[np.int64]
    children: NDArray[np.int64]
    kind: NDArray[np.int8]
    depth: NDArray[np.int64]

    def and_also(self, others: "Census") -> "Census":
        """Both together."""
        return Census(
            np.concatenate((self.accessed, others.accessed)),
            np.concatenate((self.hits, others.hits)),
            np.concatenate((self.children, others.children)),
            np.concatenate((self.kind, others.kind)),
            np.concatenate((self.depth, others.depth)),
        )
