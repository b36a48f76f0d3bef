"""How policies look in figures: told apart by marker and line style, not by colour alone."""

from collections.abc import Sequence
from typing import NamedTuple


class PolicyStyle(NamedTuple):
    """Colour, marker, the marker as a character for labels, and line style.

    The first seven colours are Okabe and Ito's palette, the others are muted ones.
    """

    color: str
    marker: str
    glyph: str
    line: str | tuple[float, tuple[float, ...]]


_STYLES = (
    PolicyStyle("#0072B2", "o", "●", "-"),
    PolicyStyle("#D55E00", "s", "■", (0.0, (6.0, 2.0))),
    PolicyStyle("#009E73", "^", "▲", (0.0, (4.0, 1.5, 1.0, 1.5))),
    PolicyStyle("#000000", "D", "◆", (0.0, (1.0, 1.5))),
    PolicyStyle("#CC79A7", "v", "▼", (0.0, (8.0, 2.0, 2.0, 2.0))),
    PolicyStyle("#E69F00", "P", "✚", (0.0, (3.0, 3.0))),
    PolicyStyle("#56B4E9", "X", "✖", (0.0, (6.0, 1.5, 1.0, 1.5, 1.0, 1.5))),
    PolicyStyle("#882255", "<", "◀", (0.0, (2.0, 1.0))),
    PolicyStyle("#666666", "p", "⬟", (0.0, (12.0, 3.0))),
    PolicyStyle("#999933", ">", "▶", (0.0, (5.0, 1.0, 1.0, 1.0))),
    PolicyStyle("#661100", "h", "⬢", (0.0, (3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0))),
    PolicyStyle("#44AA99", "*", "★", (0.0, (10.0, 2.0, 4.0, 2.0))),
    PolicyStyle("#AA4499", "d", "♦", (0.0, (2.0, 3.0))),
)


_OWN = {
    "lru": 0, "reuse_rate": 1, "default": 1, "hit_density": 2, "age_density": 3, "marconi": 4, "gdsf": 5,
    "lfu": 6, "marconi_tuned": 7, "clairvoyant": 8, "marconi_published": 9, "block_lru": 10,
    "state_lru": 11,
}  # fmt: skip
"""Places in _STYLES: a policy looks the same in every figure. The baseline ``default`` is `reuse_rate`."""


def policy_styles(policies: Sequence[str]) -> dict[str, PolicyStyle]:
    """A style for each policy, which may have its settings behind its name; they repeat after thirteen."""
    places: dict[str, int] = {}
    for policy in sorted(policies):
        own = _OWN.get(policy.partition(" ")[0])
        if own is not None and own not in places.values():
            places[policy] = own
    free = [place for place in range(len(_STYLES)) if place not in places.values()] or [*range(len(_STYLES))]
    others = [policy for policy in sorted(policies) if policy not in places]
    places |= {policy: free[i % len(free)] for i, policy in enumerate(others)}
    return {policy: _STYLES[place] for policy, place in places.items()}
