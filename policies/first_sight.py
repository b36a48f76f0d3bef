"""Checkpoints where prompts to come are expected to leave a path, taken when it is first seen."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from hybridcache.policies.admission import AdmissionPolicy, Planned, PromptFacts, branch_point
from hybridcache.policies.columns import BRANCH, INTERVAL, MESSAGE_END, PROMPT_END
from hybridcache.policies.placement import least_recompute
from hybridcache.policies.share_table import ShareTable

FROM_START, FROM_END = 8, 32
"""Ends of messages are told apart by their number from the prompt's start and from its end, up to these."""
SIZES, PLACES = 4, 16
"""Positions inside a message, by the size of the new part of the prompt (in powers of 2), and place in it."""
MARGIN = 2.0
"""So many times its price a checkpoint has to save, since shares and prices are estimates."""
MOST_REMEMBERED = 1 << 15
KEEP = 1.0 - 1.0 / 500
"""Of all counts, from one prompt to the next."""


class Sight(NamedTuple):
    """A position that is seen for the first time."""

    position: int
    ahead: int
    """Tokens from the checkpoint that a request would resume at without one here."""
    kind: int
    """MESSAGE_END, PROMPT_END or INTERVAL."""
    cell: tuple[int, int]
    """In the table of the kind."""
    key: int


class FirstSight(AdmissionPolicy):
    """As ``branch_and_final``, and new positions that are expected to pay before they are seen again.

    Each new end of a message is remembered with what is known of it: its number from the start and
    from the end. When a later prompt follows the path to there and leaves it, a checkpoint would have been
    resumed at, whether one was taken or not: so shares are learnt without trying, and each position counts
    once. ``least_recompute`` then chooses up to ``most`` of a prompt's new positions. Each has to save a
    block, and more tokens than its bytes cost elsewhere (``PromptFacts.price``, times ``MARGIN``).

    ``inside_tokens``: multiples of so many tokens are candidates, too, for prompts that are left within a
    message, or whose messages are not known; None: ends of messages alone. What the client hints at is kept.
    """

    name = "first_sight"

    def __init__(self, most: int = 4, inside_tokens: int | None = None) -> None:
        if not isinstance(most, int) or most < 1:
            raise ValueError(f"admission.most={most!r}: give the checkpoints of a prompt, at least 1")
        if inside_tokens is not None and (not isinstance(inside_tokens, int) or inside_tokens < 1):
            raise ValueError(
                f"admission.inside_tokens={inside_tokens!r}: give tokens, at least 1, or null for none"
            )
        self.most = most
        self.inside_tokens = inside_tokens
        self.ends, self.inside = ShareTable(FROM_START, FROM_END), ShareTable(SIZES, PLACES)
        self._sights: dict[int, Sight] = {}
        """Positions that were seen once, by key; the first is the oldest."""

    def candidates(self, prompt: PromptFacts) -> Sequence[int]:
        """The hit, the ends of messages beyond it, and the multiples of ``inside_tokens``."""
        hit, last = prompt.hit, prompt.num_prompt - 1
        inside = self.inside_tokens
        multiples = () if inside is None else range(hit // inside * inside + inside, last, inside)
        beyond = (end for end in self._message_ends(prompt) if end > hit)
        return sorted({hit, *beyond, *multiples})

    def learn(self, prompt: PromptFacts) -> None:
        for table in (self.ends, self.inside):
            table.fade(KEEP)
        positions = self.candidates(prompt)
        at = bisect_right(positions, prompt.matched) - 1
        # What was evicted beyond would have been resumed at instead: no fault of the admission.
        if positions[at] >= prompt.gone:
            sight = self._sights.pop(prompt.keys[at], None)
            if sight is not None:
                saved = (positions[at] - prompt.hit) / sight.ahead
                table = self.inside if sight.kind == INTERVAL else self.ends
                table.used[sight.cell] += 1.0 if positions[at] == prompt.hit else min(saved, 1.0)
        for sight in self._first_sights(prompt):
            (self.inside if sight.kind == INTERVAL else self.ends).seen[sight.cell] += 1.0
            self._sights.pop(sight.key, None)
            self._sights[sight.key] = sight
        while len(self._sights) > MOST_REMEMBERED:
            del self._sights[next(iter(self._sights))]

    def plan(self, prompt: PromptFacts) -> Sequence[Planned]:
        planned = list(branch_point(prompt))
        planned += [Planned(hint, BRANCH) for hint in prompt.hints if prompt.hit < hint < prompt.num_prompt]
        new = self._first_sights(prompt)
        if not new:
            return planned
        ends, inside = self.ends.shares(), self.inside.shares()
        shares = [float((inside if sight.kind == INTERVAL else ends)[sight.cell]) for sight in new]
        positions = [sight.position for sight in new]
        anchor = positions[0] - new[0].ahead
        price = max(MARGIN * prompt.price, prompt.block_size)
        chosen = least_recompute(positions, shares, anchor, self.most, price)
        return planned + [Planned(at, new[bisect_left(positions, at)].kind) for at in chosen]

    def _message_ends(self, prompt: PromptFacts) -> list[int]:
        """Ends of all messages of the prompt, ascending; the last token is computed whatever is known."""
        last = prompt.num_prompt - 1
        turn_end = last if prompt.turn_end is None else prompt.turn_end
        return sorted({min(end, last) for end in (*prompt.boundaries, turn_end)})

    def _first_sights(self, prompt: PromptFacts) -> list[Sight]:
        """The candidates beyond the known path that save a block or more, ascending."""
        anchor = max([prompt.hit, *(planned.position for planned in branch_point(prompt))])
        ends = self._message_ends(prompt)
        size = prompt.num_prompt - anchor
        found = []
        for position, key in zip(self.candidates(prompt), prompt.keys, strict=True):
            ahead = position - anchor
            if position <= prompt.matched or ahead < prompt.block_size:
                continue
            number = bisect_left(ends, position)
            if number < len(ends) and ends[number] == position:
                from_end = len(ends) - 1 - number
                kind = MESSAGE_END if from_end else PROMPT_END
                cell = min(number, FROM_START - 1), min(from_end, FROM_END - 1)
            else:
                kind = INTERVAL
                parts = size // (self.inside_tokens or size)
                cell = min(max(parts, 1).bit_length(), SIZES) - 1, ahead * PLACES // size
            found.append(Sight(position, ahead, kind, cell, key))
        return found
