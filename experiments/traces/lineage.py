"""The tokens of stitched requests, made when asked for."""

from array import array

import numpy as np
from numpy.typing import NDArray

from hybridcache.experiments.traces.stitch import Origin
from hybridcache.tokens import TokenIds

_ID_SPACE = 2**32  # token ids


class Lineage:
    """Which tokens each request copies and which are its own.

    Own tokens are numbered through the trace, modulo 2**32: no two are alike unless 2**32 lie between them,
    and even then they would have to follow the same prefix to be mixed up. Takes 40 bytes a request.
    """

    def __init__(self) -> None:
        self._parents = array("q")  # request index
        self._copied = array("q")  # tokens
        self._inputs = array("q")  # tokens
        self._totals = array("q")  # tokens, input and output
        self._firsts = array("q")  # id of the first own token
        self._next = 0  # id of the next own token
        self._ramp = np.empty(0, np.uint32)  # 0, 1, 2, ... as long as the longest run of own tokens

    def add(self, origin: Origin, num_input: int, num_output: int) -> None:
        """The next request, lengths in tokens."""
        own = num_input + num_output - origin.num_copied
        assert own > 0, "the output is always a request's own"
        self._parents.append(origin.parent)
        self._copied.append(origin.num_copied)
        self._inputs.append(num_input)
        self._totals.append(num_input + num_output)
        self._firsts.append(self._next)
        self._next = (self._next + own) % _ID_SPACE
        if own > len(self._ramp):
            self._ramp = np.arange(2 * own, dtype=np.uint32)

    def tokens(self, request: int) -> tuple[TokenIds, NDArray[np.int64]]:
        """[P + n] uint32, input then output, and [k] int64, where the input's known messages end."""
        stop = self._totals[request]
        tokens = np.empty(stop, np.uint32)
        ends = [self._inputs[request]]
        while stop:
            copied = self._copied[request]
            if stop > copied:  # else this ancestor contributes nothing
                if self._inputs[request] < stop:
                    ends.append(self._inputs[request])
                first = np.uint32(self._firsts[request])
                np.add(self._ramp[: stop - copied], first, out=tokens[copied:stop])
                stop = copied
                ends.append(stop)
            request = self._parents[request]
        return tokens, np.unique(np.array(ends[:-1], np.int64))
