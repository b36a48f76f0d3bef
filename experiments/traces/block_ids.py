"""The tokens of hashed requests taken at their word: one block id, 512 tokens."""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridcache.tokens import TokenIds

_ID_SPACE = 2**32  # token ids


class BlockIds:
    """Block ids of every request; token i of block b has the id b * block_tokens + i."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._ids = array("Q")  # one request's after another's
        self._offsets = array("q", [0])  # [R + 1] into _ids
        self._inputs = array("q")  # tokens
        self._output_stops = array("q", [0])  # [R + 1] tokens of all outputs so far
        self._numbers = np.empty(0, np.uint32)  # _ids, renumbered where they were too large
        self._first_output = 0  # id of the first output token

    def add(self, hash_ids: Sequence[int], num_input: int, num_output: int) -> None:
        """The next request: ids in [0, 2**64), lengths in tokens."""
        self._ids.extend(hash_ids)
        self._offsets.append(len(self._ids))
        self._inputs.append(num_input)
        self._output_stops.append(self._output_stops[-1] + num_output)

    def seal(self) -> None:
        """Call once all requests are added. ValueError when 32-bit token ids cannot name so many blocks."""
        ids = np.frombuffer(self._ids, np.uint64)
        numbers: NDArray[np.integer[Any]] = ids
        most = _ID_SPACE // self._block_tokens
        if ids.max() >= most:  # hashes, not numbers from 0
            distinct, numbers = np.unique(ids, return_inverse=True)
            if len(distinct) >= most:
                raise ValueError(
                    f"holds {len(distinct)} distinct blocks; 32-bit token ids can name {most}; "
                    "use trace.stitch=true"
                )
        self._numbers = numbers.astype(np.uint32)
        self._ids = array("Q")
        self._first_output = (int(self._numbers.max()) + 1) * self._block_tokens

    def tokens(self, request: int) -> tuple[TokenIds, NDArray[np.int64]]:
        """[P + n] uint32, input then output, and [1] int64: P, messages being unknown.

        No other request has the output's ids.
        """
        num_input = self._inputs[request]
        start, stop = self._output_stops[request : request + 2]
        tokens = np.empty(num_input + stop - start, np.uint32)
        numbers = self._numbers[self._offsets[request] : self._offsets[request + 1], np.newaxis]
        blocks = numbers * np.uint32(self._block_tokens) + np.arange(self._block_tokens, dtype=np.uint32)
        tokens[:num_input] = blocks.ravel()[:num_input]
        tokens[num_input:] = np.arange(self._first_output + start, self._first_output + stop) % _ID_SPACE
        return tokens, np.array([num_input], np.int64)
