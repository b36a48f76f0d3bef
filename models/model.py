"""The causal language model: embedding, layers, final norm, head."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hybridcache.kernels.ops import Linear, Ops
from hybridcache.kernels.packed import PackedBatch
from hybridcache.models.forward_pass import ForwardPass
from hybridcache.models.layer import Layer, LayerStates
from hybridcache.models.norm import RmsNorm
from hybridcache.models.recorded import RecordedPasses


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridForCausalLM:
    """A model put together from layers. States and KV belong to the caller: it keeps weights,
    and scratch memory of passes of few tokens."""

    embedding: Tensor
    """[vocab_size, d_model]."""
    layers: Sequence[Layer]
    """One for each of `ModelSpec.layers`, in order."""
    final_norm: RmsNorm
    head: Linear
    ops: Ops
    embedding_multiplier: float = 1.0
    head_multiplier: float = 1.0
    head_divisor: float = 1.0
    wide_residual: bool = False
    """Keep the hidden state in float32."""
    recorded: RecordedPasses = field(default_factory=RecordedPasses, init=False, repr=False, compare=False)

    @torch.inference_mode()
    def forward(self, token_ids: Tensor, batch: PackedBatch, state: LayerStates, logits_at: Tensor) -> Tensor:
        """Computes the new tokens of a batch -> logits float32 [R, vocab_size] of the rows in `logits_at`.

        `token_ids`: int64 [T]; `logits_at`: int64 [R], rows of the batch; both on the CPU. Running states,
        emitted states and KV are written into `state`. Raises ValueError for ids, rows or states that do not
        fit; nothing has been written then.
        """
        self._check(token_ids, batch, state, logits_at)
        # Checked where reading a number waits for nothing.
        device = self.embedding.device
        token_ids, logits_at = token_ids.to(device), logits_at.to(device)
        x = self.embedding[token_ids]
        if self.embedding_multiplier != 1:
            x = x * self.embedding_multiplier
        hidden = self.recorded(self._layers, self.ops, x, batch, state, logits_at)
        logits = self.head(self.final_norm(hidden)).float()
        if self.head_multiplier != 1:
            logits = logits * self.head_multiplier
        return logits if self.head_divisor == 1 else logits / self.head_divisor

    __call__ = forward

    def _layers(self, x: Tensor, batch: PackedBatch, state: LayerStates) -> Tensor:
        """x [T, d_model], the embeddings -> [T, d_model] before the final norm."""
        step = ForwardPass(batch, self.ops, x)
        if self.wide_residual:
            x = x.float()
        for layer, views in zip(self.layers, state, strict=True):
            x = layer(x, views, step)
        return x

    def _check(self, token_ids: Tensor, batch: PackedBatch, state: LayerStates, logits_at: Tensor) -> None:
        if token_ids.shape != (batch.num_tokens,):
            raise ValueError(
                f"token_ids has shape {list(token_ids.shape)} for a batch of {batch.num_tokens} tokens"
            )
        if len(state) != len(self.layers):
            raise ValueError(f"state has {len(state)} layers; the model has {len(self.layers)}")
        limits = (
            ("token_ids", token_ids, len(self.embedding)),
            ("logits_at", logits_at, batch.num_tokens),
        )
        for name, values, limit in limits:
            if values.numel() and not 0 <= int(values.min()) <= int(values.max()) < limit:
                raise ValueError(
                    f"{name} has values from {int(values.min())} to {int(values.max())}; "
                    f"they must lie in [0, {limit})"
                )
