"""The classic policies beside libCacheSim's: ``python -m hybridcache.experiments.block_check [WORKLOAD]``.

A trace becomes a stream of blocks, each prompt's full blocks in order; a block is known by all tokens up to
its end. `lru`, `lfu`, `gdsf` and `clairvoyant` (Belady's rule, where blocks are equal) run over it one block
a row, and libCacheSim (pip install libcachesim) runs over the same stream. `gdsf` may differ by a few hits,
where priorities are equal. A last line compares the prefix cache itself, a model without recurrent layers
under `block_lru`, with libCacheSim's LRU: they differ where a prompt ends inside a known path, since the
tree keeps one time for a path without branches.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybridcache.attention_layer import Attention
from hybridcache.experiments.block_cache import BlockCache
from hybridcache.experiments.replay_cache import replay_cache
from hybridcache.experiments.request_rows import RequestRows
from hybridcache.experiments.traces.open import open_trace
from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.prefix_cache import PrefixCache
from hybridcache.prefix_hash import PrefixHash
from hybridcache.spec import ModelSpec

POLICIES = {"lru": "LRU", "lfu": "LFU", "gdsf": "GDSF", "clairvoyant": "Belady"}
"""libCacheSim's classes by our names."""
WORKLOADS = ("chat", "agent", "few_shot", "rag", "tree_search", "scan")
HASH_POWER = 16
"""libCacheSim's tables begin with 2 to this power entries."""
NO_NEXT_USE = 2**62


class Compared(NamedTuple):
    """Blocks hit in the same stream."""

    policy: str
    capacity: int
    """Blocks."""
    accesses: int
    ours: int
    theirs: int


def block_paths(trace: Iterable[TraceRequest], block_size: int) -> list[list[int]]:
    """The full blocks of each prompt, as numbers from 0; equal numbers are equal prefixes."""
    numbers: dict[int, int] = {}
    paths = []
    for request in trace:
        prefix, path, prompt = PrefixHash(), [], request.prompt
        for end in range(block_size, len(prompt) + 1, block_size):
            prefix.update(prompt[end - block_size : end].tobytes())
            path.append(numbers.setdefault(prefix.intdigest(), len(numbers)))
        paths.append(path)
    return paths


def next_uses(stream: Sequence[int]) -> list[int]:
    """The index of the next access of the same block; NO_NEXT_USE without one."""
    last: dict[int, int] = {}
    found = [NO_NEXT_USE] * len(stream)
    for index in range(len(stream) - 1, -1, -1):
        found[index] = last.get(stream[index], NO_NEXT_USE)
        last[stream[index]] = index
    return found


def our_hits(name: str, stream: Sequence[int], capacity: int) -> int:
    """Accesses hit by the policy ``name``; access i is at i seconds."""
    cache = BlockCache(build_eviction(name), capacity)
    uses = next_uses(stream)
    return sum(
        cache.access(block, float(now), float(uses[now]) if uses[now] < NO_NEXT_USE else np.inf)
        for now, block in enumerate(stream)
    )


def libcachesim_get(name: str, capacity: int) -> Callable[[int, int, int], bool]:
    """An access of libCacheSim's policy ``name`` (one of its classes): block, index, next use -> hit.

    Raises ValueError when libCacheSim is not installed.
    """
    try:
        import libcachesim
    except ImportError as error:
        raise ValueError(f"libcachesim is not installed ({error}): pip install libcachesim") from error
    library: Any = libcachesim
    cache = getattr(library, name)(cache_size=capacity, hashpower=HASH_POWER)

    def get(block: int, index: int, next_use: int) -> bool:
        request = library.Request(obj_id=block, obj_size=1, clock_time=index, next_access_vtime=next_use)
        return bool(cache.get(request))

    return get


def their_hits(name: str, stream: Sequence[int], capacity: int) -> int:
    """Accesses hit by libCacheSim's policy ``name``."""
    get = libcachesim_get(name, capacity)
    uses = next_uses(stream)
    return sum(get(block, index, uses[index]) for index, block in enumerate(stream))


def compare(stream: Sequence[int], capacity: int) -> list[Compared]:
    """Each policy over ``stream``."""
    return [
        Compared(
            name,
            capacity,
            len(stream),
            our_hits(name, stream, capacity),
            their_hits(theirs, stream, capacity),
        )
        for name, theirs in POLICIES.items()
    ]


def compare_prefix_cache(paths: Sequence[Sequence[int]], capacity: int) -> Compared:
    """The prefix cache under `block_lru` and libCacheSim's LRU, over prompts that fit; a block is one token.

    A hit makes all above it as recent, and the root most of all: libCacheSim gets the path forwards, and then
    backwards, and the second pass is not counted.
    """
    paths = [path for path in paths if 0 < len(path) <= capacity]
    attention = Attention(d_model=4, num_heads=1, num_kv_heads=1, head_dim=2)
    spec = ModelSpec("attention", (attention,), d_model=4, vocab_size=2**31)
    cache = PrefixCache(
        spec, budget_bytes=capacity * spec.kv_bytes_per_token, block_size=1,
        eviction=build_eviction("block_lru"), admission=build_admission("final_only"),
    )  # fmt: skip
    # The last token is never fed.
    requests = [
        TraceRequest(
            float(now), 0, 0, np.array([*path, 0], dtype=np.uint32), len(path), np.array([len(path)])
        )
        for now, path in enumerate(paths)
    ]
    rows = RequestRows(None)
    replay_cache(requests, cache, spec, rows)
    rows.close()
    cache.check()
    get = libcachesim_get("LRU", capacity)
    theirs = 0
    for path in paths:
        theirs += sum(get(block, 0, NO_NEXT_USE) for block in path)
        for block in reversed(path):
            get(block, 0, NO_NEXT_USE)
    return Compared("block_lru", capacity, sum(map(len, paths)), cache.stats.matched_tokens, theirs)


def as_text(rows: Sequence[Compared]) -> str:
    """For a terminal."""
    lines = ["policy        blocks  accesses   ours %  libcachesim %  difference in hits"]
    lines += [
        f"{row.policy:12}{row.capacity:8}{row.accesses:10}{100 * row.ours / row.accesses:9.3f}"
        f"{100 * row.theirs / row.accesses:15.3f}{row.ours - row.theirs:20}"
        for row in rows
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the comparison; exit status 2 and one line on stderr for what the user can mend."""
    parser = argparse.ArgumentParser(
        prog="python -m hybridcache.experiments.block_check", description=__doc__
    )
    parser.add_argument("workload", nargs="?", default="chat", choices=WORKLOADS)
    parser.add_argument("--requests", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--block-size", type=int, default=64, help="tokens")
    parser.add_argument(
        "--capacity", type=float, nargs="+", default=[0.05, 0.2], help="parts of all distinct blocks"
    )
    options = parser.parse_args(arguments)
    try:
        if options.block_size < 1:
            raise ValueError(f"--block-size {options.block_size}: give the tokens of a block, at least 1")
        if not all(0.0 < part <= 1.0 for part in options.capacity):
            raise ValueError(f"--capacity {options.capacity}: give parts above 0 and up to 1")
        trace = open_trace(options.workload, requests=options.requests, seed=options.seed)
        paths = block_paths(trace, options.block_size)
        stream = [block for path in paths for block in path]
        if not stream:
            raise ValueError(
                f"no prompt has a block of {options.block_size} tokens: give a smaller --block-size"
            )
        rows = []
        for part in options.capacity:
            capacity = max(round(part * len(set(stream))), 1)
            rows += [*compare(stream, capacity), compare_prefix_cache(paths, capacity)]
        print(as_text(rows))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
