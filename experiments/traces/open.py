"""Open a trace by its kind, with everything checked before the first request."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from hybridcache.experiments.traces.agent import Agent, AgentSettings
from hybridcache.experiments.traces.chat import Chat, ChatSettings
from hybridcache.experiments.traces.few_shot import FewShot, FewShotSettings
from hybridcache.experiments.traces.generated import GeneratedTrace
from hybridcache.experiments.traces.marconi import MarconiTrace
from hybridcache.experiments.traces.mooncake import BLOCK_TOKENS, DEFAULT_MIN_BLOCKS, MooncakeTrace
from hybridcache.experiments.traces.npz import NpzTrace
from hybridcache.experiments.traces.rag import Rag, RagSettings
from hybridcache.experiments.traces.request import Trace
from hybridcache.experiments.traces.scan import Scan, ScanSettings
from hybridcache.experiments.traces.tree_search import TreeSearch, TreeSearchSettings
from hybridcache.experiments.traces.workload import Workload, WorkloadSettings

FILE_KINDS = ("npz", "mooncake", "marconi")
GENERATORS: Mapping[str, tuple[type[WorkloadSettings], Callable[[Any], Workload]]] = {
    "chat": (ChatSettings, Chat),
    "agent": (AgentSettings, Agent),
    "few_shot": (FewShotSettings, FewShot),
    "rag": (RagSettings, Rag),
    "tree_search": (TreeSearchSettings, TreeSearch),
    "scan": (ScanSettings, Scan),
}


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
        kind: npz, mooncake, marconi (files); chat, agent, few_shot, rag, tree_search, scan (generators).
        path: the file; generators have none.
        stitch: mooncake only; None means true.
        every_kth_session: keep sessions 0, k, 2k, ... with all their requests.
        min_blocks: mooncake only, blocks: shortest match that makes a continuation, and the blocks that a
            session's requests share; None means 2. Use 1 for the synthetic trace.
        limit: then keep so many requests; None keeps all.
        seed: generators only.
        settings: of the generator; `block_tokens` for mooncake.

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
    _ignored(kind, seed=seed)
    if kind == "mooncake":
        block_tokens = settings.pop("block_tokens", BLOCK_TOKENS)
        _check_known(kind, settings, ["block_tokens"])
        return MooncakeTrace(
            path,
            stitch=stitch is not False,
            min_blocks=min_blocks or DEFAULT_MIN_BLOCKS,
            every_kth_session=every_kth_session,
            limit=limit,
            block_tokens=_check_integer("block_tokens", block_tokens, 1),
        )
    _ignored(kind, stitch=stitch, min_blocks=min_blocks)
    _check_known(kind, settings, [])
    reader = NpzTrace if kind == "npz" else MarconiTrace
    return reader(path, every_kth_session=every_kth_session, limit=limit)


def _generate(kind: str, seed: int, every_kth: int, limit: int | None, settings: dict[str, Any]) -> Trace:
    settings_type, workload_type = GENERATORS[kind]
    _check_known(kind, settings, [field.name for field in fields(settings_type)])
    return GeneratedTrace(kind, workload_type(settings_type(**settings)), seed, every_kth, limit)


def _check_integer(name: str, value: object, low: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ValueError(f"trace.{name} must be an integer of {low} or more, got {value!r}")
    return value


def _check_known(kind: str, settings: Mapping[str, object], known: list[str]) -> None:
    if unknown := sorted(set(settings) - set(known)):
        raise ValueError(
            f"trace.{unknown[0]} is no setting of trace={kind}, whose own are: {', '.join(known) or 'none'}"
        )


def _ignored(kind: str, **settings: object) -> None:
    for name, value in settings.items():
        if value:
            warnings.warn(f"trace.{name}={value} is ignored: trace={kind} does not use it", stacklevel=3)
