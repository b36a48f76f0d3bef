"""mode=cache: every request acquires, computes everything and finishes before the next one comes."""

from collections.abc import Iterable
from functools import partial

from hybridcache.experiments.policy_failure import check_policies
from hybridcache.experiments.request_rows import RequestRows
from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.lease import Lease
from hybridcache.loss import LOSS_REASONS
from hybridcache.namespace import Namespace
from hybridcache.prefix_cache import PrefixCache, RequestTooLarge
from hybridcache.scheduler import SchedulerConfig
from hybridcache.spec import ModelSpec
from hybridcache.tokens import TokenIds

STEP_TOKENS = SchedulerConfig().max_num_batched_tokens

_TOO_LARGE = LOSS_REASONS.index("too_large")


def replay_cache(
    trace: Iterable[TraceRequest],
    cache: PrefixCache,
    spec: ModelSpec,
    rows: RequestRows,
    *,
    step_tokens: int = STEP_TOKENS,
) -> None:
    """Replay ``trace`` through ``cache``, every step of a request at its arrival time.

    The calls are those of an Engine that runs one request at a time, with ``step_tokens`` tokens of a prompt
    a step, so that the same is evicted; steps between which nothing is allocated are taken together. Output
    tokens are the trace's. The last one is never fed to the
    model, so a request leaves ``num_prompt + n - 1`` tokens behind. Requests that can never fit are counted
    and change nothing.

    Raises ValueError when a policy fails.
    """
    namespace = Namespace(spec.fingerprint)
    stats = cache.stats
    prefix_flops = spec.prefix_flops
    for index, (now, session, turn, tokens, num_prompt, boundaries) in enumerate(trace):
        num_output = len(tokens) - num_prompt
        facts = (index, now, session, turn, num_prompt, num_output)
        evicted, admitted = stats.evictions, stats.checkpoints_admitted
        acquire = partial(
            cache.acquire,
            tokens[:num_prompt],
            namespace,
            now,
            max_tokens=max(num_output, 1),
            boundaries=boundaries.tolist(),
        )
        step, whole = step_tokens, True
        try:
            lease = acquire(reserve=num_prompt)
            if lease is None:
                # There is room once the source of its state is restored: one token is computed before.
                lease, step, whole = acquire(reserve=1), 1, False
        except RequestTooLarge:
            lost = [0] * len(LOSS_REASONS)
            lost[_TOO_LARGE] = num_prompt
            rows.append((*facts, True, 0, 0, prefix_flops(num_prompt), 0.0, 0, 0, *lost))
            continue
        assert isinstance(lease, Lease), "with no other request running there is nothing to wait for"
        hit, matched = lease.hit, lease.matched
        lost = [lease.lost.get(reason, 0) for reason in LOSS_REASONS]
        while (start := lease.num_computed) < num_prompt:
            stop = start + step
            if whole:
                # The prompt's blocks are there: only steps that take a checkpoint allocate anything. What is
                # computed before such a step is in the tree by then, which counts for what is evicted.
                first = lease.planned[0] if lease.planned else num_prompt + step
                stop = max(stop, start + (first - start - 1) // step * step)
            _compute(cache, lease, tokens, min(stop, num_prompt), now)
            step = step_tokens
        end = num_prompt + max(num_output, 1) - 1
        while lease.num_computed < end:
            _compute(cache, lease, tokens, min([end, *lease.planned[:1]]), now)
        cache.finish(lease, end, now)
        check_policies(cache)
        flops, saved = prefix_flops(num_prompt), prefix_flops(hit)
        evicted, admitted = stats.evictions - evicted, stats.checkpoints_admitted - admitted
        rows.append((*facts, False, hit, matched, flops, saved, admitted, evicted, *lost))


def _compute(cache: PrefixCache, lease: Lease, tokens: TokenIds, stop: int, now: float) -> None:
    """Compute the tokens from where the lease stands up to ``stop``, and the checkpoints among them."""
    start = lease.num_computed
    fits = cache.reserve(lease, stop - start, now)
    assert fits, "a request that was not refused fits when it runs alone"
    emits = cache.emits(lease, stop, now) if lease.planned and lease.planned[0] <= stop else ()
    cache.restored(lease)
    cache.computed(lease, tokens[start:stop], now)
    if emits:
        cache.checkpointed(lease, now)
