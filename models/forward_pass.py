"""What the layers of one forward pass share."""

from torch import Tensor

from hybridcache.kernels.ops import Ops
from hybridcache.kernels.packed import PackedBatch
from hybridcache.models.rope import Rope


class ForwardPass:
    """The batch of a pass, its embeddings, and what several layers use but one computes.

    Lives for one call of `HybridForCausalLM.forward`; holds nothing of a request beyond it.
    """

    __slots__ = ("batch", "ops", "embeddings", "aside", "_tables")

    def __init__(self, batch: PackedBatch, ops: Ops, embeddings: Tensor) -> None:
        self.batch = batch
        self.ops = ops
        self.embeddings = embeddings
        """[T, d_model]: what entered the first layer; shared blocks read it beside the hidden state."""
        self.aside: Tensor | None = None
        """[T, d_model]: what a block hands to the next residual layer, which adds it to what it reads."""
        self._tables: dict[Rope, tuple[Tensor, Tensor]] = {}

    def rotate(self, x: Tensor, rope: Rope) -> Tensor:
        """x [T, heads, head_dim] turned to its positions; the table of `rope` is computed once a pass."""
        if rope not in self._tables:
            self._tables[rope] = self.ops.rope_table(self.batch.positions, rope.inv_freq, rope.factor)
        return self.ops.rope(x, *self._tables[rope])
