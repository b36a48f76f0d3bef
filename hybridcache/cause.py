"""Why a prompt left the path of one that was sent before: rules on where they part and what follows."""

import re
from enum import StrEnum
from typing import NamedTuple

from hybridcache.copied import in_order
from hybridcache.divergence import Divergence
from hybridcache.json_order import are_tools, difference, json_values, names_differ
from hybridcache.rewritten_history import rewritten_history

LEAST_TOKENS = 24
"""Copied tokens beyond the divergence below which there is nothing to win."""
LEAST_SHARE = 0.1
"""The same, as a part of the prompt beyond the divergence."""
FIELD_TOKENS = 64
"""Longest field that changes by itself."""
RESYNC_TOKENS = 12
"""Copied tokens after which two prompts are taken to agree again."""
AGREEING_SHARE = 0.4
"""Text in common that shows two messages to be made alike, as a part of what is left of them."""
MOVED_SHARE = 0.12
"""Texts in another order, as a part of the message beyond the divergence."""
DOCUMENT_TOKENS = 24
"""Shortest text that is a document of its own."""
_LOOK_AHEAD = 2_000  # characters compared without their white space
_SAME_CHARACTERS = 40
_AROUND = 12  # tokens beside a field that may belong to the same date


class Kind(StrEnum):
    """What broke the prefix, and so what to do about it."""

    TIMESTAMP = "timestamp"
    RANDOM_ID = "random_id"
    COUNTER = "counter"
    USER_VARIABLE = "user_variable"
    WHITESPACE = "whitespace"
    RETOKENISED = "retokenised"
    REORDERED_KEYS = "reordered_keys"
    REORDERED_TOOLS = "reordered_tools"
    CHANGED_TOOLS = "changed_tools"
    SHUFFLED_DOCUMENTS = "shuffled_documents"
    TRUNCATED_HISTORY = "truncated_history"
    SUMMARISED_HISTORY = "summarised_history"
    EDITED_HISTORY = "edited_history"
    REMOVED_REASONING = "removed_reasoning"


REMEDIES = {
    Kind.TIMESTAMP: "move the date or time to the end of the prompt, or round it to the day",
    Kind.RANDOM_ID: "send the id beside the prompt (a header, metadata), or at its end",
    Kind.COUNTER: "move the changing number to the end of the prompt",
    Kind.USER_VARIABLE: "put what all users share first, and what is a user's own after it",
    Kind.WHITESPACE: "write white space the same way each time",
    Kind.RETOKENISED: "send back the tokens that were generated, or tokenize the whole text each time",
    Kind.REORDERED_KEYS: "serialise JSON with sorted keys",
    Kind.REORDERED_TOOLS: "list tools in a fixed order, for example by name",
    Kind.CHANGED_TOOLS: "keep the list of tools the same; put tools that come and go at its end",
    Kind.SHUFFLED_DOCUMENTS: "put documents in a stable order (by id), those that recur most first",
    Kind.TRUNCATED_HISTORY: "drop old messages rarely and many at a time, not at every turn",
    Kind.SUMMARISED_HISTORY: "summarise rarely, and keep the summary as it is until the next time",
    Kind.EDITED_HISTORY: "append instead of rewriting; collapse old results many at a time",
    Kind.REMOVED_REASONING: "send reasoning back as it was generated, or leave it out of what is cached",
}


class Cause(NamedTuple):
    """What was found."""

    kind: Kind
    before: str
    """Text (without a tokenizer: token ids) of the earlier prompt where the two part."""
    after: str
    """Text of this prompt there."""
    avoidable_tokens: int
    """Tokens of this prompt beyond the divergence that the earlier one holds too."""


