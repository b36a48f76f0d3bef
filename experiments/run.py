"""One run: a configuration in; summary.json, requests.parquet and timeline.parquet out."""

import logging
import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.utils import to_absolute_path
from omegaconf import DictConfig, OmegaConf

from hybridcache.experiments.assisted_cache import assisted_cache
from hybridcache.experiments.code_version import code_version
from hybridcache.experiments.engine_settings import EngineSettings
from hybridcache.experiments.engine_summary import ReplayTimes, engine_summary
from hybridcache.experiments.known_settings import ignored_settings
from hybridcache.experiments.replay_cache import replay_cache
from hybridcache.experiments.replay_engine import replay_engine
from hybridcache.experiments.replay_settings import ReplaySettings
from hybridcache.experiments.request_rows import COLUMNS, TIMED_COLUMNS, Columns, RequestRows
from hybridcache.experiments.run_folder import CONFIG, ROWS, SUMMARY, TIMELINE, RunFolder, holds_run
from hybridcache.experiments.simulation import Simulation, TimedEngine
from hybridcache.experiments.summary import build_summary
from hybridcache.experiments.timeline import Timeline
from hybridcache.experiments.traces.open import open_trace
from hybridcache.experiments.traces.request import Trace
from hybridcache.experiments.traces.vocabulary import VocabularyTrace
from hybridcache.experiments.tracker import Tracker
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.prefix_cache import PrefixCache
from hybridcache.spec import ModelSpec

log = logging.getLogger("replay")

# Registered here, in the module that holds the job, so that the processes of a sweep know it too. Cached:
# they take over the number that the sweep's folder was named with.
OmegaConf.register_new_resolver("pid", os.getpid, use_cache=True, replace=True)


def run(config: DictConfig) -> None:
    """The job that Hydra calls: replay into the run folder that Hydra chose.

    A sweep that is started again in its folder so goes on where it ended: runs that are there stay.

    Raises:
        ValueError, OSError: a setting or the trace is wrong; nothing has been replayed then.
    """
    values = resolved(config)
    hydra = HydraConfig.get()
    folder, single = Path(hydra.runtime.output_dir), hydra.mode == RunMode.RUN
    if not single and holds_run(folder, plain_json(values)):
        log.info("%s: the results of this very run are there, and stay", folder)
        return
    replay(values, folder, bar=single)


def replay(values: Mapping[str, Any], folder: Path, *, bar: bool = False) -> dict[str, Any]:
    """Run a resolved configuration (plain containers) into ``folder``; returns the summary."""
    settings = ReplaySettings.from_config(values)
    spec, cache, trace = build_parts(settings)
    values = {**values, "model": dict(settings.model)}
    with RunFolder(folder, overwrite=settings.overwrite) as results:
        config = plain_json(values)
        results.write_json(CONFIG, config)
        tracker = Tracker(
            trace.num_requests,
            trace.name,
            bar=bar,
            wandb_settings=settings.wandb,
            config=config,
            folder=folder,
        )
        times = ReplayTimes()

        def on_fold(columns: Columns) -> None:
            times.add(columns)
            tracker.update(rows.totals)

        engine = settings.engine
        timeline = Timeline(cache, trace.num_requests)
        columns = COLUMNS if engine is None else TIMED_COLUMNS
        rows = RequestRows(folder / ROWS, on_fold, columns, timeline.after)
        served: TimedEngine | None = None
        failed = True
        try:
            start = perf_counter()
            if engine is None:
                replay_cache(trace, cache, spec, rows, step_tokens=settings.max_num_batched_tokens)
            else:
                served = timed_engine(settings, engine, cache)
                replay_engine(trace, served, spec, rows, speed=engine.speed)
            rows.close()
            timeline.write(folder / TIMELINE)
            wall_seconds = perf_counter() - start
            cache.check()
            summary = build_summary(
                settings=settings,
                config=config,
                trace=trace,
                cache=cache,
                totals=rows.totals,
                wall_seconds=wall_seconds,
                version=code_version(),
                timing={} if served is None else engine_summary(served, times),
            )
            results.write_json(SUMMARY, summary)
            if not summary["hit_tokens"]:
                refused, all_requests = summary["requests_refused"], summary["requests"]
                warnings.warn(
                    f"no token was hit: {refused} of {all_requests} requests too large for the budget, "
                    f"{summary['matched_tokens']} tokens on known paths",
                    stacklevel=2,
                )
            tracker.finish(rows.totals, summary)
            failed = False
        finally:
            rows.abandon()
            tracker.close(failed=failed)
    log.info(
        "%s: token hit rate %.2f%%, FLOPs saved %.2f%%, %d requests in %.1f s; %s",
        f"{trace.name}, {settings.eviction['name']}, {values['budget_gb']} GB",
        100 * summary["token_hit_rate"],
        100 * summary["flops_saved_ratio"],
        summary["requests"],
        wall_seconds,
        folder,
    )
    return summary


