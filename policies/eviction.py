"""What an eviction policy is."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hybridcache.policies.columns import Columns, Facts


class EvictionPolicy:
    """Scores nodes; the lowest score goes first. Knows columns, and neither tree nor pools.

    ``score`` modifies nothing. A policy that learns does so in ``on_hit`` and ``on_evict``, which
    are called before the node's facts change. ``reset`` forgets everything learnt.
    """

    name: ClassVar[str]
    leaves_only: ClassVar[bool] = False
    """True when checkpoints of inner nodes are no candidates."""
    by_block: ClassVar[bool] = False
    """True when a leaf loses one block at a time, from its end."""
    relative: ClassVar[bool] = False
    """True when a node's score depends on the other rows: only candidates are shown then."""
    clock: float = 0.0
    """A number the cache writes down for a node at each access (Columns.clock)."""

    def score(self, columns: Columns, now: float) -> NDArray[np.float64]:
        """Scores [n] of the rows of ``columns`` at time ``now`` (seconds)."""
        raise NotImplementedError

    def on_hit(self, facts: Facts, now: float) -> None:
        """A request resumed at a node."""

    def on_evict(self, facts: Facts, now: float) -> None:
        """A node, or the checkpoint of an inner node, was evicted to make room."""

    def reset(self) -> None:
        """Back to the state of a new policy."""
