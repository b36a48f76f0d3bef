"""The tokens of a native trace, joined from ranges of one pool."""

import os
import tempfile
from collections.abc import Sequence
from typing import IO, Protocol

import numpy as np
from numpy.typing import NDArray

from hybridcache.tokens import TokenIds, as_token_ids

_CHUNK_TOKENS = 1 << 20  # tokens converted at a time
_ITEM_BYTES = 4  # bytes of a uint32


class TokenPool(Protocol):
    """Token ids addressed by position."""

    def __len__(self) -> int: ...

    def join(self, starts: Sequence[int], stops: Sequence[int], num_tokens: int) -> TokenIds:
        """[num_tokens] uint32: the ranges [start, stop), one after another."""
        ...


class MemoryPool:
    """A pool held in memory."""

    def __init__(self, tokens: NDArray[np.generic]) -> None:
        """`tokens` [N] of any integer dtype. ValueError for ids outside [0, 2**32)."""
        self._tokens = np.ascontiguousarray(as_token_ids(tokens)).data

    def __len__(self) -> int:
        return len(self._tokens)

    def join(self, starts: Sequence[int], stops: Sequence[int], num_tokens: int) -> TokenIds:
        """As `TokenPool.join`."""
        tokens = self._tokens
        # Slices of a memoryview cost less than slices of an array, and requests have dozens.
        ranges = [tokens[start:stop] for start, stop in zip(starts, stops, strict=True)]
        return np.frombuffer(b"".join(ranges), np.uint32)


class FilePool:
    """A pool kept in an unlinked temporary file, so that memory follows the request and not the trace."""

    def __init__(self, stream: IO[bytes], dtype: np.dtype[np.generic], num_tokens: int) -> None:
        """Copies `num_tokens` ids of `dtype` from `stream` to the file as uint32.

        Raises:
            ValueError: an id outside [0, 2**32), or the stream ends early.
        """
        self._num_tokens = num_tokens
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the pool)
        for start in range(0, num_tokens, _CHUNK_TOKENS):
            count = min(_CHUNK_TOKENS, num_tokens - start)
            data = stream.read(count * dtype.itemsize)
            if len(data) != count * dtype.itemsize:
                raise ValueError(f"the data ends after {start} to {start + count} of {num_tokens} ids")
            self._file.write(as_token_ids(np.frombuffer(data, dtype)).astype("=u4").tobytes())
        self._file.flush()

    def __len__(self) -> int:
        return self._num_tokens

    def join(self, starts: Sequence[int], stops: Sequence[int], num_tokens: int) -> TokenIds:
        """As `TokenPool.join`."""
        joined = np.empty(num_tokens, np.uint32)
        target = joined.data.cast("B")
        done = 0  # bytes
        for start, stop in zip(starts, stops, strict=True):
            size = (stop - start) * _ITEM_BYTES
            # Positioned reads leave no shared offset, so several iterations may run side by side.
            got = os.preadv(self._file.fileno(), [target[done : done + size]], start * _ITEM_BYTES)
            assert got == size, "the temporary file was cut short"
            done += size
        return joined
