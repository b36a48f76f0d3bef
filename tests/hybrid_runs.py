"""Runs models over storage of a test's own: what a runner does, without cache and scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from hybridcache.kernels.packed import PackedBatch
from hybridcache.models.families import FAMILIES
from hybridcache.models.layer import LayerStates
from hybridcache.models.load import LoadedModel
from hybridcache.spec import ModelSpec
from hybridcache.state_tensor import StateTensor

BLOCK_SIZE = 16
"""Tokens."""


def quick_for(*quick: str) -> pytest.MarkDecorator:
    """Parametrises `family` over all families; those not named run under `full` only."""
    return pytest.mark.parametrize(
        "family", [pytest.param(f, marks=() if f in quick else pytest.mark.full) for f in FAMILIES]
    )


@dataclass(frozen=True)
class Part:
    """The new tokens of one sequence in one pass."""

    tokens: Tensor
    start: int = 0
    """Tokens before this pass."""
    slot: int = 0
    blocks: Sequence[int] = ()
    emits: tuple[tuple[int, int], ...] = ()
    """(tokens of this pass, slot)."""


@dataclass
class Memory:
    """NaN everywhere, with gaps between ids, as an id-first arena has them."""

    spec: ModelSpec
    num_slots: int = 8
    num_blocks: int = 64
    states: LayerStates = field(init=False)

    def __post_init__(self) -> None:
        self.states = [
            {
                **{t.name: _gapped((self.num_slots,), t) for t in layer.state_tensors},
                **{t.name: _gapped((self.num_blocks, BLOCK_SIZE), t) for t in layer.kv_tensors},
            }
            for layer in self.spec.layers
        ]

    def slot(self, index: int) -> list[Tensor]:
        """A copy of every state tensor of a slot."""
        return [
            views[tensor.name][index].clone()
            for layer, views in zip(self.spec.layers, self.states, strict=True)
            for tensor in layer.state_tensors
        ]

    def copy_slot(self, source: int, target: int) -> None:
        for layer, views in zip(self.spec.layers, self.states, strict=True):
            for tensor in layer.state_tensors:
                views[tensor.name][target] = views[tensor.name][source]

    def poison(self) -> None:
        """Overwrites everything with NaN."""
        for views in self.states:
            for view in views.values():
                view.fill_(torch.nan)

    def kv(self, blocks: Sequence[int], stop: int) -> list[Tensor]:
        """K and V of the tokens [0, stop) in `blocks`, every layer's."""
        return [
            views[tensor.name][list(blocks)].flatten(0, 1)[:stop]
            for layer, views in zip(self.spec.layers, self.states, strict=True)
            for tensor in layer.kv_tensors
        ]


def run(loaded: LoadedModel, memory: Memory, *parts: Part, all_logits: bool = True) -> list[Tensor]:
    """One pass over the parts together -> each part's logits, of all its tokens or of the last."""
    spec = loaded.spec
    batch = PackedBatch.build(
        [len(part.tokens) for part in parts],
        slots=[part.slot for part in parts] if spec.checkpoint_bytes else None,
        num_computed=[part.start for part in parts],
        emits=[part.emits for part in parts] if spec.checkpoint_bytes else None,
        block_tables=[part.blocks for part in parts] if spec.kv_bytes_per_token else None,
        block_size=BLOCK_SIZE,
    )
    rows = torch.arange(batch.num_tokens) if all_logits else batch.last_rows
    logits = loaded.model.forward(torch.cat([part.tokens for part in parts]), batch, memory.states, rows)
    return list(torch.split(logits, [len(part.tokens) if all_logits else 1 for part in parts]))


def greedy(loaded: LoadedModel, memory: Memory, prompt: Tensor, count: int) -> Tensor:
    """`count` tokens after `prompt`, the likeliest each time, computed one by one."""
    blocks = range(-(-(len(prompt) + count) // BLOCK_SIZE))
    tokens, start, answer = prompt, 0, []
    for _ in range(count):
        (logits,) = run(loaded, memory, Part(tokens, start, blocks=blocks), all_logits=False)
        start += len(tokens)
        tokens = logits[-1].argmax(keepdim=True)
        answer.append(tokens)
    return torch.cat(answer)


def prompt_of(spec: ModelSpec, length: int, seed: int = 0) -> Tensor:
    """Random tokens."""
    return torch.randint(0, spec.vocab_size, (length,), generator=torch.Generator().manual_seed(seed))


def _gapped(leading: tuple[int, ...], tensor: StateTensor) -> Tensor:
    dtype = getattr(torch, tensor.dtype)
    return torch.full((leading[0], 2, *leading[1:], *tensor.shape), torch.nan, dtype=dtype)[:, 0]
