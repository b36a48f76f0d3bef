"""The last prompts that were sent, to compare new ones with."""

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hybridcache.namespace import Namespace
from hybridcache.tokens import TokenIds

OPENING_TOKENS = 8
"""Most tokens that a template puts behind the last message."""
MOST_PROMPTS = 512
MOST_TOKENS = 4_000_000
_SHINGLE = 8  # tokens
_SAMPLED = 4  # one shingle of so many is kept
_MOST_SHINGLES = 1024  # of one prompt: those of the smallest hashes
_LATEST = 16  # prompts that are remembered for one shingle
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_CANDIDATES = 4


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PromptRecord:
    """A prompt as it was sent, and what the cache found of it; tokens."""

    namespace: Namespace
    tokens: TokenIds = field(repr=False)
    """[P] uint32."""
    boundaries: Sequence[int]
    """Ends of its messages, ascending; empty where they are not known."""
    hit: int
    matched: int
    lost: Mapping[str, int]
    """By reason; with ``hit`` they add up to the prompt."""
    looked_at: float = 0.0
    """When the cache was asked, seconds of its clock."""
    expires_at: float = math.inf
    """When what the prompt left in the cache expires, unless others use it."""

    @property
    def ends(self) -> list[int]:
        """Ends of its messages, the last one that of the prompt: what opens the answer belongs to it."""
        last = len(self.tokens)
        return [*(end for end in self.boundaries if 0 < end < last - OPENING_TOKENS), last]


class PromptLog:
    """At most ``most_prompts`` prompts and ``most_tokens`` tokens; the oldest go first. Not thread-safe.

    One shingle of 8 tokens in four is indexed, chosen by its hash, at most 1,024 of a prompt (a bottom-k
    sketch: Cohen and Kaplan, PODC 2007), so that the prompt which shares most text with another is found
    without comparing them all, wherever in it that text stands.
    """

    def __init__(self, most_prompts: int = MOST_PROMPTS, most_tokens: int = MOST_TOKENS) -> None:
        self._most_prompts, self._most_tokens = most_prompts, most_tokens
        self._records: OrderedDict[int, tuple[PromptRecord, list[int]]] = OrderedDict()
        self._by_shingle: dict[tuple[Namespace, int], deque[int]] = {}
        self._next = self._num_tokens = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def records(self) -> list[PromptRecord]:
        """All of them, the oldest first."""
        return [record for record, _ in self._records.values()]

    def add(self, record: PromptRecord) -> None:
        """Remember a prompt; forget the oldest beyond the limits."""
        shingles = _shingles(record.tokens)
        self._records[self._next] = record, shingles
        for shingle in shingles:
            self._by_shingle.setdefault((record.namespace, shingle), deque(maxlen=_LATEST)).append(self._next)
        self._next += 1
        self._num_tokens += len(record.tokens)
        while len(self._records) > self._most_prompts or (
            self._num_tokens > self._most_tokens and len(self._records) > 1
        ):
            number, (old, its) = self._records.popitem(last=False)
            self._num_tokens -= len(old.tokens)
            for shingle in its:
                key = old.namespace, shingle
                numbers = self._by_shingle.get(key)
                if numbers and numbers[0] == number:
                    numbers.popleft()
                    if not numbers:
                        del self._by_shingle[key]

    def nearest(self, tokens: TokenIds, namespace: Namespace) -> list[PromptRecord]:
        """The prompts of a namespace that share most text with ``tokens``, the most first; few, or none.

        Of those that share equally much the one comes first that begins alike for longest, then the latest.
        """
        votes: Counter[int] = Counter()
        for shingle in _shingles(tokens):
            votes.update(self._by_shingle.get((namespace, shingle), ()))
        ranked = sorted(votes, key=lambda number: (-votes[number], -number))[: 4 * _CANDIDATES]
        alike = {number: common_tokens(tokens, self._records[number][0].tokens) for number in ranked}
        ranked.sort(key=lambda number: (-votes[number], -alike[number], -number))
        return [self._records[number][0] for number in ranked[:_CANDIDATES]]


def common_tokens(a: TokenIds, b: TokenIds) -> int:
    """Tokens that both begin with."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def _shingles(tokens: TokenIds) -> list[int]:
    """Hashes of the sampled shingles, each once."""
    if len(tokens) < _SHINGLE:
        return []
    windows = np.lib.stride_tricks.sliding_window_view(tokens.astype(np.uint64), _SHINGLE)
    weights = np.cumprod(np.full(_SHINGLE, _MULTIPLIER))
    hashes = (windows * weights).sum(axis=1, dtype=np.uint64)
    hashes ^= hashes >> np.uint64(29)
    hashes *= _MULTIPLIER
    sampled = np.unique(hashes[hashes >> np.uint64(40) & np.uint64(_SAMPLED - 1) == 0])
    kept: list[int] = sampled[:_MOST_SHINGLES].tolist()
    return kept
