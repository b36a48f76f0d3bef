"""Why the tokens of a prompt were not hit."""

from collections.abc import Collection
from typing import NamedTuple

from hybridcache.cached_tree import CachedTree
from hybridcache.ghost import NOTHING, Gone, Remembered
from hybridcache.node import Match
from hybridcache.tokens import TOKEN_BYTES

LOSS_REASONS = (
    "last_token", "checkpoint_evicted", "expired", "no_checkpoint", "kv_evicted", "diverged", "new",
    "too_large",
)  # fmt: skip
"""
last_token: all else hit; the last token is always computed.
checkpoint_evicted: KV is there, a checkpoint deeper than the hit was evicted.
expired: a checkpoint or KV was there and its time ran out.
no_checkpoint: KV is there and no remembered checkpoint.
kv_evicted: the path was there and was evicted.
diverged: the prompt leaves a known path of a block or more inside a message.
new: never seen.
too_large: the request could never fit and was refused.
"""


class Lookup(NamedTuple):
    """A prompt and how far it was known; tokens."""

    num_prompt: int
    hit: int
    matched: int
    path_goes_on: bool
    """Whether a known path continues from ``matched`` with other tokens."""
    boundaries: Collection[int]
    """Ends of the prompt's messages, ascending; none known: the prompt is one message."""
    block_size: int


def lost_tokens(lookup: Lookup, ghost: Remembered) -> dict[str, int]:
    """Tokens by reason, none of them 0; with the hit they add up to the prompt.

    Each token has the first reason that applies (DESIGN section 2)::

        0 .. hit .. deepest remembered checkpoint .. matched .. deepest remembered path .. num_prompt
                checkpoint_evicted | expired    no_checkpoint    kv_evicted | expired    diverged | new
    """
    num_prompt, hit, matched = lookup.num_prompt, lookup.hit, lookup.matched
    if hit == num_prompt - 1:
        return {"last_token": 1}
    lost: dict[str, int] = {}
    at = hit
    if ghost.checkpoint is not None:
        lost["expired" if ghost.checkpoint.reason == Gone.EXPIRED else "checkpoint_evicted"] = (
            ghost.checkpoint.depth - at
        )
        at = ghost.checkpoint.depth
    if matched > at:
        lost["no_checkpoint"] = matched - at
        at = matched
    goes_on = lookup.path_goes_on
    if ghost.beyond is not None:
        reason = "expired" if ghost.beyond.reason == Gone.EXPIRED else "kv_evicted"
        lost[reason] = lost.get(reason, 0) + ghost.beyond.depth - at
        at = ghost.beyond.depth
        goes_on = False
    if at < num_prompt:
        inside = at >= lookup.block_size and at not in lookup.boundaries
        lost["diverged" if goes_on and inside else "new"] = num_prompt - at
    return lost


def losses(
    store: CachedTree, match: Match, prompt: bytes, boundaries: Collection[int]
) -> tuple[dict[str, int], Remembered]:
    """Tokens of ``prompt`` lost, by reason, and what is remembered of it. Modifies only nodes' hashes.

    ``prompt`` holds the token ids as native uint32; ``boundaries`` as in Lookup.
    """
    num_prompt, base, remembered = len(prompt) // TOKEN_BYTES, match.resume.stop, NOTHING
    if match.hit < num_prompt - 1 and (positions := store.ghost.may_know(prompt, base)):
        prefix = store.tree.prefix_hash(match.resume)
        remembered = store.ghost.look_up(positions, prefix, prompt, base, match.matched)
    block_size = store.blocks.block_size
    lookup = Lookup(num_prompt, match.hit, match.matched, match.path_goes_on, boundaries, block_size)
    return lost_tokens(lookup, remembered), remembered
