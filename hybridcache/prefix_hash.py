"""128-bit hashes of prefixes, extended at the price of the new tokens alone."""

import numpy as np
from numpy.typing import NDArray

Digest = tuple[int, int]
_MASK = (1 << 64) - 1


class PrefixHash:
    """Multilinear hashing: sum of weight[i] * token[i] mod 2^64 over the positions i, twice.

    With random weights two different token strings of one length collide in one sum with a chance of at most
    2^-32 (Lemire and Kaser, "Strongly universal string hashing is fast", 2014, section 3), so in
    both with 2^-64. The weights are drawn from a fixed seed and are the same in every process.
    Compared only between prefixes of one length, and where a collision can only mislabel a miss;
    the tree compares tokens.
    """

    __slots__ = ("_weights",)

    def __init__(self) -> None:
        self._weights = _draw(0, 4096)

    def extend(self, digest: Digest, tokens: bytes, start: int) -> Digest:
        """The digest of a prefix after ``tokens`` (native uint32) at positions from ``start`` on."""
        values, (first, second) = self._terms(tokens, start)
        return (
            (digest[0] + int(np.dot(values, first))) & _MASK,
            (digest[1] + int(np.dot(values, second))) & _MASK,
        )

    def running(self, digest: Digest, tokens: bytes, start: int) -> NDArray[np.uint64]:
        """Digests after 0, 1, ... len(tokens) of the tokens: [2, n + 1], column 0 is ``digest``."""
        values, weights = self._terms(tokens, start)
        out = np.empty((2, len(values) + 1), dtype=np.uint64)
        out[:, 0] = digest
        np.multiply(weights, values, out=out[:, 1:])
        return out.cumsum(axis=1, out=out)

    def _terms(self, tokens: bytes, start: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        values = np.frombuffer(tokens, dtype=np.uint32).astype(np.uint64)
        stop = start + len(values)
        while stop > self._weights.shape[1]:
            have = self._weights.shape[1]
            self._weights = np.concatenate((self._weights, _draw(have, 2 * have)), axis=1)
        return values, self._weights[:, start:stop]


def _draw(start: int, stop: int) -> NDArray[np.uint64]:
    """Weights [2, stop - start] of the positions [start, stop), where start is 0 or half of stop."""
    rng = np.random.Generator(np.random.PCG64([0x68796272, start]))
    return rng.integers(0, 2**64, size=(2, stop - start), dtype=np.uint64)
