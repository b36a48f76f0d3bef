"""Remembered positions that a prompt passes: policies learn from them, and shared ones come back."""

from bisect import bisect_left, insort

from hybridcache.cached_tree import CachedTree
from hybridcache.ghost import Passed
from hybridcache.lease import Lease
from hybridcache.policies.columns import BRANCH, MESSAGE_END, REQUEST_ENDS, Facts


def revive(
    lease: Lease, passed: tuple[Passed, ...], store: CachedTree, now: float, price: float, first: bool
) -> None:
    """Tell the policy of the positions that ``lease`` passes, and plan the checkpoints of shared ones again.

    Without ``first`` it only plans: the policy has been told of this request before.
    ``passed`` are remembered positions beyond the hit, ascending. The request would have resumed at the
    deepest, had it been kept; and at each other one that was a path's end, had only that one been kept.
    ``price`` (tokens) is what a checkpoint's bytes cost elsewhere: one whose loss costs the next prompt fewer
    tokens stays away, as it would not pay even if it were used at once.
    A request that passes another one's end last follows it up, as one that resumes there does.
    Modifies the lease's plan and the facts that are remembered.
    """
    for position, digest in passed:
        row = store.ghost.row(digest)
        if row is None:
            # Forgotten as room was made for the request itself.
            continue
        facts = store.ghost.gone.facts(row)
        hits = facts.hits
        if position == passed[-1].position and facts.kind in REQUEST_ENDS:
            lease.follows_up = True
        if first and (position == passed[-1].position or not facts.children):
            store.evictor.returned(facts, now)
            store.ghost.gone.returned(row, now)
            hits += 1
        if not store.recurrent or not store.evictor.policy.revives or not _was_shared(facts):
            continue
        if position in lease.kinds:
            lease.revived[position] = hits
        elif position - _checkpoint_before(lease, position) >= price:
            lease.revived[position] = hits
            lease.kinds[position] = BRANCH if facts.kind in REQUEST_ENDS else facts.kind
            insort(lease.planned, position)


def _checkpoint_before(lease: Lease, position: int) -> int:
    """Where a prompt resumes that would resume at ``position``, were there a checkpoint; tokens."""
    before = bisect_left(lease.planned, position)
    return lease.planned[before - 1] if before else lease.hit


def _was_shared(facts: Facts) -> bool:
    """Whether more than one request resumed there, counting the one that made it a branch point.

    A request's end that was resumed at once is what a session leaves behind with each turn; and the end of a
    message has a checkpoint before it is one.
    """
    return facts.hits > 1 or (facts.hits == 1 and facts.kind not in (*REQUEST_ENDS, MESSAGE_END))
