"""The checkpoints that a lease is going to take."""

from bisect import insort
from collections.abc import Sequence

from hybridcache.cached_tree import CachedTree
from hybridcache.lease import Lease
from hybridcache.policies.admission import AdmissionPolicy, PromptFacts
from hybridcache.policies.columns import BRANCH, INTERVAL


def make_plan(
    lease: Lease, prompt: PromptFacts, admission: AdmissionPolicy, store: CachedTree, first: bool
) -> None:
    """Fill ``lease.planned`` with the policy's positions beyond the hit, ascending, each once.

    ``first``: the policy has not been shown this prompt before, and learns from it.
    """
    positions = admission.candidates(prompt)
    if positions:
        prompt = prompt._replace(keys=_keys(lease, positions, store))
    if first:
        admission.learn(prompt)
    for position, kind in admission.plan(prompt):
        assert lease.hit < position <= lease.num_prompt, (lease, position)
        lease.kinds.setdefault(position, kind)
    lease.planned = sorted(lease.kinds)
    if not lease.planned:
        _plan_generated(lease, admission, prompt.block_size, lease.num_prompt)


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


def end_planned(lease: Lease, position: int, admission: AdmissionPolicy, block_size: int) -> None:
    """A planned position has been dealt with: nobody need wait for it any longer."""
    lease.planned.remove(position)
    del lease.kinds[position]
    lease.awaited.discard(position)
    if not lease.planned:
        _plan_generated(lease, admission, block_size, max(position, lease.num_prompt))


def _plan_generated(lease: Lease, admission: AdmissionPolicy, block_size: int, after: int) -> None:
    position = admission.next_generated(after, block_size)
    if position is not None:
        lease.kinds[position] = INTERVAL
        lease.planned.append(position)
