"""What one run found: the contents of summary.json."""

from collections.abc import Mapping
from typing import Any

from hybridcache.experiments.code_version import CodeVersion
from hybridcache.experiments.replay_settings import ReplaySettings
from hybridcache.experiments.replay_totals import ReplayTotals
from hybridcache.experiments.traces.request import Trace
from hybridcache.prefix_cache import PrefixCache

SCHEMA = "hybridcache-summary-1"

TIMING_KEYS = ("wall_seconds", "requests_per_second")
"""Keys that differ between two runs of the same code and configuration; all others are equal.

With mode=worker, where time is real, what depends on it differs too: summary.json lists those keys.
"""


def build_summary(
    *,
    settings: ReplaySettings,
    config: Mapping[str, Any],
    trace: Trace,
    cache: PrefixCache,
    totals: ReplayTotals,
    wall_seconds: float,
    version: CodeVersion,
    timing: Mapping[str, Any],
) -> dict[str, Any]:
    """A JSON-ready mapping; README.md explains every key. ``config`` is the resolved configuration,
    ``timing`` what a replay adds in which time passes.
    """
    stats = cache.stats
    assert (totals.requests, totals.requests_refused) == (stats.requests, stats.requests_refused)
    assert (totals.hit_tokens, totals.matched_tokens) == (stats.hit_tokens, stats.matched_tokens)
    assert cache.peak_bytes <= settings.budget_bytes, (cache.peak_bytes, settings.budget_bytes)
    assert totals.hit_tokens + sum(totals.lost_tokens.values()) == totals.input_tokens
    return {
        "schema": SCHEMA,
        "trace": trace.name,
        "outputs_in_trace": trace.has_outputs,
        "start_state": "empty",
        "requests": totals.requests,
        "requests_refused": totals.requests_refused,
        "input_tokens": totals.input_tokens,
        "output_tokens": totals.output_tokens,
        "hit_tokens": totals.hit_tokens,
        "token_hit_rate": totals.token_hit_rate,
        "matched_tokens": totals.matched_tokens,
        "request_hit_rate": totals.request_hit_rate,
        "lost_tokens": dict(totals.lost_tokens),
        "flops_total": totals.flops_total,
        "flops_saved": totals.flops_saved,
        "flops_saved_ratio": totals.flops_saved_ratio,
        "evictions": stats.evictions,
        "evicted_tokens": stats.evicted_tokens,
        "expirations": stats.expirations,
        "checkpoints_admitted": stats.checkpoints_admitted,
        "checkpoints_skipped": stats.checkpoints_skipped,
        "checkpoints_used": stats.checkpoints_used,
        "budget_bytes": settings.budget_bytes,
        "peak_bytes": cache.peak_bytes,
        **timing,
        "wall_seconds": wall_seconds,
        "requests_per_second": totals.requests / wall_seconds if wall_seconds > 0 else 0.0,
        "timing_keys": [*TIMING_KEYS, *(timing if settings.worker is not None else ())],
        "seed": settings.seed,
        "code_version": version._asdict(),
        "config": dict(config),
    }
