"""GET /metrics: a worker's counters for Prometheus, under the names that vLLM and SGLang use for them."""

from collections.abc import Iterable, Iterator, Mapping

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from starlette.responses import Response

from hybridcache.histogram import Histogram
from hybridcache.loss import LOSS_REASONS
from hybridcache.server.off_loop import off_loop
from hybridcache.worker import Worker
from hybridcache.worker_stats import WorkerStats

PREFIX = "hybridcache:"


class WorkerCollector(Collector):
    """Reads a worker when it is asked: nothing is counted a second time, and nothing is global."""

    def __init__(self, worker: Worker, model_name: str, refused: Mapping[str, int]) -> None:
        """``model_name`` tells workers apart; ``refused`` counts what the server took not, by reason."""
        self._worker = worker
        self._refused = refused
        self._labels = {"model_name": model_name}

    def collect(self) -> Iterator[Metric]:
        """All metrics of one moment between two steps. Raises WorkerClosed."""
        stats = self._worker.stats()
        yield from self._requests(stats)
        yield from self._tokens(stats)
        yield from self._memory(stats)

    def _requests(self, stats: WorkerStats) -> Iterator[Metric]:
        engine = stats.engine
        yield self._gauge("num_requests_running", "requests in the batch", stats.num_running)
        yield self._gauge("num_requests_waiting", "requests in the queue", stats.num_waiting)
        yield self._counter(
            "num_preemptions", "requests put back for want of room", stats.scheduler.num_preemptions
        )
        ended = {
            "stop": engine.stopped,
            "length": engine.finished - engine.stopped - engine.aborted - engine.failed,
            "abort": engine.aborted,
            "error": engine.failed,
        }
        yield self._counters(
            "request_success", "answers ended, each of a prompt's n", "finished_reason", ended.items()
        )
        yield self._counters(
            "requests_refused", "answered with an error at once", "reason", self._refused.items()
        )
        yield self._histogram("time_to_first_token_seconds", "from submission", engine.ttft_seconds)
        yield self._histogram("inter_token_latency_seconds", "from one token to the next", engine.itl_seconds)
        yield self._histogram("e2e_request_latency_seconds", "from submission to the end", engine.e2e_seconds)
        yield self._histogram(
            "request_queue_time_seconds", "from submission to the first step", engine.queue_seconds
        )

    def _tokens(self, stats: WorkerStats) -> Iterator[Metric]:
        cache = stats.cache
        refused = cache.lost_tokens.get("too_large", 0)
        yield self._counter(
            "prefix_cache_queries", "prompt tokens looked up; a prompt once", cache.input_tokens
        )
        yield self._counter("prefix_cache_hits", "of them those that were cached", cache.hit_tokens)
        lost = [(reason, cache.lost_tokens.get(reason, 0)) for reason in LOSS_REASONS]
        yield self._counters("lost_tokens", "of them the others, by the reason", "reason", lost)
        yield self._counter(
            "matched_tokens", "of them those on a known path, cached or not", cache.matched_tokens
        )
        yield self._counter("prompt_tokens", "of prompts that were served", cache.input_tokens - refused)
        yield self._counter("prompt_tokens_cached", "of them those that were cached", cache.hit_tokens)
        yield self._counter(
            "generation_tokens", "generated, end tokens not counted", stats.engine.generated_tokens
        )
        yield self._counter(
            "computed_tokens", "through the model, again after preemption", stats.engine.computed_tokens
        )
        yield self._counter("prefill_flops_saved", "FLOPs of the cached prompt tokens", cache.flops_saved)
        yield self._counter("evicted_tokens", "whose KV was evicted", cache.evicted_tokens)
        yield self._histogram("eviction_duration_seconds", "making room once", cache.eviction_seconds)

    def _memory(self, stats: WorkerStats) -> Iterator[Metric]:
        usage = stats.usage
        pools = {"kv": usage.kv, "state": usage.state}
        for name, pool in pools.items():
            share = (pool.pinned + pool.leased) / usage.budget
            yield self._gauge(
                f"{name}_cache_usage_perc", "held by running requests; 1 is the whole budget", share
            )
        held = GaugeMetricFamily(
            f"{PREFIX}cache_bytes",
            "bytes by pool and by who holds them",
            labels=[*self._labels, "pool", "holder"],
        )
        for name, pool in pools.items():
            for holder, count in pool._asdict().items():
                held.add_metric([*self._labels.values(), name, holder], count)
        yield held
        yield self._gauge("cache_free_bytes", "held by nobody; with cache_bytes the budget", usage.free)
        yield self._gauge("cache_budget_bytes", "for both pools together", usage.budget)
        yield self._gauge("state_checkpoints", "checkpoints in the tree", stats.num_checkpoints)
        cache = stats.cache
        admitted = cache.admitted_by_reason.items()
        yield self._counters(
            "state_checkpoints_admitted", "checkpoints kept, by the reason", "reason", admitted
        )
        yield self._counters(
            "state_checkpoint_hits", "prompts that resumed at one", "reason", cache.hits_by_reason.items()
        )
        saved = cache.flops_saved_by_reason.items()
        yield self._counters("state_checkpoint_flops_saved", "FLOPs of their cached tokens", "reason", saved)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(PREFIX + name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counters(self, name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
        family = CounterMetricFamily(PREFIX + name, text, labels=[*self._labels, label])
        for word, value in values:
            family.add_metric([*self._labels.values(), word], value)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(PREFIX + name, text, labels=list(self._labels))
        buckets, below = [], 0
        for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
            below += count
            buckets.append((bound if isinstance(bound, str) else f"{bound:.10g}", below))
        family.add_metric(list(self._labels.values()), buckets, histogram.total)
        return family


def metric_routes(worker: Worker, model_name: str, refused: Mapping[str, int]) -> APIRouter:
    """The endpoint, with a registry of its own, so that workers in one process do not meet."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(WorkerCollector(worker, model_name, refused))
    router = APIRouter(tags=["server"])

    @router.get("/metrics")
    async def metrics() -> Response:
        """Taken after the running step."""
        text = await off_loop(lambda: generate_latest(registry))
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return router
