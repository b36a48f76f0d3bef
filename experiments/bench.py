"""Speed and memory of the cache, as JSON: ``python -m hybridcache.experiments.bench``.

``--recorded FILE.npz`` and ``--conversation FILE.jsonl.gz`` name traces to replay (a native one and a
Mooncake one); without them the built-in agent and chat workloads are. Every part runs in a process of
its own, in one thread; seconds are medians. Machines differ and are shared: compare figures of one output.
"""

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
from omegaconf import OmegaConf

from hybridcache.attention_layer import Attention
from hybridcache.evictor import Evictor
from hybridcache.experiments.replay_cache import replay_cache
from hybridcache.experiments.request_rows import RequestRows
from hybridcache.experiments.traces.open import open_trace
from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.mamba_layer import Mamba2
from hybridcache.namespace import Namespace
from hybridcache.node import Node
from hybridcache.node_table import LEAF, NodeTable
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.prefix_cache import PrefixCache
from hybridcache.spec import ModelSpec
from hybridcache.tokens import TokenIds

Figures = dict[str, float]
CONF = Path(__file__).resolve().parent.parent / "conf"
REPEATS = 3


def whole_trace(path: str | None, model: str, budget_gb: float, eviction: str) -> Figures:
    """Replay a native trace from the file to the table of requests; reading included."""
    spec = _geometry(model)
    seconds, requests = [], 0
    for _ in range(REPEATS):
        start = perf_counter()
        trace = open_trace("npz", path=path) if path else open_trace("agent")
        cache = _cache(spec, budget_gb, eviction)
        requests = _replay(trace, cache, spec)
        seconds.append(perf_counter() - start)
    return {
        "requests": requests,
        "requests_per_second": requests / median(seconds),
        "token_hit_rate": cache.stats.hit_tokens / cache.stats.input_tokens,
        "peak_resident_mb": _peak_mb(),
    }


def first_requests(path: str | None, model: str, budget_gb: float, eviction: str, count: int) -> Figures:
    """Replay the first requests of a Mooncake trace; with and without reading and stitching them."""
    spec = _geometry(model)
    with_reading, without = [], []
    for _ in range(REPEATS):
        start = perf_counter()
        opened = (
            open_trace("mooncake", path=path, limit=count) if path else open_trace("chat", requests=count)
        )
        requests = list(opened)
        read = perf_counter()
        _replay(requests, _cache(spec, budget_gb, eviction), spec)
        without.append(perf_counter() - read)
        with_reading.append(perf_counter() - start)
    return {
        "requests": len(requests),
        "requests_per_second": len(requests) / median(without),
        "requests_per_second_with_reading": len(requests) / median(with_reading),
    }


