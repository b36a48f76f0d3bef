"""Open a trace by its kind, with everything checked before the first request."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypedDict

from hybridcache.experiments.traces.agent import Agent, AgentSettings
from hybridcache.experiments.traces.azure import AzureTrace
from hybridcache.experiments.traces.bailian import BLOCK_TOKENS as BAILIAN_BLOCK_TOKENS
from hybridcache.experiments.traces.bailian import BailianTrace
from hybridcache.experiments.traces.chat import Chat, ChatSettings
from hybridcache.experiments.traces.edited_agent import EditedAgent, EditedAgentSettings
from hybridcache.experiments.traces.few_shot import FewShot, FewShotSettings
from hybridcache.experiments.traces.generated import GeneratedTrace
from hybridcache.experiments.traces.marconi import MarconiTrace
from hybridcache.experiments.traces.mooncake import BLOCK_TOKENS, DEFAULT_MIN_BLOCKS, MooncakeTrace
from hybridcache.experiments.traces.npz import NpzTrace
from hybridcache.experiments.traces.prompts import PromptsTrace
from hybridcache.experiments.traces.rag import Rag, RagSettings
from hybridcache.experiments.traces.request import Trace
from hybridcache.experiments.traces.scan import Scan, ScanSettings
from hybridcache.experiments.traces.sharegpt import ShareGptTrace
from hybridcache.experiments.traces.tree_search import TreeSearch, TreeSearchSettings
from hybridcache.experiments.traces.workload import Workload, WorkloadSettings

FILE_KINDS = ("npz", "mooncake", "marconi", "bailian", "sharegpt", "azure", "prompts")
SHAREGPT_SETTINGS = ("sessions_per_second", "words_per_minute", "seconds_per_answer_token", "tokenizer")
GENERATORS: Mapping[str, tuple[type[WorkloadSettings], Callable[[Any], Workload]]] = {
    "chat": (ChatSettings, Chat),
    "agent": (AgentSettings, Agent),
    "edited_agent": (EditedAgentSettings, EditedAgent),
    "few_shot": (FewShotSettings, FewShot),
    "rag": (RagSettings, Rag),
    "tree_search": (TreeSearchSettings, TreeSearch),
    "scan": (ScanSettings, Scan),
}


class _Thinning(TypedDict):
    every_kth_session: int
    limit: int | None


def open_trace(
    kind: str,
    *,
    path: str | None = None,
    stitch: bool | None = None,
    every_kth_session: int = 1,
    min_blocks: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    **settings: object,
) -> Trace:
    """The trace described by one file of conf/trace.

    Args:
        kind: npz, mooncake, marconi, bailian, sharegpt, azure, prompts (files); chat, agent,
            edited_agent, few_shot, rag, tree_search, scan (generators).
        path: the file; generators have none.
        stitch: mooncake and bailian; None means true.
        every_kth_session: keep sessions 0, k, 2k, ... with all their requests.
        min_blocks: mooncake only, blocks: shortest match that makes a continuation, and the blocks that a
            session's requests share; None means 2. Use 1 for the synthetic trace.
        limit: then keep so many requests; None keeps all.
        seed: generators, sharegpt and azure.
        settings: of the generator; `block_tokens` for mooncake and bailian; `workload` for azure, a
            generator's `kind` and settings; SHAREGPT_SETTINGS for sharegpt; `tokenizer` for prompts.

    Raises:
        ValueError: a bad setting, or a bad file: the message names file, row and field.
        OSError: the file is missing, a directory, or may not be read.

    Warns:
        UserWarning: a setting this kind does not use.
    """
    if kind not in FILE_KINDS and kind not in GENERATORS:
        known = ", ".join([*FILE_KINDS, *GENERATORS])
        raise ValueError(f"trace.kind = {kind!r} is unknown; choose one of {known}")
    _check_integer("every_kth_session", every_kth_session, 1)
    _check_integer("seed", seed, 0)
    if limit is not None:
        _check_integer("limit", limit, 1)
    if min_blocks is not None:
        _check_integer("min_blocks", min_blocks, 1)
    if stitch is not None and not isinstance(stitch, bool):
        raise ValueError(f"trace.stitch must be true or false, got {stitch!r}")
    if kind in GENERATORS:
        _ignored(kind, path=path, stitch=stitch, min_blocks=min_blocks)
        return _generate(kind, seed, every_kth_session, limit, settings)
    thinning: _Thinning = {"every_kth_session": every_kth_session, "limit": limit}
    if kind == "azure":
        _ignored(kind, stitch=stitch, min_blocks=min_blocks)
        workload = _workload_under(settings.pop("workload", {"kind": "chat"}))
        _check_known(kind, settings, ["workload"])
        return AzureTrace(path, workload, seed, **thinning)
    if kind == "sharegpt":
        _ignored(kind, stitch=stitch, min_blocks=min_blocks)
        _check_known(kind, settings, list(SHAREGPT_SETTINGS))
        given: dict[str, Any] = settings
        return ShareGptTrace(path, **thinning, seed=seed, **given)
    _ignored(kind, seed=seed)
    if kind == "prompts":
        _ignored(kind, stitch=stitch, min_blocks=min_blocks)
        _check_known(kind, settings, ["tokenizer"])
        texts: dict[str, Any] = settings
        return PromptsTrace(path, **thinning, **texts)
    if kind == "bailian":
        _ignored(kind, min_blocks=min_blocks)
        block_tokens = settings.pop("block_tokens", BAILIAN_BLOCK_TOKENS)
        _check_known(kind, settings, ["block_tokens"])
        return BailianTrace(
            path,
            stitch is not False,
            **thinning,
            block_tokens=_check_integer("block_tokens", block_tokens, 1),
        )
    if kind == "mooncake":
        block_tokens = settings.pop("block_tokens", BLOCK_TOKENS)
        _check_known(kind, settings, ["block_tokens"])
        return MooncakeTrace(
            path,
            stitch=stitch is not False,
            min_blocks=min_blocks or DEFAULT_MIN_BLOCKS,
            **thinning,
            block_tokens=_check_integer("block_tokens", block_tokens, 1),
        )
    _ignored(kind, stitch=stitch, min_blocks=min_blocks)
    _check_known(kind, settings, [])
    reader = NpzTrace if kind == "npz" else MarconiTrace
    return reader(path, **thinning)


def _generate(kind: str, seed: int, every_kth: int, limit: int | None, settings: dict[str, Any]) -> Trace:
    return GeneratedTrace(kind, _workload(kind, settings), seed, every_kth, limit)


def _workload(kind: str, settings: dict[str, Any], under: str = "trace") -> Workload:
    settings_type, workload_type = GENERATORS[kind]
    _check_known(kind, settings, [field.name for field in fields(settings_type)], under)
    return workload_type(settings_type(**settings))


def _workload_under(given: object) -> Workload:
    """The generator whose contents lie under arrivals and lengths."""
    settings = dict(given) if isinstance(given, Mapping) else {}
    kind = settings.pop("kind", None)
    known = [name for name in GENERATORS if name != "tree_search"]  # its inputs end with what others share
    if kind not in known:
        raise ValueError(f"trace.workload.kind = {kind!r}; choose one of {', '.join(known)}")
    return _workload(kind, settings, "trace.workload")


def _check_integer(name: str, value: object, low: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ValueError(f"trace.{name} must be an integer of {low} or more, got {value!r}")
    return value


def _check_known(kind: str, settings: Mapping[str, object], known: list[str], under: str = "trace") -> None:
    if unknown := sorted(set(settings) - set(known)):
        chosen = f"{under}={kind}" if under == "trace" else f"{under}.kind={kind}"
        raise ValueError(
            f"{under}.{unknown[0]} is no setting of {chosen}, whose own are: {', '.join(known) or 'none'}"
        )


def _ignored(kind: str, **settings: object) -> None:
    for name, value in settings.items():
        if value:
            warnings.warn(f"trace.{name}={value} is ignored: trace={kind} does not use it", stacklevel=3)
