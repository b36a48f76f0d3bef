"""`hybridcache trace`: describe a trace, or convert it to the native format."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

import hybridcache.conf
from hybridcache.experiments.describe import as_text, describe
from hybridcache.experiments.traces.kind_of_file import kind_of
from hybridcache.experiments.traces.npz_writer import write_npz
from hybridcache.experiments.traces.open import FILE_KINDS, GENERATORS, open_trace
from hybridcache.experiments.traces.request import Trace
from hybridcache.policies.build import build_admission
from hybridcache.spec import ModelSpec

CONF = Path(hybridcache.conf.__file__).parent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The two actions and what they take."""
    actions = parser.add_subparsers(dest="action", required=True)
    shown = actions.add_parser("describe", help="requests, bounds, branch points, reuse, working set")
    add_source(shown)
    shown.add_argument(
        "--model", default="nvidia_hybrid_7b", help="geometry: a name of conf/model/ or a file"
    )
    shown.add_argument("--admission", default="branch_and_final", help="where checkpoints are taken")
    shown.add_argument("--json", action="store_true", help="print JSON")
    converted = actions.add_parser("convert", help="write hybridcache-trace-1")
    add_source(converted)
    converted.add_argument("--out", type=Path, required=True, help="the .npz file to write")


def run(options: argparse.Namespace) -> str:
    """What to print. Raises ValueError and OSError as `open_trace` does."""
    return _describe(options) if options.action == "describe" else _convert(options)


def add_source(parser: argparse.ArgumentParser) -> None:
    """What `trace_of` takes."""
    parser.add_argument("source", help=f"a trace file, or a generator: {', '.join(GENERATORS)}")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="as in conf/trace/, e.g. limit=100")
    parser.add_argument(
        "--kind", choices=FILE_KINDS, help="of the file (default: told by its name and first row)"
    )


def trace_of(source: str, kind: str | None, settings: Sequence[str]) -> Trace:
    """The trace that a command line names. Raises ValueError and OSError as `open_trace` does."""
    given: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"{setting!r}: give settings as KEY=VALUE")
        name = key.removeprefix("trace.")
        if name in given or name in ("kind", "path"):
            raise ValueError(f"{setting!r}: {name} is given already")
        given[name] = yaml_of(value, setting)
    kind = kind or kind_of(source)
    path = {} if kind in GENERATORS else {"path": source}
    opener: Callable[..., Trace] = open_trace
    return opener(kind, **path, **given)


def model_of(name: str) -> ModelSpec:
    """The geometry of a name in conf/model/, a YAML file, or a transformers config.json."""
    path = CONF / "model" / f"{name}.yaml"
    if not path.is_file():
        path = Path(name)
        if path.suffix == ".json":
            return ModelSpec.from_hf(path)
        if not path.is_file():
            known = ", ".join(sorted(file.stem for file in (CONF / "model").glob("*.yaml")))
            raise ValueError(f"model={name} is unknown; choose one of {known}, or give a file")
    return ModelSpec.from_config(yaml_of(path.read_bytes(), name))


def yaml_of(text: str | bytes, where: str) -> Any:
    """What YAML makes of ``text``. Raises ValueError that begins with ``where``."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{where}: not YAML ({' '.join(str(error).split())})") from error


def _describe(options: argparse.Namespace) -> str:
    trace = trace_of(options.source, options.kind, options.settings)
    found = describe(trace, model_of(options.model), build_admission(options.admission))
    return json.dumps(found, indent=2) if options.json else as_text(found)


def _convert(options: argparse.Namespace) -> str:
    if options.out.suffix != ".npz":
        raise ValueError(f"--out {options.out}: the native format is .npz")
    if not options.out.parent.is_dir():
        raise ValueError(f"--out {options.out}: there is no folder {options.out.parent}; make it first")
    trace = trace_of(options.source, options.kind, options.settings)
    written = write_npz(trace, options.out)
    return (
        f"{options.out}: {written.requests:,} requests, {written.segments:,} distinct messages, "
        f"{written.tokens:,} tokens"
    )
