"""Blocks made of other layers: side by side (Falcon-H1) and with shared weights (Zamba2)."""

from dataclasses import dataclass
from typing import ClassVar

from hybridcache.attention_layer import Attention
from hybridcache.flops import FlopTerm
from hybridcache.layer_kind import LayerKind, check_dimensions
from hybridcache.mlp_layer import Mlp
from hybridcache.state_tensor import StateTensor


@dataclass(frozen=True, slots=True)
class Parallel(LayerKind):
    """Mixers that read the same input and whose outputs are added: attention beside Mamba-2 in Falcon-H1."""

    kind: ClassVar[str] = "parallel"

    branches: tuple[LayerKind, ...]

    def __post_init__(self) -> None:
        names = [tensor.name for tensor in self.state_tensors]
        if not self.branches or len(names) != len(set(names)):
            raise ValueError(
                f"parallel: branches with the state tensors {names}; give one or more, with distinct names"
            )

    @property
    def state_tensors(self) -> tuple[StateTensor, ...]:
        """The branches' state tensors, in order."""
        return tuple(tensor for branch in self.branches for tensor in branch.state_tensors)

    @property
    def kv_tensors(self) -> tuple[StateTensor, ...]:
        """The branches' KV tensors, in order."""
        return tuple(tensor for branch in self.branches for tensor in branch.kv_tensors)

    @property
    def flop_terms(self) -> tuple[FlopTerm, ...]:
        """The branches' terms, in order."""
        return tuple(term for branch in self.branches for term in branch.flop_terms)


@dataclass(frozen=True, slots=True)
class SharedBlock(LayerKind):
    """One call of a transformer block whose weights several calls share; every call keeps its own KV.

    Zamba2: `block` numbers the shared weights. The call's own weights are a d_model x d_model output matrix
    and low-rank adapters of `adapter_rank` on the MLP's input matrix and, with `attention_adapters`, on Q, K
    and V.
    """

    kind: ClassVar[str] = "shared_block"

    d_model: int
    block: int
    attention: Attention
    mlp: Mlp
    adapter_rank: int = 0
    attention_adapters: bool = False

    def __post_init__(self) -> None:
        check_dimensions(self, d_model=self.d_model)
        check_dimensions(self, at_least=0, block=self.block, adapter_rank=self.adapter_rank)

    @property
    def kv_tensors(self) -> tuple[StateTensor, ...]:
        """This call's own K and V."""
        return self.attention.kv_tensors

    @property
    def flop_terms(self) -> tuple[FlopTerm, ...]:
        """The shared attention and MLP, and the call's own weights."""
        attention, mlp = self.attention, self.mlp
        mlp_columns = (2 if mlp.gated else 1) * mlp.d_ff
        adapters = 2 * self.adapter_rank * (self.d_model + mlp_columns)
        if self.attention_adapters:
            width = self.d_model if attention.input_width is None else attention.input_width
            heads = attention.num_heads + 2 * attention.num_kv_heads
            adapters += 2 * self.adapter_rank * (3 * width + heads * attention.head_dim)
        own = FlopTerm("adapters", per_token=2 * self.d_model * self.d_model + adapters)
        return (*attention.flop_terms, *mlp.flop_terms, own)
