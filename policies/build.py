"""Policies by name."""

from collections.abc import Callable
from typing import Any, TypeVar

from hybridcache.policies.admission import AdmissionPolicy
from hybridcache.policies.age_density import AgeDensity
from hybridcache.policies.all_blocks import AllBlocks
from hybridcache.policies.block_lru import BlockLru
from hybridcache.policies.branch_and_final import BranchAndFinal
from hybridcache.policies.branch_final_prompt import BranchFinalPrompt
from hybridcache.policies.every_n import EveryN
from hybridcache.policies.eviction import EvictionPolicy
from hybridcache.policies.final_only import FinalOnly
from hybridcache.policies.gdsf import Gdsf
from hybridcache.policies.hit_density import HitDensity
from hybridcache.policies.lfu import Lfu
from hybridcache.policies.lru import Lru
from hybridcache.policies.marconi import Marconi
from hybridcache.policies.reuse_rate import ReuseRate

T = TypeVar("T")

EVICTION: dict[str, Callable[..., EvictionPolicy]] = {
    policy.name: policy for policy in (Lru, BlockLru, Lfu, Gdsf, Marconi, AgeDensity, HitDensity, ReuseRate)
}
ADMISSION: dict[str, Callable[..., AdmissionPolicy]] = {
    policy.name: policy for policy in (AllBlocks, EveryN, FinalOnly, BranchAndFinal, BranchFinalPrompt)
}


def build_eviction(name: str, **settings: Any) -> EvictionPolicy:
    """A new eviction policy. Raises ValueError for an unknown name, an unknown setting or a bad value."""
    return _build("eviction", EVICTION, name, settings)


def build_admission(name: str, **settings: Any) -> AdmissionPolicy:
    """A new admission policy. Raises ValueError for an unknown name, an unknown setting or a bad value."""
    return _build("admission", ADMISSION, name, settings)


def _build(group: str, table: dict[str, Callable[..., T]], name: str, settings: dict[str, Any]) -> T:
    if name not in table:
        raise ValueError(f"{group}={name!r} is unknown; choose one of {', '.join(sorted(table))}")
    try:
        return table[name](**settings)
    except TypeError as error:
        raise ValueError(f"{group}={name} does not take these settings: {settings} ({error})") from error
