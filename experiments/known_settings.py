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


def known_settings() -> dict[str, list[str]]:
    """All settings as ``a.b``; those of a group with the choices that have them, others with none."""
    known: dict[str, list[str]] = {}
    for command in COMMANDS:
        for name in _dotted(_read(CONF / f"{command}.yaml")):
            known.setdefault(name, [])
    for path in sorted(CONF.glob("*/*.yaml")):
        group, settings = path.parent.name, _read(path)
        if group in ("experiment", "baseline", "prices"):  # which hold settings of other groups, or none
            continue
        known.setdefault(group, [])
        for name in _dotted(settings):
            known.setdefault(f"{group}.{name}", []).append(path.stem)
    known["baseline"] = []
    return known


def unknown_setting(message: str) -> str | None:
    """What to say where Hydra could not override a setting; None for its other messages."""
    found = _UNKNOWN.search(message)
    return None if found is None else f"{found[1]}: {_remedy(found[1])}"


def ignored_settings(config: Mapping[str, Any]) -> list[str]:
    """One line for each setting that was added to a configuration (``+key=value``) and that nobody reads."""
    known = known_settings()
    tops = {name.partition(".")[0] for name in known} | {"figure"}  # conf/experiment/ adds that
    return [f"{key}={value} is ignored: {_remedy(key)}" for key, value in config.items() if key not in tops]


def _remedy(key: str) -> str:
    known = known_settings()
    group, _, _ = key.partition(".")
    if key in known and not known[key]:
        return f"the value names a setting that is not in it; +{key}.NAME=VALUE adds one"
    if choices := known.get(key):
        return f"no setting of the {group} chosen here; it belongs to {group}={', '.join(choices)}"
    alike = get_close_matches(key, known, n=3, cutoff=0.7)
    if not alike:
        own = [name for name in known if name.startswith(f"{group}.")]
        alike = own if "." in key and len(own) <= 12 else []
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
