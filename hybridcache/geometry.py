"""Reads a geometry: a mapping of dimensions, as the files of conf/model/ hold them.

    name: small                 # any text
    d_model: 128                # for every layer, as kv_dtype, ssm_dtype, conv_dtype, conv_width_stored
    vocab_size: 4096
    layers:                     # a name of your choice: its kind and its dimensions
      mixer: {kind: mamba2, nheads: 8, headdim: 32, d_state: 32, ngroups: 1, d_conv: 4}
      mlp: {kind: mlp, d_ff: 256}
    pattern:                    # the order; an item is a layer's name or a repeated list of items
      - {repeat: 3, layers: [mixer, mlp]}

A field that holds layers (`branches`, `attention`, `mlp`) names them.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hybridcache.layers import LAYER_KINDS, LayerKind
from hybridcache.state_tensor import dtype_bytes

_SHARED_KEYS = ("d_model", "kv_dtype", "ssm_dtype", "conv_dtype", "conv_width_stored")
_KEYS = ("name", "vocab_size", *_SHARED_KEYS, "layers", "pattern")


class GeometryLayers(NamedTuple):
    """What a geometry says: its name, widths in elements and tokens, and its layers in order."""

    name: str
    d_model: int
    vocab_size: int
    layers: tuple[LayerKind, ...]


def geometry_layers(geometry: Mapping[str, object]) -> GeometryLayers:
    """Reads `geometry`, laid out as the module says.

    Raises ValueError naming the geometry, the key, its value and the remedy.
    """
    if not isinstance(geometry, Mapping):
        raise ValueError(f"geometry is {geometry!r}; give a mapping with the keys {', '.join(_KEYS)}")
    name = geometry.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"geometry: name is {name!r}; give it a name")
    where = f"geometry {name!r}"
    for key in geometry:
        if key not in _KEYS:
            raise ValueError(f"{where}: key {key!r} is unknown; the keys are {', '.join(_KEYS)}")
    shared = {key: geometry[key] for key in _SHARED_KEYS if key in geometry}
    for key, value in shared.items():
        if key.endswith("_dtype"):
            _check_dtype(where, key, value)
    definitions = geometry.get("layers")
    if not isinstance(definitions, Mapping) or not definitions:
        raise ValueError(f"{where}: layers is {definitions!r}; map layer names to kinds and dimensions")
    built: dict[str, LayerKind] = {}
    for layer_name in definitions:
        _build_layer(where, str(layer_name), definitions, shared, built, ())
    order = _expand(where, geometry.get("pattern"), built)
    return GeometryLayers(
        name, _integer(where, geometry, "d_model"), _integer(where, geometry, "vocab_size"), order
    )


def _integer(where: str, geometry: Mapping[str, object], key: str) -> int:
    value = geometry.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{where}: {key} is {value!r}; it must be an integer")
    return value


def _check_dtype(where: str, key: str, value: object) -> None:
    try:
        dtype_bytes(str(value))
    except ValueError as error:
        raise ValueError(f"{where}: {key}: {error}") from None


def _build_layer(
    where: str,
    name: str,
    definitions: Mapping[str, object],
    shared: Mapping[str, object],
    built: dict[str, LayerKind],
    users: tuple[str, ...],
) -> LayerKind:
    """Builds layer `name`, and first those it is made of; `users` are the layers being built around it."""
    if name in built:
        return built[name]
    if name in users:
        raise ValueError(f"{where}: layer {name!r} contains itself through {' -> '.join((*users, name))}")
    definition = definitions.get(name)
    if not isinstance(definition, Mapping):
        raise ValueError(
            f"{where}: layer {name!r} is {definition!r}; the layers are {', '.join(definitions)}"
        )
    kind = definition.get("kind")
    if not isinstance(kind, str) or kind not in LAYER_KINDS:
        raise ValueError(f"{where}: layer {name!r} has kind {kind!r}; the kinds are {', '.join(LAYER_KINDS)}")
    cls = LAYER_KINDS[kind]
    assert dataclasses.is_dataclass(cls)
    types = {item.name: item.type for item in dataclasses.fields(cls)}
    given = {key: value for key, value in definition.items() if key != "kind"}
    for key, value in given.items():
        if key not in types:
            raise ValueError(
                f"{where}: layer {name!r} has {key!r}; the fields of {kind} are {', '.join(types)}"
            )
        if str(key).endswith("_dtype"):
            _check_dtype(where, f"{name}.{key}", value)
        if types[key] is bool and not isinstance(value, bool):
            raise ValueError(f"{where}: layer {name!r} has {key} {value!r}; it must be true or false")
    values = {key: value for key, value in shared.items() if key in types} | given
    parts = (*users, name)
    for key in ("attention", "mlp"):
        if key in types and key in values:
            values[key] = _build_layer(where, str(values[key]), definitions, shared, built, parts)
            if values[key].kind != key:
                raise ValueError(
                    f"{where}: layer {name!r} has {key} of kind {values[key].kind!r}; it must be {key!r}"
                )
    if "branches" in types:
        names = _items(f"{where}: layer {name!r}: branches", values.get("branches"))
        values["branches"] = tuple(
            _build_layer(where, str(n), definitions, shared, built, parts) for n in names
        )
    for item in dataclasses.fields(cls):
        if item.name not in values and item.default is dataclasses.MISSING:
            raise ValueError(f"{where}: layer {name!r} lacks {item.name}; a {kind} layer needs it")
    try:
        built[name] = cls(**values)
    except ValueError as error:
        raise ValueError(f"{where}: layer {name!r}: {error}") from None
    return built[name]


def _expand(where: str, pattern: object, built: Mapping[str, LayerKind]) -> tuple[LayerKind, ...]:
    """The layers of `pattern` in order, repeats written out."""
    layers: list[LayerKind] = []
    for item in _items(f"{where}: pattern", pattern):
        if isinstance(item, Mapping):
            repeat = item.get("repeat")
            if (
                set(item) != {"repeat", "layers"}
                or isinstance(repeat, bool)
                or not isinstance(repeat, int)
                or repeat < 1
            ):
                raise ValueError(
                    f"{where}: pattern item {dict(item)!r}; write {{repeat: N, layers: [...]}} with N >= 1"
                )
            layers.extend(_expand(where, item["layers"], built) * repeat)
        elif isinstance(item, str) and item in built:
            layers.append(built[item])
        else:
            raise ValueError(f"{where}: pattern names {item!r}; the layers are {', '.join(built)}")
    return tuple(layers)


def _items(where: str, value: object) -> Sequence[object]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise ValueError(f"{where} is {value!r}; it must be a list with at least one item")
    return value
