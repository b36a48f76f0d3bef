"""A toy model whose bits cannot depend on where a sequence is cut or on what else a batch holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hybridcache.flops import FlopTerm
from hybridcache.kernels.packed import PackedBatch, PackedSequence
from hybridcache.layer_kind import LayerKind
from hybridcache.spec import ModelSpec
from hybridcache.state_tensor import StateTensor

WIDTH = 8
"""Of the hidden state."""
VOCAB = 1_024


@dataclass(frozen=True, slots=True)
class AnyLayer(LayerKind):
    """A layer with whatever state and KV tensors a test gives it; KV is "key" and "value" of one shape."""

    kind: ClassVar[str] = "any"
    states: tuple[StateTensor, ...] = ()
    kv: tuple[StateTensor, ...] = ()

    @property
    def state_tensors(self) -> tuple[StateTensor, ...]:
        return self.states

    @property
    def kv_tensors(self) -> tuple[StateTensor, ...]:
        return self.kv

    @property
    def flop_terms(self) -> tuple[FlopTerm, ...]:
        return (FlopTerm("work", per_token=1_000, per_pair=2 if self.kv else 0),)


def attention(dtype: str = "float32", width: int = 2) -> AnyLayer:
    shape = (width, WIDTH // 2)
    return AnyLayer(kv=(StateTensor("key", shape, dtype), StateTensor("value", shape, dtype)))


ONE = AnyLayer((StateTensor("memory", (3, 5), "float32"),))
TWO = AnyLayer(
    (StateTensor("conv_state", (6, 3), "bfloat16"), StateTensor("ssm_state", (2, 3, 2), "float32"))
)
FOUR = AnyLayer(
    (
        StateTensor("half", (6, 2), "float16"),
        StateTensor("sums", (3,), "float64"),
        StateTensor("counts", (4, 2), "bfloat16"),
        StateTensor("gates", (2, 3, 2), "float32"),
    )
)
BOTH = AnyLayer(ONE.states, attention().kv)
LAYERS: Mapping[str, tuple[AnyLayer, ...]] = {
    "hybrid": (TWO, attention(), TWO),
    "any": (ONE, TWO, FOUR, attention("bfloat16", 3), BOTH, ONE),
    "recurrent": (TWO, ONE),
    "attention": (attention(), attention("bfloat16")),
}
SPECS = {name: ModelSpec(name, layers, WIDTH, VOCAB) for name, layers in LAYERS.items()}


class ToyModel:
    """Goes through a batch token by token, with vectors of one token only.

    A state tensor decays and takes in the hidden state; an attention layer reads all KV up to its token from
    the blocks. Like a real model it reads and writes states where the batch says, and nothing else.
    """

    def __init__(self, spec: ModelSpec) -> None:
        generator = torch.Generator().manual_seed(3)
        self.spec = spec
        self.embedding = torch.randn(VOCAB, WIDTH, generator=generator)
        self.head = torch.randn(VOCAB, WIDTH, generator=generator)
        self.mix = torch.randn(64, WIDTH, generator=generator)
        self.num_tokens = 0
        """Tokens computed so far."""

    def forward(
        self,
        token_ids: Tensor,
        batch: PackedBatch,
        state: Sequence[Mapping[str, Tensor]],
        logits_at: Tensor,
        /,
    ) -> Tensor:
        self.num_tokens += len(token_ids)
        hidden = torch.empty(len(token_ids), WIDTH)
        for index, sequence in enumerate(batch.sequences):
            self._start(sequence, state)
            emits = dict(sequence.emits)
            for row in range(sequence.start, sequence.stop):
                x = self.embedding[token_ids[row]]
                for layer, views in zip(self.spec.layers, state, strict=True):
                    x = x + self._attend(views, batch, index, row, x) if layer.kv_tensors else x
                    for tensor in layer.state_tensors:
                        x = x + self._recur(views[tensor.name][sequence.slot], x)
                hidden[row] = x
                target = emits.get(row - sequence.start + 1)
                if target is not None:
                    self._copy(state, sequence.slot, target)
        if not len(logits_at):
            return torch.empty(0, VOCAB)
        return torch.stack([self.head @ hidden[row] for row in logits_at.tolist()])

    def _start(self, sequence: PackedSequence, state: Sequence[Mapping[str, Tensor]]) -> None:
        if sequence.has_state or sequence.slot < 0:
            return
        for layer, views in zip(self.spec.layers, state, strict=True):
            for tensor in layer.state_tensors:
                views[tensor.name][sequence.slot].zero_()

    def _copy(self, state: Sequence[Mapping[str, Tensor]], source: int, target: int) -> None:
        for layer, views in zip(self.spec.layers, state, strict=True):
            for tensor in layer.state_tensors:
                views[tensor.name][target] = views[tensor.name][source]

    def _recur(self, memory: Tensor, x: Tensor) -> Tensor:
        flat = memory.view(-1)
        now = flat.float() * 0.75 + (self.mix[: len(flat)] @ x).tanh()
        flat.copy_(now)
        return (self.mix[: len(flat)].T @ flat.float()).tanh()

    def _attend(
        self, views: Mapping[str, Tensor], batch: PackedBatch, index: int, row: int, x: Tensor
    ) -> Tensor:
        keys, values = views["key"], views["value"]
        place, position = int(batch.slot_mapping[row]), int(batch.positions[row])
        shape = keys.shape[2:]
        size = shape.numel()
        if place >= 0:
            block, offset = divmod(place, batch.block_size)
            keys[block, offset] = (self.mix[:size] @ x).view(shape)
            values[block, offset] = (self.mix[size : 2 * size] @ x).view(shape)
        table = batch.block_tables[index, : position // batch.block_size + 1]
        past = [cache[table].flatten(0, 1)[: position + 1].float().flatten(1) for cache in (keys, values)]
        weights = (past[0] @ (self.mix[2 * size : 3 * size] @ x)).softmax(0)
        return (self.mix[:size].T @ (weights @ past[1])).tanh()
