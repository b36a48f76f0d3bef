"""Prompts that are being computed: siblings wait for a common prefix instead of computing it twice."""

from collections.abc import Collection, Iterable

from hybridcache.cached_tree import CachedTree
from hybridcache.checkpoint_plan import add_awaited
from hybridcache.lease import Lease, Wait
from hybridcache.node import Root
from hybridcache.tokens import TOKEN_BYTES
from hybridcache.tree import common_prefix


def longest_pending(
    leases: Iterable[Lease], root: Root, prompt: bytes, hit: int, least_gain: int, waited: Collection[int]
) -> Wait | None:
    """The lease of the same namespace that has yet to compute the longest prefix of ``prompt``.

    A prefix counts when it reaches at least ``least_gain`` tokens beyond ``hit``, when the lease has
    not passed its end, and when the request has not waited for that position before. Modifies nothing.
    """
    best: Wait | None = None
    last = len(prompt) // TOKEN_BYTES - 1
    for lease in leases:
        if lease.root is not root or lease.num_computed >= lease.num_prompt:
            continue
        if lease.prompt[:TOKEN_BYTES] != prompt[:TOKEN_BYTES]:
            continue
        shared = min(common_prefix(lease.prompt, prompt, 0), last)
        if shared <= lease.num_computed or shared - hit < least_gain or shared in waited:
            continue
        if best is None or shared > best.position:
            best = Wait(lease, shared)
    return best


def ask_to_wait(
    store: CachedTree, leases: Iterable[Lease], root: Root, prompt: bytes, hit: int, waited: Collection[int]
) -> Wait | None:
    """What `longest_pending` finds; the lease to wait for plans a checkpoint there, and the wait counts."""
    wait = longest_pending(leases, root, prompt, hit, store.blocks.block_size, waited)
    if wait is not None:
        add_awaited(wait.lease, wait.position, store.recurrent)
        store.stats.waits += 1
    return wait
