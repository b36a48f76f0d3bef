"""Whether a conversation goes on with another past: dropped, summarised or edited messages."""

from hybridcache.copied import Copied
from hybridcache.divergence import Divergence
from hybridcache.prompt_log import OPENING_TOKENS

LEAST_KEPT = 24
"""Tokens of later messages that must have stayed."""
LEAST_DROPPED = 64
"""Tokens that went, where messages are not known."""
LEAST_SUMMARY = 8
"""Tokens of a replacement that is more than a separator."""


def rewritten_history(found: Divergence) -> str | None:
    """The name of the kind, or None. By messages where they are known, else by tokens."""
    if max(len(found.ends), len(found.other_ends)) > 1:
        return _by_messages(found)
    return _by_tokens(found)


def _by_messages(found: Divergence) -> str | None:
    """
    ::

        earlier   common | removed ......... | kept to its end
        this      common | added (0 or more) | kept ... | new

    Another run of the same task shares messages too, but not all of them up to the end.
    """
    mine = [tuple(found.message_tokens(i)) for i in range(len(found.ends))]
    theirs = [tuple(found.other_message_tokens(i)) for i in range(len(found.other_ends))]
    common = 0
    while common < min(len(mine), len(theirs)) and mine[common] == theirs[common]:
        common += 1
    if _edited_in_place(mine, theirs, common):
        return (
            "removed_reasoning" if _lost_its_head(found, mine[common], theirs[common]) else "edited_history"
        )
    if _shuffled(mine[common:], theirs[common:]):
        return "shuffled_documents"
    places = {message: i for i, message in reversed(list(enumerate(theirs))) if i >= common}
    resumed = next((i for i in range(common, len(mine)) if mine[i] in places), None)
    if resumed is None:
        return None
    source = places[mine[resumed]]
    kept = list(zip(mine[resumed:], theirs[source:], strict=False))
    if len(kept) < len(theirs) - source or not all(_same(*pair) for pair in kept):
        return None
    removed, added = source - common, resumed - common
    if removed <= added or sum(len(message) for message, _ in kept) < LEAST_KEPT:
        return None
    return "summarised_history" if added else "truncated_history"


def _shuffled(mine: list[tuple[int, ...]], theirs: list[tuple[int, ...]]) -> bool:
    """Whether long messages that make up much of the others stand in another order."""
    places = {message: i for i, message in enumerate(theirs) if len(message) >= LEAST_KEPT}
    found = [places[message] for message in mine if message in places]
    tokens = sum(len(theirs[i]) for i in set(found))
    return found != sorted(found) and 4 * tokens >= sum(map(len, theirs))


def _same(message: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Equal, but for what may open the answer behind the other."""
    return message == other[: len(message)] and len(other) - len(message) <= OPENING_TOKENS


def _edited_in_place(mine: list[tuple[int, ...]], theirs: list[tuple[int, ...]], index: int) -> bool:
    """Message ``index`` differs; most of those that follow, and the last, stand where they stood."""
    if not 0 < index < len(theirs) - 1 or len(mine) < len(theirs):
        return False
    equal = [_same(*pair) for pair in zip(mine[index:], theirs[index:], strict=False)]
    tokens = sum(len(message) for message, same in zip(theirs[index:], equal, strict=True) if same)
    return equal[-1] and 2 * sum(equal) >= len(equal) and tokens >= LEAST_KEPT


def _lost_its_head(found: Divergence, after: tuple[int, ...], before: tuple[int, ...]) -> bool:
    """Whether ``after`` ends as ``before`` does, which began with something in tags."""
    tail = 0
    while tail < min(len(after), len(before)) and after[-1 - tail] == before[-1 - tail]:
        tail += 1
    long_enough = 2 * tail >= len(after) and len(before) > len(after) + LEAST_SUMMARY
    return long_enough and found.other_text(found.position, found.position + 8).lstrip().startswith("<")


def _by_tokens(found: Divergence) -> str | None:
    part: Copied | None = next((part for part in found.chain if part.length >= LEAST_KEPT), None)
    if part is None:
        return None
    removed, added = part.source - found.position, part.start - found.position
    alike = found.position >= LEAST_KEPT and 4 * part.length >= len(found.tokens) - found.position
    if not alike or removed < LEAST_DROPPED or removed < 2 * added:
        return None
    return "summarised_history" if added >= LEAST_SUMMARY else "truncated_history"