def growth(num_nodes: int, eviction: str) -> Figures:
    """Seconds a request takes in a full cache of ``num_nodes`` nodes; half of the requests hit."""
    spec = _toy_spec()
    rng = np.random.default_rng(0)
    prompt_tokens, output_tokens = 256, 32
    leaf_bytes = (prompt_tokens + output_tokens) * spec.kv_bytes_per_token + spec.checkpoint_bytes
    cache = PrefixCache(
        spec,
        budget_bytes=num_nodes * leaf_bytes,
        eviction=build_eviction(eviction),
        admission=build_admission("branch_and_final"),
    )
    namespace = Namespace()
    recent: list[TokenIds] = []
    measured: list[float] = []
    now = 0.0
    for i in range(num_nodes + 4_000):
        now += 1.0
        fresh = rng.integers(0, 2**31, prompt_tokens + output_tokens, dtype=np.uint32)
        if i % 2 and recent:
            known = recent[int(rng.integers(0, len(recent)))]
            tokens = np.concatenate(
                (known, fresh[: prompt_tokens - len(known) % prompt_tokens + output_tokens])
            )
            tokens = tokens if len(known) < 2 * prompt_tokens else fresh
        else:
            tokens = fresh
        num_prompt = len(tokens) - output_tokens
        start = perf_counter()
        lease = cache.acquire(tokens[:num_prompt], namespace, now, max_tokens=output_tokens)
        cache.restored(lease)  # type: ignore[arg-type]
        cache.reserve(lease, len(tokens) - 1 - lease.num_computed, now)  # type: ignore[arg-type, union-attr]
        cache.computed(lease, tokens[lease.num_computed : -1], now)  # type: ignore[arg-type, union-attr]
        cache.finish(lease, len(tokens) - 1, now)  # type: ignore[arg-type]
        measured.append(perf_counter() - start)
        recent.append(tokens[:-1])
        if len(recent) > max(num_nodes // 4, 16):
            recent.pop(0)
    return {
        "nodes": cache.store.table.num_nodes,
        "evictions": cache.stats.evictions,
        "microseconds_per_request": 1e6 * float(np.mean(np.sort(measured[-4_000:])[:-40])),
        "median_microseconds_per_request": 1e6 * median(measured[-4_000:]),
    }


def eviction_call(num_candidates: int, eviction: str) -> Figures:
    """Seconds to score ``num_candidates`` nodes once, and a victim's share of it."""
    table = NodeTable()
    rng = np.random.default_rng(0)
    for _ in range(num_candidates):
        node = Node(None, 0, rng.bytes(4), np.empty(0, dtype=np.int64))
        row = table.add(node, float(rng.uniform(0, 1000)), 0.0)
        table.state[row] = LEAF
        table.flops_saved[row], table.bytes_freed[row] = rng.uniform(1e12, 1e15), rng.uniform(1e7, 1e9)
    seconds, victims = [], 0
    for _ in range(50):
        evictor = Evictor(table, build_eviction(eviction))
        start = perf_counter()
        evictor.next(1000.0, False, False)
        seconds.append(perf_counter() - start)
        victims = 1
        while evictor.num_scorings == 1:
            evictor.next(1000.0, False, False)
            victims += 1
    return {
        "candidates": num_candidates,
        "microseconds_per_scoring": 1e6 * median(seconds),
        "victims_per_scoring": victims - 1,
        "microseconds_per_victim": 1e6 * median(seconds) / (victims - 1),
    }


def main() -> None:
    """Run all parts and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--recorded", help="native trace (.npz), replayed whole at 40 GB")
    parser.add_argument("--conversation", help="Mooncake trace, its first 500 requests at 48 GB")
    options = parser.parse_args()
    figures: dict[str, object] = {"python": sys.version.split()[0], "numpy": np.__version__}
    figures["whole_trace"] = _alone(whole_trace, options.recorded, "nvidia_hybrid_7b", 40.0, "hit_density")
    for eviction in ("age_density", "hit_density", "reuse_rate"):
        figures[f"first_500_requests_{eviction}"] = _alone(
            first_requests, options.conversation, "qwen3_next_80b_peers", 48.0, eviction, 500
        )
    figures["growth"] = [_alone(growth, n, "age_density") for n in (1_000, 10_000, 100_000)]
    figures["eviction_call"] = {
        eviction: _alone(eviction_call, 10_000, eviction)
        for eviction in ("lru", "gdsf", "marconi", "age_density", "hit_density", "reuse_rate")
    }
    print(json.dumps(figures, indent=2))


def _alone(part: Callable[..., Figures], *arguments: object) -> Figures:
    """Run ``part`` in a new process: memory and allocator state are its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(part, *arguments).result()


def _geometry(model: str) -> ModelSpec:
    values = OmegaConf.to_container(OmegaConf.load(CONF / "model" / f"{model}.yaml"))
    assert isinstance(values, dict)
    return ModelSpec.from_config({str(key): value for key, value in values.items()})


def _toy_spec() -> ModelSpec:
    mixer = Mamba2(d_model=64, nheads=4, headdim=16, d_state=16, ngroups=1, d_conv=4, conv_width_stored=3)
    attention = Attention(d_model=64, num_heads=4, num_kv_heads=2, head_dim=16)
    return ModelSpec("toy", (mixer, attention), d_model=64, vocab_size=1024)


def _cache(spec: ModelSpec, budget_gb: float, eviction: str) -> PrefixCache:
    return PrefixCache(
        spec,
        budget_bytes=int(budget_gb * 1e9),
        eviction=build_eviction(eviction),
        admission=build_admission("branch_and_final"),
    )


def _replay(trace: Iterable[TraceRequest], cache: PrefixCache, spec: ModelSpec) -> int:
    with tempfile.TemporaryDirectory() as folder:
        rows = RequestRows(Path(folder) / "requests.parquet", on_fold=lambda _: None)
        replay_cache(trace, cache, spec, rows)
        rows.close()
    return cache.stats.requests


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
