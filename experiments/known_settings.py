"""The settings that configurations have, for naming those that they have not."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

import hybridcache.conf

CONF = Path(hybridcache.conf.__file__).parent
COMMANDS = ("replay", "capacity", "best_split")
"""The configurations that commands start from; serve.yaml has keys of its own."""

_UNKNOWN = re.compile(r"Could not override '([^']+)'")


def _of_commands() -> set[str]:
    """The settings as ``a.b`` that commands have whatever is chosen, and the groups of files."""
    names = {name for command in COMMANDS for name in _dotted(_read(CONF / f"{command}.yaml"))}
    return names | {path.parent.name for path in CONF.glob("*/*.yaml")} - {"experiment", "prices"}


def known_settings() -> dict[str, list[str]]:
    """All settings as ``a.b``; those of a group with the choices that have them, others with none."""
    known: dict[str, list[str]] = {name: [] for name in sorted(_of_commands())}
    for path in sorted(CONF.glob("*/*.yaml")):
        group, settings = path.parent.name, _read(path)
        if group in ("experiment", "baseline", "prices"):  # which hold settings of other groups, or none
            continue
        for name in _dotted(settings):
            known.setdefault(f"{group}.{name}", []).append(path.stem)
    return known


def unknown_setting(message: str, command: str) -> str | None:
    """What to say where Hydra could not override a setting of a command; None for its other messages."""
    found = _UNKNOWN.search(message)
    return None if found is None else f"{found[1]}: {_remedy(found[1], command)}"


def ignored_settings(config: Mapping[str, Any]) -> list[str]:
    """One line for each setting that was added to a configuration (``+key=value``) and that nobody reads."""
    known = _of_commands()
    tops = {name.partition(".")[0] for name in known} | {"figure"}  # conf/experiment/ adds that
    ignored = [key for key in config if key not in tops]
    for group in ("wandb", "worker"):  # groups of files are checked by who reads them
        ignored += [f"{group}.{key}" for key in config.get(group, {}) if f"{group}.{key}" not in known]
    return [f"{key} is ignored: {_remedy(key)}" for key in ignored]


def _remedy(key: str, command: str = "replay") -> str:
    known = known_settings()
    group, _, _ = key.partition(".")
    if choices := known.get(key):
        return f"no setting of the {group} chosen here; it belongs to {group}={', '.join(choices)}"
    if group in COMMANDS[1:] or group == "split":
        owner = "best_split" if group == "split" else group
        if owner != command:
            return f"a setting of python -m hybridcache.experiments.{owner}"
    if key in known:
        return f"the value names a setting that is not in it; +{key}.NAME=VALUE adds one"
    if key == "experiment":
        return "an experiment is added: +experiment=NAME, or python -m hybridcache.experiments.figures NAME"
    depth = key.count(".")
    alike = get_close_matches(key, [name for name in known if name.count(".") == depth], n=3, cutoff=0.7)
    alike = alike or get_close_matches(key, known, n=3, cutoff=0.7)
    hint = f"did you mean {' or '.join(alike)}" if alike else "README.md lists them"
    return f"no such setting; {hint}"


def _dotted(settings: Mapping[str, Any]) -> list[str]:
    """The names under ``settings``, Hydra's own left out."""
    names = []
    for key, value in settings.items():
        if key in ("defaults", "hydra"):
            continue
        names.append(str(key))
        if isinstance(value, Mapping):
            names += [f"{key}.{inner}" for inner in _dotted(value)]
    return names


def _read(path: Path) -> Mapping[str, Any]:
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    return settings if isinstance(settings, Mapping) else {}
