"""`hybridcache explain`: where the prompts of a trace or a log lost their prefixes, why, and the cost."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hybridcache.experiments.explain_text import prompt_text, traffic_text
from hybridcache.experiments.replay_cache import replay_cache
from hybridcache.experiments.replay_settings import UNBOUNDED_BYTES
from hybridcache.experiments.request_rows import RequestRows
from hybridcache.experiments.trace_command import CONF, add_source, model_of, trace_of, yaml_of
from hybridcache.experiments.watched_cache import WatchedCache
from hybridcache.explainer import Explainer
from hybridcache.explanation import Explanation
from hybridcache.hardware import HardwareProfile
from hybridcache.lease import Lease
from hybridcache.namespace import Namespace
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.prices import Prices
from hybridcache.prompt_log import PromptRecord
from hybridcache.tokens import TokenIds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What it takes."""
    add_source(parser)
    parser.add_argument("--last", action="store_true", help="the last prompt alone, against those before it")
    parser.add_argument("--model", default="nvidia_hybrid_7b", help="geometry: of conf/model/, or a file")
    parser.add_argument("--budget-gb", type=float, default=float("inf"), help="of cache, 1e9 bytes (inf)")
    parser.add_argument("--eviction", default="lru", help="what goes first where the budget has an end")
    parser.add_argument("--admission", default="branch_final_prompt", help="where checkpoints are taken")
    parser.add_argument("--hardware", default="h100", help="for seconds: of conf/hardware/, or a file")
    parser.add_argument("--prices", help="for money and expiry: of conf/prices/, or a file")
    parser.add_argument("--top", type=int, default=10, help="templates to show (10)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> str:
    """What to print. Raises ValueError and OSError naming the setting or the file."""
    trace = trace_of(options.source, options.kind, options.settings)
    spec = model_of(options.model)
    hardware = HardwareProfile.from_config(read_conf("hardware", options.hardware))
    prices = Prices.from_config(read_conf("prices", options.prices)) if options.prices else None
    if options.top < 1:
        raise ValueError(f"--top {options.top}: give a number of templates, 1 or more")
    if not options.budget_gb > 0:
        raise ValueError(f"--budget-gb {options.budget_gb}: give gigabytes above 0, or inf")
    explainer = Explainer(spec, decode=getattr(trace, "decode", None), hardware=hardware, prices=prices)
    cache = WatchedCache(
        spec,
        budget_bytes=int(min(options.budget_gb * 1e9, UNBOUNDED_BYTES)),
        eviction=build_eviction(options.eviction),
        admission=build_admission(options.admission),
        ttl_seconds=None if prices is None else prices.ttl_seconds,
    )
    namespace = Namespace(spec.fingerprint)
    last: list[Explanation] = []

    def note(tokens: TokenIds, ends: Sequence[int], lease: Lease) -> None:
        found, now = (lease.hit, lease.matched, lease.lost), cache.asked_at
        record = PromptRecord(namespace, tokens, list(ends), *found, now, now + lease.ttl_seconds)
        last[:] = [explainer.add(record)]

    cache.on_lease = note
    rows = RequestRows(None)
    replay_cache(trace, cache, spec, rows)
    rows.close()
    if not last:
        raise ValueError(f"--budget-gb {options.budget_gb}: no prompt of {options.source} fits")
    if options.last:
        one = last[0].as_dict()
        return json.dumps(one, indent=2) if options.json else prompt_text(one, hardware.name)
    found: dict[str, Any] = {
        "trace": trace.name,
        "model": spec.name,
        "requests": rows.totals.requests,
        "prompt_tokens": rows.totals.input_tokens,
        "cached_tokens": rows.totals.hit_tokens,
        "lost_tokens": rows.totals.lost_tokens,
        "hardware": hardware.name,
        "prices": None if prices is None else prices.name,
        "currency": None if prices is None else prices.currency,
        "least_tokens": 0 if prices is None else prices.least_tokens,
        "templates": [totals.as_dict() for totals in explainer.totals],
    }
    return json.dumps(found, indent=2) if options.json else traffic_text(found, options.top)


def read_conf(group: str, name: str) -> dict[str, Any]:
    """A file of conf/``group``/ by name, or any YAML file. Raises ValueError naming those that are there."""
    path = CONF / group / f"{name}.yaml"
    if not path.is_file() and not (path := Path(name)).is_file():
        known = ", ".join(sorted(file.stem for file in (CONF / group).glob("*.yaml")))
        raise ValueError(f"{group}={name} is unknown; choose one of {known}, or give a file")
    values = yaml_of(path.read_bytes(), str(path))
    if not isinstance(values, dict):
        raise ValueError(f"{path}: must be a mapping of keys to values")
    return {key: _numbers(value) for key, value in values.items()}


def _numbers(value: Any) -> Any:
    """Numbers that YAML 1.1 takes for texts, such as 3.35e+12 without the sign, as numbers."""
    if isinstance(value, Mapping):
        return {key: _numbers(item) for key, item in value.items()}
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
