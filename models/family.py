"""A family of models as a table: where its weights are, and the few things it does differently."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hybridcache.hf_config import HfConfig
from hybridcache.layers import LayerKind
from hybridcache.models.layer import LayerPlan
from hybridcache.models.options import number
from hybridcache.models.residual import LAYER, NORM, ResidualPlan


class Place(NamedTuple):
    """Where the weights of one kind of layer are within their block, and how it is planned.

    `names` gives what a layer's name begins with, and what the checkpoint has instead; the first that fits
    counts. `norm` is the block's name of the norm before the layer; None: the plan brings its own frame, and
    is not wrapped in `x + layer(norm(x))`.
    """

    prefix: str
    norm: str | None
    plan: Callable[[HfConfig, LayerKind], LayerPlan]
    names: Mapping[str, str] = {}

    def resolve(self, block: str, name: str) -> str:
        """The checkpoint's name of a planned layer's weight `name` in the block that begins with `block`."""
        if self.norm is not None:
            if name.startswith(NORM):
                return block + self.norm + name.removeprefix(NORM)
            name = name.removeprefix(LAYER)
        for own, theirs in self.names.items():
            if name.startswith(own):
                return block + self.prefix + theirs + name.removeprefix(own)
        return block + self.prefix + name


def in_pairs(layers: Sequence[LayerKind]) -> list[int]:
    """A block is a mixer and a feed-forward layer."""
    return [index // 2 for index in range(len(layers))]


def one_each(layers: Sequence[LayerKind]) -> list[int]:
    """A block is one layer."""
    return list(range(len(layers)))


@dataclass(frozen=True, slots=True)
class Family:
    """One row of the table of families.

    Names of weights are the checkpoint's; names of options are fields of config.json, and an option that is
    None does not exist in the family.
    """

    places: Mapping[str, Place]
    """By `LayerKind.kind`."""
    embedding: str = "model.embed_tokens.weight"
    final_norm: str = "model.norm.weight"
    head: str = "lm_head.weight"
    block: str = "model.layers.{}."
    blocks: Callable[[Sequence[LayerKind]], list[int]] = in_pairs
    """The block of each layer."""
    eps: str = "rms_norm_eps"
    default_eps: float = 1e-6
    unit_offset: bool = False
    """Norms multiply by 1 + weight."""
    ties: bool = True
    """`tie_word_embeddings` makes the head the embedding."""
    embedding_multiplier: str | None = None
    residual_multiplier: str | None = None
    head_multiplier: str | None = None
    head_divisor: str | None = None
    wide_residual: str | None = None
    """The field that keeps the hidden state in float32."""
    wide_residual_default: bool = False
    renames: tuple[tuple[str, str], ...] = ()
    """Beginnings of names that older checkpoints have, and the current ones."""
    ignored: tuple[str, ...] = ()
    """Patterns of weights that may be there and are not used."""
    required: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Values that a field must have where it is set."""

    def check(self, config: HfConfig) -> None:
        """Raises ValueError naming a field whose value is not supported."""
        for name, allowed in {"quantization_config": (), **self.required}.items():
            if config.has(name) and config.fields[name] not in allowed:
                raise config.error(name, " or ".join(repr(value) for value in allowed) or "absent")

    def factor(self, config: HfConfig, name: str | None) -> float:
        """The number in field `name`; 1 where the family or the config has none."""
        return 1.0 if name is None else number(config, name, 1.0)

    def plans(
        self, config: HfConfig, layers: Sequence[LayerKind]
    ) -> list[tuple[LayerPlan, Callable[[str], str]]]:
        """The plan of each layer, and how its names become the checkpoint's.

        Raises ValueError for a kind of layer that the family does not have, and for unsupported options.
        """
        eps = number(config, self.eps, self.default_eps)
        multiplier = self.factor(config, self.residual_multiplier)
        plans: list[tuple[LayerPlan, Callable[[str], str]]] = []
        for index, (kind, block) in enumerate(zip(layers, self.blocks(layers), strict=True)):
            place = self.places.get(kind.kind)
            if place is None:
                raise ValueError(
                    f"{config.where}: layer {index} is of kind {kind.kind!r}; "
                    f"this family has {', '.join(self.places)}"
                )
            plan = place.plan(config, kind)
            if place.norm is not None:
                width = config.integer("hidden_size")
                plan = ResidualPlan(plan, width, eps, self.unit_offset, multiplier)
            plans.append((plan, _resolver(place, self.block.format(block))))
        return plans


def _resolver(place: Place, block: str) -> Callable[[str], str]:
    return lambda name: place.resolve(block, name)
