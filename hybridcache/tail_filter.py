"""Positions told apart by the two tokens before them, in bulk."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from hybridcache.tokens import TOKEN_BYTES

Tail = int
"""The last two tokens before a position, read as one native uint64."""
TAIL_TOKENS = 2

CELLS_PER_ENTRY = 64
MOST_COUNTED = 255
_MASK = (1 << 64) - 1
_FACTOR = 0x9E3779B97F4A7C15  # odd, near 2^64 / golden ratio: Knuth's multiplicative hashing
_FACTOR_ARRAY = np.array(_FACTOR, dtype=np.uint64)


class TailFilter:
    """A counting Bloom filter with one cell an entry (Fan et al., "Summary Cache", SIGCOMM 1998).

    Of the positions of a prompt, ``may_hold`` leaves those whose tail was added, and a few others (1 in
    ``CELLS_PER_ENTRY`` at most, were tails random). A cell that is full is never lowered: it can only cost a
    closer look.
    """

    __slots__ = ("_cells", "_shift")

    def __init__(self, num_entries: int, tails: Iterable[Tail] = ()) -> None:
        """Room for ``num_entries``; holds ``tails``."""
        bits = (num_entries * CELLS_PER_ENTRY - 1).bit_length()
        self._cells = np.zeros(1 << bits, dtype=np.uint8)
        self._shift = 64 - bits
        for tail in tails:
            self.add(tail)

    @property
    def num_entries(self) -> int:
        """Entries that there is room for."""
        return len(self._cells) // CELLS_PER_ENTRY

    def add(self, tail: Tail) -> None:
        """One more entry with ``tail``."""
        self._count(tail, 1)

    def remove(self, tail: Tail) -> None:
        """One entry with ``tail``, which was added before, less."""
        self._count(tail, -1)

    def may_hold(self, tokens: bytes, first: int, beyond: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of ``beyond`` [k] where the tail before position ``first`` + ``beyond`` may have been added.

        ``tokens`` is the prompt (native uint32), at least as long as the last position; ``first`` is 2 or
        more. Modifies nothing.
        """
        before = first - TAIL_TOKENS
        num_tails = len(tokens) // TOKEN_BYTES - 1 - before
        tails = np.ndarray(num_tails, np.uint64, tokens, before * TOKEN_BYTES, (TOKEN_BYTES,))
        hashes = tails[beyond]
        hashes *= _FACTOR_ARRAY
        hashes >>= self._shift
        return beyond[self._cells.take(hashes.view(np.int64)).nonzero()[0]]

    def _count(self, tail: Tail, step: int) -> None:
        cell = (tail * _FACTOR & _MASK) >> self._shift
        count = int(self._cells[cell])
        if count < MOST_COUNTED:
            self._cells[cell] = count + step
