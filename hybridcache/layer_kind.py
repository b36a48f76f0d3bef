"""What every kind of layer declares, once: its state tensors, its KV per token, its FLOPs."""

from abc import ABC, abstractmethod
from typing import ClassVar

from hybridcache.flops import FlopTerm
from hybridcache.state_tensor import StateTensor


class LayerKind(ABC):
    """A layer as the cache sees it. Concrete kinds are frozen, slotted dataclasses of dimensions.

    models/ binds real layers to these declarations and declares nothing a second time. A kind may have any
    number of state tensors; bytes are only ever summed from the declarations. Subclasses set `kind` and
    override what they have: a layer without recurrent state has no state tensors, one without attention no
    KV tensors.
    """

    __slots__ = ()
    kind: ClassVar[str]

    @property
    def state_tensors(self) -> tuple[StateTensor, ...]:
        """The tensors of one checkpoint of this layer, in storage order."""
        return ()

    @property
    def kv_tensors(self) -> tuple[StateTensor, ...]:
        """The tensors kept for every token."""
        return ()

    @property
    @abstractmethod
    def flop_terms(self) -> tuple[FlopTerm, ...]:
        """The layer's work, part by part."""

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of one checkpoint of this layer."""
        return sum(tensor.num_bytes for tensor in self.state_tensors)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV for one token of this layer."""
        return sum(tensor.num_bytes for tensor in self.kv_tensors)

    def flops(self, start: int, stop: int) -> int:
        """FLOPs of computing tokens [start, stop) when [0, start) is cached."""
        return sum(term.flops(start, stop) for term in self.flop_terms)


def check_dimensions(layer: LayerKind, *, at_least: int = 1, **dimensions: int) -> None:
    """Raises ValueError, naming the kind, the field and the value, unless each is an int >= `at_least`."""
    for name, value in dimensions.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            raise ValueError(
                f"{layer.kind}: {name} is {value!r}; it must be an integer of at least {at_least}"
            )
