"""What a worker serves: a checkpoint folder, its length, and the engine over it."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hybridcache.engine import Clock, Engine
from hybridcache.hf_config import HfConfig
from hybridcache.models.generation import GenerationConfig
from hybridcache.models.load import LoadedModel
from hybridcache.models.presets import PRESETS, preset_folder
from hybridcache.models.rope import longest_text
from hybridcache.prefix_cache import PrefixCache
from hybridcache.runner import ModelRunner
from hybridcache.sampler import Sampler
from hybridcache.sampling_params import SamplingParams
from hybridcache.scheduler import Scheduler, SchedulerConfig
from hybridcache.storage import Storage
from hybridcache.text_codec import TextCodec

DEFAULT_MODEL_LEN = 32_768
"""Tokens of prompt and answer, for a model whose config states no length."""

FRACTIONS = ("budget_gb", "kv_fraction", "ttl_seconds")
"""Settings of a worker that need not be whole numbers."""
LIMITS = {"threads": (1, 1_024), "max_queue": (0, 2**63)}
"""The least and the most of settings that nothing else checks. A process that cannot start as many threads as
it is told to would end at once."""
OPTIONAL = ("max_num_seqs", "max_queue", "max_model_len", "threads", "ttl_seconds")
"""Settings that may be None."""


class MonotonicClock(Clock):
    """The system's, unaffected by changes of the date."""

    def now(self) -> float:
        return time.monotonic()


def checkpoint_folder(model: str | Path) -> Path:
    """The folder of a preset, made on first use, or the folder given. Raises ValueError for neither."""
    if not isinstance(model, str | Path):
        raise ValueError(f"model={model!r}: give a folder or a preset, {', '.join(PRESETS)}")
    if model in PRESETS:
        return preset_folder(str(model))
    folder = Path(model)
    if not folder.is_dir():
        raise ValueError(
            f"model={str(model)!r} is neither a folder nor a preset; the presets are {', '.join(PRESETS)}"
        )
    return folder


def model_length(folder: Path, asked: int | None) -> int:
    """Tokens of prompt and answer that the model is made for, or fewer where that is asked for.

    Raises ValueError for more, and for fewer than 2.
    """
    config = HfConfig.read(folder)
    stated = longest_text(config)
    if stated is not None and stated < 2:
        raise config.error("max_position_embeddings", "at least 2: a token of prompt and one of answer")
    if asked is None:
        return DEFAULT_MODEL_LEN if stated is None else stated
    if asked < 2:
        raise ValueError(f"max_model_len={asked}: give at least 2 tokens, one of prompt and one of answer")
    if stated is not None and asked > stated:
        raise ValueError(f"max_model_len={asked}: the model is made for {stated} tokens")
    return asked


def default_params(generation: GenerationConfig) -> SamplingParams:
    """How a checkpoint is sampled where a request does not say: as its generation_config.json has it."""
    penalty = 1.0 if generation.repetition_penalty is None else generation.repetition_penalty
    if not generation.do_sample:
        return SamplingParams(temperature=0.0, repetition_penalty=penalty)
    return SamplingParams(
        temperature=1.0 if generation.temperature is None else generation.temperature,
        top_p=1.0 if generation.top_p is None else generation.top_p,
        top_k=generation.top_k or 0,
        min_p=generation.min_p or 0.0,
        repetition_penalty=penalty,
    )


def check_numbers(**settings: object) -> None:
    """Raises ValueError for a setting that is no number of its kind, or beyond its LIMITS."""
    for name, value in settings.items():
        number = isinstance(value, int | float if name in FRACTIONS else int) and not isinstance(value, bool)
        if not number and not (value is None and name in OPTIONAL):
            what = "a number" if name in FRACTIONS else "a whole number"
            raise ValueError(f"{name}={value!r}: give {what}{', or None' if name in OPTIONAL else ''}")
        if value is not None and name in LIMITS:
            least, most = LIMITS[name]
            if not least <= value <= most:  # type: ignore[operator]
                raise ValueError(f"{name}={value}: give {least} to {most}, or None")


def check_flags(**settings: object) -> None:
    """Raises ValueError for what is neither True nor False: "no" would be taken for True."""
    for name, value in settings.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name}={value!r}: give True or False")


def policy_settings(named: str | Mapping[str, object]) -> dict[str, Any]:
    """What `build_eviction` and `build_admission` take, of a policy's name, or of a name and settings.

    Raises ValueError for anything else.
    """
    if isinstance(named, str):
        return {"name": named}
    if not isinstance(named, Mapping) or not isinstance(named.get("name"), str):
        raise ValueError(f"{named!r} is no policy: give its name, or a mapping of name and settings")
    return {str(key): value for key, value in named.items()}


def build_engine(
    loaded: LoadedModel, cache: PrefixCache, limits: SchedulerConfig, clock: Clock, *, debug_poison: bool
) -> Engine:
    """An engine with real tensors behind the ids of ``cache``, on the device that the model runs on.

    Raises ValueError for a budget that no request fits into.
    """
    spec, block_size = loaded.spec, cache.store.blocks.block_size
    budget_bytes = cache.budget.budget_bytes
    memory = cache.budget.memory
    if not cache.fits(1):
        kv, state = block_size * spec.kv_bytes_per_token, spec.checkpoint_bytes
        most = cache.budget.limits
        parts = f", of which {most['kv']:.0f} are for KV and {most['state']:.0f} for states"
        raise ValueError(
            f"budget_gb={budget_bytes / 1e9}: one request of one token takes {kv} bytes of KV and {state} of "
            f"state; the budget is {budget_bytes} bytes{parts if memory == 'split' else ''}"
        )
    storage = Storage(
        spec,
        budget_bytes,
        block_size,
        device=loaded.model.ops.device,
        memory=memory,
        kv_fraction=cache.budget.limits["kv"] / budget_bytes if memory == "split" else 0.5,
        debug_poison=debug_poison,
        copier=loaded.model.ops.copier,
    )
    runner = ModelRunner(loaded.model, storage)
    return Engine(cache, Scheduler(cache, limits), runner, clock, Sampler())


def exchange_weights(
    engine: Engine, folder: Path, load: Callable[..., LoadedModel], codec: TextCodec | None
) -> GenerationConfig:
    """Go on with another checkpoint of the same geometry; all that is cached is forgotten.

    ``load`` as `load_model`; ``codec`` is what texts have been read with. Returns what the checkpoint says
    about generating. Raises ValueError for another geometry, tokenizer or chat template, RuntimeError while
    requests are running or waiting.
    """
    if engine.has_work:
        raise RuntimeError("requests are running: wait for them, or abort them, to change weights")
    assert isinstance(engine.runner, ModelRunner)
    spec = engine.cache.spec
    loaded = load(folder, name=spec.name)
    if loaded.spec.fingerprint != spec.fingerprint:
        raise ValueError(f"{folder} has another geometry than {spec.name}: start a new worker")
    if loaded.tokenizer is not None and codec is not None and not codec.is_of(loaded.tokenizer):
        raise ValueError(f"{folder} has another tokenizer or chat template: start a new worker")
    engine.runner.model = loaded.model
    engine.flush()
    return loaded.generation
