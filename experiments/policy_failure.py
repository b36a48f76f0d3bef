"""Ends a replay whose policy has failed."""

from hybridcache.prefix_cache import PrefixCache


def check_policies(cache: PrefixCache) -> None:
    """Modifies nothing. A cache that serves goes on without a policy that fails (`hybridcache/evictor.py`,
    `hybridcache/checkpoint_plan.py`); a replay would measure another policy in its name.

    Raises:
        ValueError: a policy of ``cache`` has raised, or gave what cannot be; the log has the traceback.
    """
    evictor = cache.store.evictor
    if evictor.num_policy_errors:
        failed = f"eviction policy {evictor.policy.name!r}"
    elif cache.stats.admission_errors:
        failed = f"admission policy {cache.admission.name!r}"
    else:
        return
    raise ValueError(f"{failed} failed (traceback above): the rest would be measured without it; mend it")
