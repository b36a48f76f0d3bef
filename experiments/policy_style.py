"""How policies look in figures: told apart by marker and line style, not by colour alone."""

from typing import NamedTuple


class PolicyStyle(NamedTuple):
    """Colour, marker, the marker as a character for labels, and line style.

    The first seven colours are Okabe and Ito's palette, the other three are muted ones.
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
)


def policy_styles(policies: list[str]) -> dict[str, PolicyStyle]:
    """A style for each policy name; they repeat after ten."""
    return {policy: _STYLES[i % len(_STYLES)] for i, policy in enumerate(sorted(policies))}
