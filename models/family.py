"""A family of models as a table: where its weights are, and the few things it does differently."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hybridcache.hf_config import HfConfig
from hybridcache.layers import LayerKind, SharedBlock
from hybridcache.models.layer import LayerPlan
from hybridcache.models.options import number
from hybridcache.models.residual import LAYER, NORM, ResidualPlan

CONV_WIDTHS = ("mamba_d_conv", "conv_kernel", "linear_conv_kernel_dim")
"""Fields with the tokens that a convolution sees. Of one it would have no state, which the layers expect."""


class Site(NamedTuple):
    """Where a layer stands in its model."""

    role: str
    """Its key in `Family.places`: its kind, unless one kind stands in several ways."""
    block: int
    """The checkpoint's number of the block it belongs to."""
    call: int = 0
    """Calls of shared blocks before this one."""
    home: int = 0
    """The block under which the weights that it shares are stored."""


class Place(NamedTuple):
    """Where the weights of one kind of layer are within their block, and how it is planned.

    `names` gives what a layer's name begins with, and what the checkpoint has instead; the first that fits
    counts. `shared` does so for weights in the layer's home block, `{call}` standing for its call. `norm` is
    the block's name of the norm before the layer; None: the plan brings its own frame, and is not wrapped in
    `x + layer(norm(x))`.
    """

    prefix: str
    norm: str | None
    plan: Callable[[HfConfig, LayerKind], LayerPlan]
    names: Mapping[str, str] = {}
    shared: Mapping[str, str] = {}

    def resolve(self, block: str, site: Site, name: str) -> str:
        """The checkpoint's name of a planned layer's weight `name`; `block` as in `Family.block`."""
        here = block.format(site.block)
        if self.norm is not None:
            if name.startswith(NORM):
                return here + self.norm + name.removeprefix(NORM)
            name = name.removeprefix(LAYER)
        for own, theirs in self.shared.items():
            if name.startswith(own):
                home = block.format(site.home) + self.prefix
                return home + theirs.format(call=site.call) + name.removeprefix(own)
        for own, theirs in self.names.items():
            if name.startswith(own):
                return here + self.prefix + theirs + name.removeprefix(own)
        return here + self.prefix + name


def in_pairs(layers: Sequence[LayerKind]) -> list[Site]:
    """A block is a mixer and a feed-forward layer."""
    return [Site(layer.kind, index // 2) for index, layer in enumerate(layers)]


def one_each(layers: Sequence[LayerKind]) -> list[Site]:
    """A block is one layer."""
    return [Site(layer.kind, index) for index, layer in enumerate(layers)]


def with_calls(layers: Sequence[LayerKind]) -> list[Site]:
    """A block is a mixer, before which a shared block may be called; such a mixer's role is "called"."""
    sites: list[Site] = []
    homes: dict[int, int] = {}
    block = calls = 0
    for layer in layers:
        if isinstance(layer, SharedBlock):
            sites.append(Site(layer.kind, block, calls, homes.setdefault(layer.block, block)))
            calls += 1
            continue
        after_call = bool(sites) and sites[-1].role == SharedBlock.kind
        sites.append(Site("called" if after_call else layer.kind, block))
        block += 1
    return sites


@dataclass(frozen=True, slots=True)
class Family:
    """One row of the table of families.

    Names of weights are the checkpoint's; names of options are fields of config.json, and an option that is
    None does not exist in the family.
    """

    places: Mapping[str, Place]
    """By `Site.role`."""
    embedding: str = "model.embed_tokens.weight"
    final_norm: str = "model.norm.weight"
    head: str = "lm_head.weight"
    block: str = "model.layers.{}."
    sites: Callable[[Sequence[LayerKind]], list[Site]] = in_pairs
    """Where each layer stands."""
    eps: str = "rms_norm_eps"
    default_eps: float = 1e-6
    unit_offset: bool = False
    """Norms multiply by 1 + weight."""
    ties: bool = True
    """`tie_word_embeddings` makes the head the embedding."""
    tied_default: bool = False
    """What it is where the config does not say."""
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
        for name in CONV_WIDTHS:
            config.integer(name, 2, at_least=2)

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
        if eps < 0:
            raise config.error(self.eps, "at least 0")
        multiplier = self.factor(config, self.residual_multiplier)
        plans: list[tuple[LayerPlan, Callable[[str], str]]] = []
        for index, (kind, site) in enumerate(zip(layers, self.sites(layers), strict=True)):
            place = self.places.get(site.role)
            if place is None:
                raise ValueError(
                    f"{config.where}: layer {index} is of kind {kind.kind!r}; "
                    f"this family has {', '.join(self.places)}"
                )
            plan = place.plan(config, kind)
            if place.norm is not None:
                width = config.integer("hidden_size")
                plan = ResidualPlan(plan, width, eps, self.unit_offset, multiplier)
            plans.append((plan, _resolver(place, self.block, site)))
        return plans


def _resolver(place: Place, block: str, site: Site) -> Callable[[str], str]:
    return lambda name: place.resolve(block, site, name)
