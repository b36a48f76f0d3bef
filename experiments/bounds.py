"""What a cache without limits reaches on a run's trace: the bounds of reports."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hybridcache.experiments.engine_settings import engine_defaults
from hybridcache.experiments.replay_cache import replay_cache
from hybridcache.experiments.replay_settings import ReplaySettings
from hybridcache.experiments.request_rows import Columns, RequestRows
from hybridcache.experiments.run import build_parts, known_tokens


class Bounds(NamedTuple):
    """Ratios in [0, 1] of an infinite cache; "kv" ignores that recurrent layers need a checkpoint."""

    hybrid_token_hit_rate: float
    kv_token_hit_rate: float
    hybrid_flops_saved_ratio: float
    kv_flops_saved_ratio: float


def find_bounds(config: Mapping[str, Any], store: Path) -> Bounds:
    """The bounds of a run's trace, model and admission, from ``store`` (JSON) or by one infinite replay.

    Raises:
        ValueError, OSError: the trace can no longer be read.
    """
    key = bounds_key(config)
    known: dict[str, Any] = {}
    if store.is_file():
        try:
            known = json.loads(store.read_text(encoding="utf-8"))
        except ValueError:
            known = {}  # damaged: computed anew and written over
    if key in known and set(known[key]) == set(Bounds._fields):
        return Bounds(**known[key])
    bounds = replay_bounds(config)
    draft = store.with_name(f".{store.name}.{os.getpid()}.draft")
    draft.write_text(json.dumps({**known, key: bounds._asdict()}, indent=2) + "\n", encoding="utf-8")
    draft.replace(store)
    return bounds


def bounds_key(config: Mapping[str, Any]) -> str:
    """SHA-256 of all that the bounds depend on, the trace file's size and date too. Raises OSError."""
    shared: dict[str, Any] = {key: config[key] for key in ("trace", "model", "admission", "block_size")}
    path = config["trace"].get("path")
    if path is not None:
        state = Path(path).stat()
        shared["file"] = [state.st_size, state.st_mtime_ns]
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()


def replay_bounds(config: Mapping[str, Any]) -> Bounds:
    """One replay through a cache that never evicts and never expires."""
    endless = {"budget_gb": float("inf"), "memory": "unified", "kv_fraction": 0.5, "ttl_seconds": None}
    timeless = {"mode": "cache", **engine_defaults()}
    settings = ReplaySettings.from_config({**config, **endless, **timeless, "eviction": {"name": "lru"}})
    spec, cache, trace = build_parts(settings)
    if config["mode"] == "worker":
        trace = known_tokens(trace, spec, config["model"]["checkpoint"])
    kv_tokens = 0
    kv_flops = 0.0

    def add(columns: Columns) -> None:
        nonlocal kv_tokens, kv_flops
        # The last token of a prompt is always computed: its logits are needed.
        usable = np.minimum(columns["matched_tokens"], columns["prompt_tokens"] - 1)
        kv_tokens += int(usable.sum())
        kv_flops += sum(spec.prefix_flops(tokens) for tokens in usable.tolist())

    rows = RequestRows(None, on_fold=add)
    replay_cache(trace, cache, spec, rows)
    rows.close()
    totals = rows.totals
    return Bounds(
        hybrid_token_hit_rate=totals.token_hit_rate,
        kv_token_hit_rate=kv_tokens / max(totals.input_tokens, 1),
        hybrid_flops_saved_ratio=totals.flops_saved_ratio,
        kv_flops_saved_ratio=kv_flops / totals.flops_total if totals.flops_total else 0.0,
    )
