"""Policies by name."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from hybridcache.policies.admission import AdmissionPolicy
from hybridcache.policies.age_density import AgeDensity
from hybridcache.policies.all_blocks import AllBlocks
from hybridcache.policies.block_ends import BlockEnds
from hybridcache.policies.block_lru import BlockLru
from hybridcache.policies.branch_and_final import BranchAndFinal
from hybridcache.policies.branch_final_prompt import BranchFinalPrompt
from hybridcache.policies.clairvoyant import Clairvoyant
from hybridcache.policies.every_n import EveryN
from hybridcache.policies.eviction import EvictionPolicy
from hybridcache.policies.final_only import FinalOnly
from hybridcache.policies.first_sight import FirstSight
from hybridcache.policies.gdsf import Gdsf
from hybridcache.policies.grid import Grid
from hybridcache.policies.hit_density import HitDensity
from hybridcache.policies.lfu import Lfu
from hybridcache.policies.lru import Lru
from hybridcache.policies.marconi import Marconi
from hybridcache.policies.marconi_published import MarconiPublished
from hybridcache.policies.marconi_tuned import MarconiTuned
from hybridcache.policies.reuse_rate import ReuseRate
from hybridcache.policies.state_lru import StateLru

T = TypeVar("T")

EVICTION: dict[str, Callable[..., EvictionPolicy]] = {
    policy.name: policy
    for policy in (
        Lru, BlockLru, StateLru, Lfu, Gdsf, Marconi, MarconiPublished, AgeDensity, HitDensity, ReuseRate,
    )
}  # fmt: skip
ASSISTED: dict[str, Callable[..., EvictionPolicy]] = {
    policy.name: policy for policy in (MarconiTuned, Clairvoyant)
}
"""Policies that score nothing without the help of a replay (experiments/assisted_cache.py)."""
ADMISSION: dict[str, Callable[..., AdmissionPolicy]] = {
    policy.name: policy
    for policy in (
        AllBlocks, BlockEnds, EveryN, Grid, FinalOnly, BranchAndFinal, BranchFinalPrompt, FirstSight,
    )
}  # fmt: skip


def build_eviction(name: str, **settings: Any) -> EvictionPolicy:
    """A new eviction policy, by its name here or, for a class of one's own, as ``package.module:Class``.

    Raises ValueError for an unknown name, a class that cannot be imported or is no such policy, an unknown
    setting or a bad value.
    """
    return _build("eviction", {**EVICTION, **ASSISTED}, EvictionPolicy, name, settings)


def build_admission(name: str, **settings: Any) -> AdmissionPolicy:
    """A new admission policy; names and errors as for ``build_eviction``."""
    return _build("admission", ADMISSION, AdmissionPolicy, name, settings)


def _build(
    group: str, table: dict[str, Callable[..., T]], base: type[T], name: str, settings: dict[str, Any]
) -> T:
    if not isinstance(name, str):
        raise ValueError(f"{group}={name!r}: give the name of a policy")
    if ":" in name:
        make: Callable[..., T] = _imported(group, base, name)
    elif name in table:
        make = table[name]
    else:
        known = ", ".join(sorted(table))
        raise ValueError(f"{group}={name!r} is unknown; choose one of {known}, or a class, module:Class")
    try:
        return make(**settings)
    except TypeError as error:
        raise ValueError(f"{group}={name} does not take these settings: {settings} ({error})") from error


def _imported(group: str, base: type[T], name: str) -> type[T]:
    """The class ``module:Class``, a ``base`` with a name of its own."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except Exception as error:  # whatever a module does when it is imported
        why = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{group}={name!r} cannot be imported ({why}): its module must be installed or on PYTHONPATH "
            "(after python -m: or in the folder you are in)"
        ) from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ValueError(f"{group}={name!r} is no subclass of {base.__module__}.{base.__name__}")
    if "name" not in vars(found):
        raise ValueError(f'{group}={name!r} has no name of its own; give the class one: name = "..."')
    return found
