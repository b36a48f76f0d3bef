"""mode=cache: every request acquires, computes everything and finishes before the next one comes."""

from collections.abc import Iterable

from hybridcache.experiments.request_rows import RequestRows
from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.lease import Lease
from hybridcache.loss import LOSS_REASONS
from hybridcache.namespace import Namespace
from hybridcache.prefix_cache import PrefixCache, RequestTooLarge
from hybridcache.spec import ModelSpec
from hybridcache.tokens import TokenIds

_TOO_LARGE = LOSS_REASONS.index("too_large")


def replay_cache(
    trace: Iterable[TraceRequest], cache: PrefixCache, spec: ModelSpec, rows: RequestRows
) -> None:
    """Replay ``trace`` through ``cache``, every step of a request at its arrival time.

    Output tokens are the trace's. The last one is never fed to the model, so a request leaves
    ``num_prompt + n - 1`` tokens behind. Requests that can never fit are counted and change nothing.
    """
    namespace = Namespace(spec.fingerprint)
    stats = cache.stats
    prefix_flops = spec.prefix_flops
    for index, (now, session, turn, tokens, num_prompt, boundaries) in enumerate(trace):
        num_output = len(tokens) - num_prompt
        facts = (index, now, session, turn, num_prompt, num_output)
        evicted, admitted = stats.evictions, stats.checkpoints_admitted
        try:
            prompt = tokens[:num_prompt]
            lease = cache.acquire(
                prompt, namespace, now, max_tokens=max(num_output, 1), boundaries=boundaries.tolist()
            )
        except RequestTooLarge:
            lost = [0] * len(LOSS_REASONS)
            lost[_TOO_LARGE] = num_prompt
            rows.append((*facts, True, 0, 0, prefix_flops(num_prompt), 0.0, 0, 0, *lost))
            continue
        assert isinstance(lease, Lease), "with no other request running there is nothing to wait for"
        hit, matched = lease.hit, lease.matched
        lost = [lease.lost.get(reason, 0) for reason in LOSS_REASONS]
        cache.restored(lease)
        end = num_prompt + max(num_output, 1) - 1
        while lease.planned and (position := lease.planned[0]) < end:
            _compute(cache, lease, tokens, position, now)
            if cache.checkpoint(lease, now) is not None:
                cache.checkpointed(lease, now)
        _compute(cache, lease, tokens, end, now)
        cache.finish(lease, end, now)
        flops, saved = prefix_flops(num_prompt), prefix_flops(hit)
        evicted, admitted = stats.evictions - evicted, stats.checkpoints_admitted - admitted
        rows.append((*facts, False, hit, matched, flops, saved, admitted, evicted, *lost))


def _compute(cache: PrefixCache, lease: Lease, tokens: TokenIds, stop: int, now: float) -> None:
    """Compute the tokens from where the lease stands up to ``stop``."""
    start = lease.num_computed
    fits = cache.reserve(lease, stop - start, now)
    assert fits, "a request that was not refused fits when it runs alone"
    cache.computed(lease, tokens[start:stop], now)
