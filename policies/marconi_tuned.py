"""Marconi's eviction with an alpha that is tuned while it runs."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hybridcache.policies.columns import Columns
from hybridcache.policies.marconi import Marconi
from hybridcache.policies.marconi_published import MarconiPublished

ALPHAS = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0, 20.0)


class MarconiTuned(Marconi):
    """`marconi` whose alpha is the best of ``alphas`` in a replay of the recent requests; 0 at first.

    (Pan et al., MLSys 2025, section 4.3.) ``window``: how many times the requests that came before the
    first eviction are watched before each tuning (the paper: 5 to 15). ``once``: tune after the first
    window only, as the published code does. ``published``: score as `marconi_published` does. The
    replays are not the policy's business: experiments/tuned_cache.py makes them and sets ``alpha``.
    """

    name = "marconi_tuned"

    def __init__(
        self,
        alphas: Sequence[float] = ALPHAS,
        window: float = 5.0,
        once: bool = False,
        published: bool = False,
    ) -> None:
        for key, value in (("once", once), ("published", published)):
            if not isinstance(value, bool):
                raise ValueError(f"eviction.{key}={value!r}: give true or false")
        self.rule = MarconiPublished if published else Marconi
        weights = isinstance(alphas, Sequence) and all(isinstance(alpha, int | float) for alpha in alphas)
        if not weights or not alphas:
            raise ValueError(f"eviction.alphas={alphas!r}: give a list of weights to try")
        self.candidates = [self.rule(alpha) for alpha in sorted(alphas)]
        """One policy with a fixed alpha for each weight to try, ascending."""
        if not 0.0 < window < float("inf"):
            raise ValueError(f"eviction.window={window!r}: give a finite number above 0")
        super().__init__(0.0)
        self.window = window
        self.once = once
        self.tuned_by_replays = False
        """Set by whoever tunes ``alpha``."""

    def score(self, columns: Columns, now: float) -> NDArray[np.float64]:
        if not self.tuned_by_replays:
            raise ValueError("its alpha is tuned in replays only; elsewhere choose eviction=marconi")
        return super().score(columns, now)

    def bytes_charged(self, columns: Columns) -> NDArray[np.float64]:
        return self.candidates[0].bytes_charged(columns)

    def learnt(self) -> Mapping[str, float]:
        """The weight in use."""
        return {"alpha": self.alpha}

    def reset(self) -> None:
        self.alpha = 0.0