_MONTHS = "january|february|march|april|may|june|july|august|september|october|november|december"
_TIME = re.compile(
    rf"\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}|\d{{1,2}}[./-]\d{{1,2}}[./-]\d{{2,4}}|\b\d{{1,2}}:\d{{2}}"
    rf"|\d(?:st|nd|rd|th)?\.? (?:of )?(?:{_MONTHS})\b|\b(?:{_MONTHS}),? \d"
    r"|\b(?:jan|feb|mar|apr|jun|jul|aug|sep|sept|oct|nov|dec)\b\.? \d"
    r"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b|\b(?:mon|tue|wed|thu|fri|sat|sun),? \d"
    r"|\b1[4-9]\d{8}(?:\d{3}|\d{6}|\.\d+)?\b",
    re.IGNORECASE,
)
_MONTH = re.compile(rf"\b(?:{_MONTHS})\b", re.IGNORECASE)
_ID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-|(?<![0-9A-Za-z])(?=[0-9A-Za-z]*\d)(?=[0-9A-Za-z]*[A-Za-z])[0-9A-Za-z]{10,}"
    r"|(?<![0-9A-Za-z])(?=[0-9A-Fa-f]*\d)(?=[0-9A-Fa-f]*[A-Fa-f])[0-9A-Fa-f]{8,}",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[^\w]*[\d.,:%#$€£+\-/ ]*\d[\d.,:%#$€£+\-/ ]*[^\w]*")


def find_cause(found: Divergence) -> Cause | None:
    """The cause, or None: the prompt goes on, asks something new, or has nothing to win. Changes nothing."""
    if found.continues:
        return None
    worth = found.num_copied >= max(LEAST_TOKENS, LEAST_SHARE * (len(found.tokens) - found.position))
    kind = (_spelling(found) if not found.in_last_message else None) or (_json(found) if worth else None)
    if kind is None and worth:
        kind = _moved(found)
        if kind is None and not found.in_last_message:
            kind = _history(found) or _field(found)
    if kind is None:
        return None
    before, after = _around(found)
    return Cause(kind, before, after, max(found.num_copied, 0))


def _spelling(found: Divergence) -> Kind | None:
    """The same characters, but for white space, under other tokens."""
    at = found.position
    mine, theirs = found.text(at, at + _LOOK_AHEAD), found.other_text(at, at + _LOOK_AHEAD)
    raw = _common(mine, theirs)
    if not (found.text(at, at + 1) and found.other_text(at, at + 1)):
        return None  # special tokens have no text
    if raw >= _SAME_CHARACTERS:
        return Kind.RETOKENISED
    if not (mine[raw : raw + 1].isspace() or theirs[raw : raw + 1].isspace()):
        return None
    same = _common("".join(mine.split()), "".join(theirs.split())) - len("".join(mine[:raw].split()))
    return Kind.WHITESPACE if same >= _SAME_CHARACTERS else None


def _json(found: Divergence) -> Kind | None:
    """Values of the message where they part that stand in another order."""
    index = found.message
    if index >= len(found.other_ends):
        return None
    mine = json_values(_message_text(found, index))
    theirs = json_values(_message_text(found, index, other=True))
    how = difference(mine, theirs)
    if how == "keys":
        return Kind.REORDERED_KEYS
    if how == "order":
        return Kind.REORDERED_TOOLS if are_tools(mine) else Kind.SHUFFLED_DOCUMENTS
    changed = how == "members" or (how is None and names_differ(mine, theirs))
    return Kind.CHANGED_TOOLS if changed and are_tools(mine) else None


def _moved(found: Divergence) -> Kind | None:
    """Long texts of one message in another order."""
    stop, other_stop = _message_stops(found)
    inside = [part for part in found.parts if part.start < stop and part.source < other_stop]
    kept = set(in_order(inside))
    moved = sum(part.length for part in inside if part not in kept and part.length >= DOCUMENT_TOKENS)
    rest = max(stop, other_stop) - found.position
    # Prompts that do not begin alike must hold nearly the same texts.
    alike = AGREEING_SHARE if found.position >= LEAST_TOKENS else 2 * AGREEING_SHARE
    if moved < MOVED_SHARE * rest or sum(part.length for part in inside) < alike * rest:
        return None
    return Kind.SHUFFLED_DOCUMENTS


def _history(found: Divergence) -> Kind | None:
    kind = rewritten_history(found)
    return Kind(kind) if kind else None


def _field(found: Divergence) -> Kind | None:
    """A few tokens that differ, after which both go on alike."""
    resync = next((part for part in found.chain if part.length >= RESYNC_TOKENS), None)
    if resync is None:
        return None
    mine, theirs = resync.start - found.position, resync.source - found.position
    if max(mine, theirs) > FIELD_TOKENS:
        return None
    if len(found.ends) > 1 and resync.start >= found.ends[-2]:
        return None  # agreement begins only in the last message
    stop, other_stop = (
        found.ends[found.message],
        found.other_ends[min(found.message, len(found.other_ends) - 1)],
    )
    rest = min(stop - resync.start, other_stop - resync.source)
    longest = max((part.length for part in found.chain if part.start < stop), default=0)
    if longest < max(LEAST_TOKENS, AGREEING_SHARE * rest):
        return None  # other instructions, that have sentences in common
    if found.message and not found.next_message_is_equal:
        return None  # another question
    if len(found.ends) == 1 and longest < AGREEING_SHARE * (len(found.tokens) - found.position):
        return None  # another question between a head and an end that are always there
    fields = _fields(found, resync.start, resync.source)
    # A month's name alone may be another word (may, march), unless both texts have one.
    dated = _in_time(found, resync.start) or _in_time(found, resync.source, other=True)
    if dated or any(_TIME.search(text) for text in fields) or all(_MONTH.search(text) for text in fields):
        return Kind.TIMESTAMP
    if any(_ID.search(text) for text in fields):
        return Kind.RANDOM_ID
    if all(_NUMBER.fullmatch(text) for text in fields):
        return Kind.COUNTER
    # Nothing tells such a field from other instructions but how much is alike.
    return Kind.USER_VARIABLE if longest >= 1.5 * AGREEING_SHARE * rest else None


def _fields(found: Divergence, stop: int, other_stop: int) -> tuple[str, str]:
    """The differing texts, widened to whole words."""
    at = found.position
    mine, theirs = found.text(at, stop), found.other_text(at, other_stop)
    head = "" if mine[:1].isspace() or theirs[:1].isspace() else found.text(max(at - 32, 0), at)
    before = head[max((i + 1 for i, character in enumerate(head) if character.isspace()), default=0) :]
    after = re.match(r"\S*", found.text(stop, stop + 16))
    rest = after.group() if after else ""
    return f"{before}{mine}{rest}".strip(), f"{before}{theirs}{rest}".strip()


def _in_time(found: Divergence, stop: int, *, other: bool = False) -> bool:
    """Whether what differs, up to ``stop``, is part of a date or time with what stands around it."""
    text = found.other_text if other else found.text
    at = found.position
    head, middle = text(max(at - _AROUND, 0), at), text(at, stop)
    start, end = len(head), len(head) + len(middle.rstrip())
    times = _TIME.finditer(head + middle + text(stop, stop + _AROUND))
    return any(match.start() < end and match.end() > start for match in times)


def _around(found: Divergence) -> tuple[str, str]:
    """Text at the divergence, of the earlier prompt and of this one."""
    start, stop = max(found.position - 12, 0), found.position + 24
    return found.shown(start, stop, other=True), found.shown(start, stop)


def _message_stops(found: Divergence) -> tuple[int, int]:
    """Ends of the message in which they part, of this prompt and of the other."""
    index = found.message
    return found.ends[index], found.other_ends[min(index, len(found.other_ends) - 1)]


def _message_text(found: Divergence, index: int, *, other: bool = False) -> str:
    ends = found.other_ends if other else found.ends
    start = ends[index - 1] if index else 0
    return (found.other_text if other else found.text)(start, ends[index])


def _common(a: str, b: str) -> int:
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)
