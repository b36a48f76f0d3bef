"""What was computed and checkpointed, as flat lists: the reference that the radix tree is held against."""

from dataclasses import dataclass
from typing import NamedTuple

from hybridcache.namespace import Namespace

Tokens = tuple[int, ...]


class Found(NamedTuple):
    """What a prompt may hit and match; tokens."""

    hit: int
    matched: int


@dataclass(slots=True)
class Known:
    """A sequence whose KV was computed, or a position whose state was kept."""

    namespace: Namespace
    epoch: int
    tokens: Tokens
    expires_at: float
    """Seconds."""


class NaiveCache:
    """Never evicts. No tree: every question compares the prompt with every sequence in a list."""

    def __init__(self, has_attention: bool, recurrent: bool) -> None:
        self.has_attention = has_attention
        self.recurrent = recurrent
        self.sequences: list[Known] = []
        self.checkpoints: list[Known] = []
        self.epochs: dict[Namespace, int] = {}
        self.requests = 0
        self.prompt_tokens = 0

    def epoch(self, namespace: Namespace) -> int:
        return self.epochs.get(namespace, 0)

    def flush(self, namespace: Namespace) -> None:
        self.epochs[namespace] = self.epoch(namespace) + 1

    def compute(self, namespace: Namespace, epoch: int, tokens: Tokens, expires_at: float) -> None:
        _renew(self.sequences, namespace, epoch, tokens, expires_at)

    def keep_state(self, namespace: Namespace, epoch: int, tokens: Tokens, expires_at: float) -> None:
        self.compute(namespace, epoch, tokens, expires_at)
        _renew(self.checkpoints, namespace, epoch, tokens, expires_at)

    def read(self, namespace: Namespace, prompt: Tokens, found: Found, expires_at: float) -> None:
        """A request that found ``found`` renews what it reads."""
        epoch = self.epoch(namespace)
        if found.matched:
            self.compute(namespace, epoch, prompt[: found.matched], expires_at)
        if self.recurrent and found.hit:
            self.keep_state(namespace, epoch, prompt[: found.hit], expires_at)

    def find(self, namespace: Namespace, prompt: Tokens, now: float) -> Found:
        """The most that a cache may hit and match, and exactly that if it never evicts."""
        matched = max(
            (_common(known.tokens, prompt) for known in self._live(self.sequences, namespace, now)),
            default=0,
        )
        if not self.recurrent:
            return Found(min(matched, len(prompt) - 1), matched)
        usable = [0]
        for known in self._live(self.checkpoints, namespace, now):
            n = len(known.tokens)
            if n < len(prompt) and n <= matched and known.tokens == prompt[:n]:
                usable.append(n)
        return Found(max(usable), matched)

    def has_state(self, namespace: Namespace, tokens: Tokens, now: float) -> bool:
        """Whether the state after ``tokens`` was kept and is still valid."""
        return any(known.tokens == tokens for known in self._live(self.checkpoints, namespace, now))

    def _live(self, known: list[Known], namespace: Namespace, now: float) -> list[Known]:
        epoch = self.epoch(namespace)
        return [k for k in known if k.namespace == namespace and k.epoch == epoch and k.expires_at > now]


def _renew(known: list[Known], namespace: Namespace, epoch: int, tokens: Tokens, expires_at: float) -> None:
    for item in known:
        if item.namespace == namespace and item.epoch == epoch and item.tokens == tokens:
            item.expires_at = max(item.expires_at, expires_at)
            return
    known.append(Known(namespace, epoch, tokens, expires_at))


def _common(a: Tokens, b: Tokens) -> int:
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n
