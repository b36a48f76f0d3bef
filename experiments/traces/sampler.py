"""Seeded random lengths, waits and token ids of the generators."""

import numpy as np

from hybridcache.tokens import TokenIds

_SPREAD = 0.7  # sigma of the logarithm of a length; messages of real chats spread about this much
_BURST_SPEED = 20
_LONGEST = 8  # times the mean: where lengths are cut off


class Sampler:
    """Draws from one stream of random numbers, named by integers; equal names give equal draws."""

    def __init__(self, *names: int, vocab_size: int) -> None:
        self._random = np.random.Generator(np.random.PCG64(np.random.SeedSequence(names)))
        self._vocab_size = vocab_size

    def text(self, num_tokens: int) -> TokenIds:
        """[num_tokens] uint32 in [0, vocab_size): a text nobody else has."""
        return self._random.integers(0, self._vocab_size, num_tokens, dtype=np.uint32)

    def message(self, mean_tokens: float) -> TokenIds:
        """A text of log-normal length with the mean `mean_tokens`, at least 1 token and at most 8 means."""
        length = self._random.lognormal(np.log(mean_tokens) - _SPREAD**2 / 2, _SPREAD)
        return self.text(int(min(max(round(length), 1), _LONGEST * mean_tokens)))

    def count(self, mean: float) -> int:
        """A geometric count of 1 or more with the given mean (1 or more)."""
        return int(self._random.geometric(1 / mean))

    def seconds(self, mean: float) -> float:
        """An exponential wait in seconds."""
        return float(self._random.exponential(mean))

    def start_gap(self, mean: float, burst: float) -> float:
        """Seconds from one start to the next, with the given mean; in bursts of ``burst`` starts on average.

        In a burst they follow each other ``_BURST_SPEED`` times as fast, and the pauses between bursts make
        up for it. With ``burst=1`` it is an exponential wait.
        """
        if burst == 1:
            return self.seconds(mean)
        within = mean / _BURST_SPEED
        return self.seconds(burst * mean - (burst - 1) * within if self.happens(1 / burst) else within)

    def happens(self, fraction: float) -> bool:
        """True with probability `fraction`."""
        return bool(self._random.random() < fraction)

    def popular(self, num_items: int, exponent: float) -> int:
        """An index in [0, num_items), index i with a weight of (i + 1) ** -exponent (Zipf)."""
        return self.several(num_items, exponent, 1)[0]

    def several(self, num_items: int, exponent: float, num_drawn: int) -> list[int]:
        """`num_drawn` different such indices, in the order drawn."""
        weights = np.arange(1, num_items + 1, dtype=np.float64) ** -exponent
        drawn: list[int] = self._random.choice(
            num_items, num_drawn, replace=False, p=weights / weights.sum()
        ).tolist()
        return drawn

    def shuffled(self, items: list[int]) -> list[int]:
        """`items` in random order."""
        return [items[i] for i in self._random.permutation(len(items))]
