"""What an eviction policy is."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hybridcache.policies.columns import Census, Columns, Facts


class EvictionPolicy:
    """Scores nodes; the lowest score goes first. Knows columns, and neither tree nor pools.

    ``score`` modifies nothing; the columns cannot be written to. A policy that learns does so in the other
    methods; ``on_hit`` and ``on_evict`` are called before the node's facts change. ``reset`` forgets
    everything learnt.
    """

    name: ClassVar[str]
    leaves_only: ClassVar[bool] = False
    """True when checkpoints of inner nodes are no candidates."""
    by_block: ClassVar[bool] = False
    """True when a leaf loses one block at a time, from its end."""
    touches_path: ClassVar[bool] = False
    """True when the use of a node is a use of all above it, for inner nodes too (Columns.path_accessed)."""
    relative: ClassVar[bool] = False
    """True when a node's score depends on the other rows: only candidates are shown then."""
    remembers: bool = False
    """True when it learns from positions that went, too: ``on_return`` is called for them, and ``census``
    shows them."""
    revives: bool = False
    """True when a position that went, and had been shared, is to get its checkpoint back as soon as a prompt
    passes it."""
    wants_census: bool = False
    """Set by a policy that learns from all positions, to be shown them after the present event."""
    clock: float = 0.0
    """A number the cache writes down for a node at each access (Columns.clock)."""

    def score(self, columns: Columns, now: float) -> NDArray[np.float64]:
        """Scores [n] of the rows of ``columns`` at time ``now`` (seconds)."""
        raise NotImplementedError

    def on_hit(self, facts: Facts, now: float) -> None:
        """A request resumed at a node."""

    def on_evict(self, facts: Facts, now: float) -> None:
        """A node, or the checkpoint of an inner node, was evicted to make room."""

    def on_return(self, facts: Facts, now: float) -> None:
        """A prompt passes a position that went, and would have resumed there had it been kept."""

    def census(self, positions: Census, now: float) -> None:
        """All positions that are in the tree, and those remembered if it ``remembers``; called when
        ``wants_census``, which it clears."""

    def learnt(self) -> Mapping[str, float]:
        """What has been learnt so far, as named numbers for people and figures; {} if nothing ever is.

        The names are the same at any time. Modifies nothing.
        """
        return {}

    def reset(self) -> None:
        """Back to the state of a new policy."""
