"""The checkpoints that a lease is going to take."""

import logging
from bisect import insort
from collections.abc import Sequence
from operator import index

from hybridcache.cached_tree import CachedTree
from hybridcache.lease import Lease
from hybridcache.policies.admission import AdmissionPolicy, Planned, PromptFacts
from hybridcache.policies.columns import BRANCH, INTERVAL, NUM_KINDS

log = logging.getLogger(__name__)


def make_plan(
    lease: Lease, prompt: PromptFacts, admission: AdmissionPolicy, store: CachedTree, first: bool
) -> None:
    """Fill ``lease.planned`` with the policy's positions beyond the hit, ascending, each once.

    ``first``: the policy has not been shown this prompt before, and learns from it. A policy that fails, or
    names a position that cannot be, costs its checkpoints and no request.
    """
    try:
        planned = _asked(lease, prompt, admission, store, first)
    except Exception:
        _failed(admission, store)
        planned = ()
    for position, kind in planned:
        lease.kinds.setdefault(position, kind)
    lease.planned = sorted(lease.kinds)
    if not lease.planned:
        _plan_generated(lease, admission, store, lease.num_prompt)


def _asked(
    lease: Lease, prompt: PromptFacts, admission: AdmissionPolicy, store: CachedTree, first: bool
) -> Sequence[Planned]:
    """The policy's plan. Raises ValueError when it cannot be, TypeError for what is no whole number."""
    positions = list(admission.candidates(prompt))
    if positions:
        prompt = prompt._replace(keys=_keys(lease, positions, store))
    if first:
        admission.learn(prompt)
    planned = [Planned(index(position), index(kind)) for position, kind in admission.plan(prompt)]
    for position, kind in planned:
        if not lease.hit < position <= lease.num_prompt or not 0 <= kind < NUM_KINDS:
            raise ValueError(
                f"it plans kind {kind} at {position}: positions lie in ({lease.hit}, {lease.num_prompt}], "
                f"kinds are 0 to {NUM_KINDS - 1}"
            )
    return planned


def _keys(lease: Lease, positions: Sequence[int], store: CachedTree) -> tuple[int, ...]:
    """The hashes of the prompt's prefixes up to ``positions``, from the hit on."""
    prefix = store.tree.prefix_hash(lease.root if lease.source is None else lease.source).copy()
    at, keys = lease.hit, []
    for position in positions:
        prefix.update(lease.edge(at, position))
        keys.append(prefix.intdigest())
        at = position
    return tuple(keys)


def add_awaited(lease: Lease, position: int, recurrent: bool) -> None:
    """Another request waits for ``position``: the state there has to be kept."""
    lease.awaited.add(position)
    if recurrent and position not in lease.kinds:
        lease.kinds[position] = BRANCH
        insort(lease.planned, position)


def end_planned(lease: Lease, position: int, admission: AdmissionPolicy, store: CachedTree) -> None:
    """A planned position has been dealt with: nobody need wait for it any longer."""
    lease.planned.remove(position)
    del lease.kinds[position]
    lease.awaited.discard(position)
    if not lease.planned:
        _plan_generated(lease, admission, store, max(position, lease.num_prompt))


def _plan_generated(lease: Lease, admission: AdmissionPolicy, store: CachedTree, after: int) -> None:
    try:
        position = admission.next_generated(after, store.blocks.block_size)
        if position is not None and index(position) <= after:
            raise ValueError(f"it names {position} as the next position beyond {after}")
    except Exception:
        _failed(admission, store)
        return
    if position is not None:
        lease.kinds[index(position)] = INTERVAL
        lease.planned.append(index(position))


def _failed(admission: AdmissionPolicy, store: CachedTree) -> None:
    store.stats.admission_errors += 1
    log.exception("admission policy %r failed; a request goes without its checkpoints", admission.name)
