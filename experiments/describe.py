"""What a trace is like: requests, sessions, lengths, what repeats, how soon, and the memory that takes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hybridcache.experiments.replay_settings import UNBOUNDED_BYTES
from hybridcache.experiments.traces.request import Trace
from hybridcache.experiments.working_set import WorkingSet
from hybridcache.lease import Lease
from hybridcache.namespace import Namespace
from hybridcache.policies.admission import AdmissionPolicy
from hybridcache.policies.lru import Lru
from hybridcache.prefix_cache import PrefixCache
from hybridcache.spec import ModelSpec
from hybridcache.tokens import TokenIds
from hybridcache.tree import subtree

PERCENTILES = (50, 90, 99)


def describe(
    trace: Trace, spec: ModelSpec, admission: AdmissionPolicy, block_size: int = 16
) -> dict[str, Any]:
    """One pass through a cache that never evicts; a JSON-ready mapping whose keys name their units."""
    cache = PrefixCache(
        spec, budget_bytes=UNBOUNDED_BYTES, eviction=Lru(), admission=admission, block_size=block_size
    )
    namespace, store = Namespace(spec.fingerprint), cache.store
    working_set = WorkingSet(spec, block_size)
    arrivals, sessions, inputs, outputs, messages, waits = [], [], [], [], [], []
    hit = matched = 0
    flops = flops_hit = flops_matched = 0.0
    for now, session, _, tokens, num_prompt, boundaries in trace:
        prompt = tokens[:num_prompt].tobytes()
        kept = max(len(tokens) - 1, num_prompt)  # the last token is never fed to the model
        resume = store.tree.match(store.tree.root(namespace), prompt, now).resume
        since = float(store.table.accessed[resume.row]) if resume.row >= 0 else None
        num_output = len(tokens) - num_prompt
        lease = cache.acquire(tokens[:num_prompt], namespace, now, max_tokens=max(num_output, 1))
        assert isinstance(lease, Lease), "there is always room"
        usable = min(lease.matched, num_prompt - 1)
        hit, matched = hit + lease.hit, matched + usable
        flops += spec.prefix_flops(num_prompt)
        flops_hit += spec.prefix_flops(lease.hit)
        flops_matched += spec.prefix_flops(usable)
        working_set.add(tokens[:kept].tobytes(), lease.hit, now, since)
        if since is not None:
            waits.append(now - since)
        _serve(cache, lease, tokens, kept, now)
        arrivals.append(now)
        sessions.append(session)
        inputs.append(num_prompt)
        outputs.append(num_output)
        messages.append(len(boundaries))
    cache.check()
    total = sum(inputs)
    seconds = arrivals[-1] - arrivals[0]
    _, turns = np.unique(sessions, return_counts=True)
    branch_points = sum(
        len(node.children) > 1 for root in store.tree.roots.values() for node in subtree(root) if node.parent
    )
    live = working_set.total()
    return {
        "trace": trace.name,
        "outputs_in_trace": trace.has_outputs,
        "model": spec.name,
        "requests": len(inputs),
        "sessions": len(turns),
        "seconds": seconds,
        "requests_per_second": len(inputs) / seconds if seconds else 0.0,
        "requests_per_session": _spread(turns),
        "messages_per_input": _spread(messages),
        "input_tokens": _spread(inputs) | {"sum": total},
        "output_tokens": _spread(outputs) | {"sum": sum(outputs)},
        "bounds": {
            "token_hit_rate_hybrid": hit / total,
            "token_hit_rate_kv": matched / total,
            "flops_saved_ratio_hybrid": flops_hit / flops,
            "flops_saved_ratio_kv": flops_matched / flops,
        },
        "branch_points": branch_points,
        "reuse_seconds": _spread(waits),
        "working_set_gb": {name: value / 1e9 for name, value in live._asdict().items()},
        "everything_gb": cache.peak_bytes / 1e9,
    }


def _serve(cache: PrefixCache, lease: Lease, tokens: TokenIds, end: int, now: float) -> None:
    """Compute what was not hit, and the answer but for its last token, as one step a checkpoint."""
    while lease.num_computed < end:
        start = lease.num_computed
        stop = min([end, *lease.planned[:1]])
        fits = cache.reserve(lease, stop - start, now)
        assert fits, "there is always room"
        emits = cache.emits(lease, stop, now) if lease.planned else ()
        cache.restored(lease)
        cache.computed(lease, tokens[start:stop], now)
        if emits:
            cache.checkpointed(lease, now)
    cache.finish(lease, end, now)


def _spread(values: Iterable[float]) -> dict[str, float]:
    """Mean, percentiles and the largest; all 0 for none."""
    array = np.asarray(list(values) or [0.0], np.float64)
    found = np.percentile(array, PERCENTILES).tolist()
    named = {f"p{p}": value for p, value in zip(PERCENTILES, found, strict=True)}
    return {"mean": float(array.mean()), **named, "max": float(array.max())}


def _plain(number: float) -> str:
    """Four digits or all before the point, never an exponent."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"


def as_text(found: Mapping[str, Any]) -> str:
    """The same for a terminal."""
    rows: list[Sequence[str]] = [
        ("requests", f"{found['requests']:,} in {found['sessions']:,} sessions, {found['seconds']:,.0f} s"),
        ("arrivals", f"{found['requests_per_second']:.3g} a second"),
    ]
    for key, name in (
        ("requests_per_session", "requests a session"),
        ("messages_per_input", "messages an input"),
        ("input_tokens", "input tokens"),
        ("output_tokens", "output tokens"),
        ("reuse_seconds", "seconds until reuse"),
    ):
        spread = found[key]
        if key == "reuse_seconds" and not found["bounds"]["token_hit_rate_hybrid"]:
            rows.append((name, "nothing is used again"))
            continue
        mean, median, p90, p99, most = (_plain(spread[key]) for key in ("mean", "p50", "p90", "p99", "max"))
        rows.append((name, f"mean {mean}, median {median}, 90% {p90}, 99% {p99}, most {most}"))
    bounds = {key: f"{100 * value:.1f}%" for key, value in found["bounds"].items()}
    sizes = {key: f"{value:,.3g}" for key, value in found["working_set_gb"].items()}
    rows += [
        (
            "token hit rate",
            f"at most {bounds['token_hit_rate_hybrid']}; {bounds['token_hit_rate_kv']} by KV alone",
        ),
        (
            "FLOPs saved",
            f"at most {bounds['flops_saved_ratio_hybrid']}; {bounds['flops_saved_ratio_kv']} by KV alone",
        ),
        ("branch points", f"{found['branch_points']:,} positions where prompts part"),
        (
            "working set",
            f"mean {sizes['mean']} GB, 95% of the time below {sizes['p95']}, peak {sizes['peak']}; "
            f"everything {found['everything_gb']:,.3g}",
        ),
    ]
    if not found["outputs_in_trace"]:
        rows.append(("note", "the file does not identify outputs: reuse is a lower bound"))
    width = max(len(row[0]) for row in rows)
    head = f"{found['trace']}, as {found['model']} sees it (GB = 1e9 bytes)"
    return "\n".join([head, *(f"  {name.ljust(width)}  {text}" for name, text in rows)])
