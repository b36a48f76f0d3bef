"""Marconi's eviction as its published code has it."""

import numpy as np
from numpy.typing import NDArray

from hybridcache.policies.columns import Columns
from hybridcache.policies.marconi import Marconi


class MarconiPublished(Marconi):
    """`marconi`, with FLOPs divided by the memory of the node's whole prefix instead of what is freed.

    (Pan et al., "Marconi: Prefix Caching for the Era of Hybrid LLMs", MLSys 2025: the code published
    with it.) A checkpoint at the end of a long context seems dear by it, and one that saves little but
    frees much seems cheap. Other faults of that code are not copied.
    """

    name = "marconi_published"

    def bytes_charged(self, columns: Columns) -> NDArray[np.float64]:
        return columns.prefix_bytes
