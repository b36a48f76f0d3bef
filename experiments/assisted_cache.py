"""A cache for a replay, with what its eviction policy needs besides columns."""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from hybridcache.experiments.foresight import Foresight
from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.experiments.tuned_cache import TunedCache
from hybridcache.policies.admission import AdmissionPolicy
from hybridcache.policies.clairvoyant import Clairvoyant
from hybridcache.policies.eviction import EvictionPolicy
from hybridcache.policies.marconi_tuned import MarconiTuned
from hybridcache.prefix_cache import PrefixCache
from hybridcache.spec import ModelSpec


def assisted_cache(
    spec: ModelSpec,
    trace: Iterable[TraceRequest],
    *,
    eviction: EvictionPolicy,
    admission: AdmissionPolicy,
    block_size: int = 16,
    mode: str = "cache",
    **settings: Any,
) -> PrefixCache:
    """An empty cache to replay ``trace`` through in ``mode``; ``settings`` as of PrefixCache.

    `marconi_tuned` gets a cache that tunes it; `clairvoyant` is shown the trace, which is read once.
    Raises ValueError for `clairvoyant` in another mode than ``cache``: requests that run together resume
    in another order than the trace's.
    """
    settings = {"admission": admission, "block_size": block_size, **settings}
    if isinstance(eviction, MarconiTuned):
        return TunedCache(spec, eviction=eviction, **settings)
    if not isinstance(eviction, Clairvoyant):
        return PrefixCache(spec, eviction=eviction, **settings)
    if mode != "cache":
        raise ValueError(f"eviction=clairvoyant reads the trace ahead: it needs mode=cache, not mode={mode}")
    # The pass ahead must not teach the admission that the replay goes by: it would know the trace, too.
    foresight = Foresight(trace, spec, deepcopy(admission), block_size)
    eviction.due = foresight.due
    foresight.cache = PrefixCache(spec, eviction=eviction, **settings)
    return foresight.cache
