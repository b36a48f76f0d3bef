"""Find which request of a hashed trace continues which.

Such traces name each input by hashes of its prefixes, one a block, and do not name outputs. The next turn of
a conversation therefore matches only up to the last full block of the prompt before; that it repeats the rest
of that prompt and the answer has to be inferred:

- B continues A when B's longest match, of `min_blocks` or more, ends at A's last full block and B is long
  enough for A's input and output; the latest such A counts. Then B = A.input + A.output + own tokens.
- Otherwise B copies the tokens of the request that first had the matched blocks, up to the match's end.

Where the trace states which request B continues, nobody else is considered, and `min_blocks` does not count.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Origin(NamedTuple):
    """Where the first tokens of a request come from."""

    parent: int  # index of the request they are copied from; -1 when it copies nothing
    num_copied: int  # tokens taken from parent.input + parent.output
    continues: bool  # the copy is all of parent.input + parent.output


class Stitcher:
    """Sees the requests in order and finds each one's origin. Holds one entry a distinct block."""

    def __init__(self, block_tokens: int, min_blocks: int) -> None:
        self._block_tokens = block_tokens
        self._min_blocks = min_blocks
        # Distinct prefixes are numbered from 1; a prefix is (prefix before it, id of its last block).
        # Keying by both also serves traces whose ids hash a block's own content alone.
        self._prefixes: dict[tuple[int, int], int] = {}
        self._owner = [-1]  # by prefix: the first request that had it
        self._ending: dict[int, list[int]] = {}  # by prefix: requests with this last full block, in order
        self._inputs: list[int] = []  # tokens, by request
        self._outputs: list[int] = []  # tokens, by request

    def add(
        self, hash_ids: Sequence[int], num_input: int, num_output: int, parent: int | None = None
    ) -> Origin:
        """The origin of the next request; `hash_ids` has one a block, the lengths are in tokens.

        `parent` is the request that it continues, as the trace states it (-1: none); None: nothing is stated.
        """
        request = len(self._inputs)
        self._inputs.append(num_input)
        self._outputs.append(num_output)
        num_full = num_input // self._block_tokens
        prefix = matched = last_full = 0
        path = [0]  # prefixes of the match, by blocks
        matching = True
        num_matched = 0
        for block, hash_id in enumerate(hash_ids):
            key = (prefix, hash_id)
            known = self._prefixes.get(key)
            if known is None:
                matching = False
                known = self._prefixes[key] = len(self._owner)
                self._owner.append(request)
            elif matching:
                matched, num_matched = known, block + 1
                path.append(known)
            prefix = known
            if block + 1 == num_full:
                last_full = prefix
        if parent is None:
            origin = self._origin(matched, num_matched, num_input)
        else:
            origin = self._stated_origin(parent, path, num_input)
        if num_full:
            self._ending.setdefault(last_full, []).append(request)
        return origin

    def _origin(self, matched: int, num_matched: int, num_input: int) -> Origin:
        if num_matched >= self._min_blocks:
            for earlier in reversed(self._ending.get(matched, ())):
                total = self._inputs[earlier] + self._outputs[earlier]
                if total <= num_input:
                    return Origin(earlier, total, True)
        return self._copy(matched, num_matched, num_input)

    def _stated_origin(self, parent: int, path: Sequence[int], num_input: int) -> Origin:
        """`path` are the prefixes of the longest match, from the empty one on."""
        copy = self._copy(path[-1], len(path) - 1, num_input)
        if parent < 0:
            return copy
        num_full = self._inputs[parent] // self._block_tokens
        total = self._inputs[parent] + self._outputs[parent]
        repeats = num_full < len(path) and (not num_full or parent in self._ending.get(path[num_full], ()))
        # A sibling that went on from the same answer may share more than the parent holds.
        if repeats and copy.num_copied <= total <= num_input:
            return Origin(parent, total, True)
        return copy

    def _copy(self, matched: int, num_matched: int, num_input: int) -> Origin:
        if not num_matched:
            return Origin(-1, 0, False)
        owner = self._owner[matched]
        # A match may end with a partial block; it holds no more than its owner's input.
        return Origin(owner, min(num_matched * self._block_tokens, num_input, self._inputs[owner]), False)