def timed_engine(settings: ReplaySettings, engine: EngineSettings, cache: PrefixCache) -> TimedEngine:
    """The engine of the mode, over ``cache``. Raises ValueError as `RealModel.of` does."""
    if settings.worker is None:
        return Simulation.of(
            cache, hardware=engine.hardware, scheduler=engine.scheduler, kv_fraction=settings.kv_fraction
        )
    # Torch is for this mode alone.
    from hybridcache.experiments.real_model import RealModel

    return RealModel.of(
        cache,
        checkpoint_of(settings.worker.model),
        scheduler=engine.scheduler,
        memory=settings.memory,
        kv_fraction=settings.kv_fraction,
    )


def checkpoint_of(model: str) -> Path:
    """The folder of a preset or a checkpoint. Raises ValueError for neither."""
    from hybridcache.served_model import checkpoint_folder

    return checkpoint_folder(model)


def spec_of(model: Mapping[str, Any]) -> ModelSpec:
    """The spec of a geometry, or of the checkpoint that a run of mode=worker names."""
    if "checkpoint" not in model:
        return ModelSpec.from_config(model)
    folder = checkpoint_of(str(model["checkpoint"]))
    return ModelSpec.from_hf(folder, name=str(model["name"]), kv_dtype="float32", conv_dtype="float32")


def known_tokens(trace: Trace, spec: ModelSpec, model: str) -> Trace:
    """``trace`` as the preset or checkpoint ``model`` can compute it. Raises ValueError for neither."""
    from hybridcache.served_model import model_length

    return VocabularyTrace(trace, spec.vocab_size, model_length(checkpoint_of(model), None))


def build_parts(settings: ReplaySettings) -> tuple[ModelSpec, PrefixCache, Trace]:
    """The model's geometry, an empty cache, and the opened trace.

    Raises:
        ValueError, OSError: as the parts' builders do, naming the setting or the file.
    """
    spec = spec_of(settings.model)
    trace = open_trace(**settings.trace)
    if settings.worker is not None:
        trace = known_tokens(trace, spec, settings.worker.model)
    cache = assisted_cache(
        spec,
        trace,
        eviction=build_eviction(**settings.eviction),
        admission=build_admission(**settings.admission),
        mode=settings.mode,
        budget_bytes=settings.budget_bytes,
        block_size=settings.block_size,
        memory=settings.memory,
        kv_fraction=settings.kv_fraction,
        ttl_seconds=settings.ttl_seconds,
    )
    return spec, cache, trace


def resolved(config: DictConfig) -> dict[str, Any]:
    """The configuration as plain containers; paths are taken from the folder the user was in.

    Warns of settings that were added and that nobody reads.
    """
    values = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(values, dict)
    named: dict[str, Any] = {str(key): value for key, value in values.items()}
    for line in ignored_settings(named):
        warnings.warn(line, stacklevel=2)
    path = named["trace"].get("path")
    if path is not None:
        named["trace"]["path"] = to_absolute_path(str(path))
    model = named["worker"]["model"]
    if isinstance(model, str) and Path(to_absolute_path(model)).is_dir():
        named["worker"]["model"] = to_absolute_path(model)
    return named


def plain_json(value: Any) -> Any:
    """``value`` with infinite numbers as the text "inf", which JSON can hold and Hydra reads as a number."""
    if isinstance(value, Mapping):
        return {key: plain_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain_json(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return value
