"""Backend `mamba_ssm`: decoding by the packages mamba-ssm and causal-conv1d, all else by Triton."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor

from hybridcache.kernels.packed import PackedBatch
from hybridcache.kernels.triton.ops import TritonOps

NO_LIMIT = (0.0, float("inf"))


class MambaSsmOps(TritonOps):
    """Their updates take slots, so that a batch of single tokens with states is theirs.

    Their scans take neither slots nor states to be stored on the way, so that prefill is not; nor is what an
    update of theirs does not know: bounds of the step, a step without bias, states to be emitted, a sequence
    without a state yet. `updates` counts the calls that were theirs. Raises ImportError naming the package
    that is missing.
    """

    name = "mamba_ssm"

    def __init__(self, device: torch.device, linear: str = "auto") -> None:
        super().__init__(device, linear)
        self._update_state: Callable[..., Tensor] = _imported(
            "mamba_ssm.ops.triton.selective_state_update", "selective_state_update"
        )
        self._update_conv: Callable[..., Tensor] = _imported("causal_conv1d", "causal_conv1d_update")
        self.updates = 0

    def causal_conv1d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        conv_state: Tensor,
        batch: PackedBatch,
        activation: Literal["silu"] | None = "silu",
    ) -> Tensor:
        if not self._is_theirs(batch) or x.dtype != conv_state.dtype or not 2 <= weight.shape[1] <= 4:
            return super().causal_conv1d(x, weight, bias, conv_state, batch, activation)
        batch.check_slots(conv_state, "causal_conv1d: conv_state")
        self.updates += 1
        return self._update_conv(
            x.contiguous(), conv_state, weight, bias, activation, conv_state_indices=self._slots(batch)
        )

    def mamba1_scan(
        self,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None,
        z: Tensor | None,
        dt_bias: Tensor | None,
        ssm_state: Tensor,
        batch: PackedBatch,
    ) -> Tensor:
        if not self._is_theirs(batch) or dt_bias is None:
            return super().mamba1_scan(x, dt, A, B, C, D, z, dt_bias, ssm_state, batch)
        batch.check_slots(ssm_state, "mamba1_scan: ssm_state")
        return self._state(ssm_state, batch, x, dt, A, B, C, D=D, z=z, dt_bias=dt_bias)

    def mamba2_scan(
        self,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None,
        dt_bias: Tensor | None,
        dt_limit: tuple[float, float],
        ssm_state: Tensor,
        batch: PackedBatch,
    ) -> Tensor:
        if not self._is_theirs(batch) or dt_bias is None or dt_limit != NO_LIMIT:
            return super().mamba2_scan(x, dt, A, B, C, D, dt_bias, dt_limit, ssm_state, batch)
        batch.check_slots(ssm_state, "mamba2_scan: ssm_state")
        _, _, head_dim, d_state = ssm_state.shape
        # Strides of 0 tell their kernel that a head has one step, one decay and one factor.
        by_channel = [
            None if t is None else t[..., None].expand(*t.shape, head_dim) for t in (dt, D, dt_bias)
        ]
        rates = A[:, None, None].expand(-1, head_dim, d_state)
        return self._state(
            ssm_state, batch, x, by_channel[0], rates, B, C, D=by_channel[1], dt_bias=by_channel[2]
        )

    def _state(
        self, state: Tensor, batch: PackedBatch, *operands: Tensor | None, **more: Tensor | None
    ) -> Tensor:
        self.updates += 1
        return self._update_state(
            state, *operands, **more, dt_softplus=True, state_batch_indices=self._slots(batch)
        )

    def _is_theirs(self, batch: PackedBatch) -> bool:
        """Single tokens that go on from states, none of which is stored elsewhere; and bits need not last."""
        return (
            not self.stepwise
            and batch.num_tokens == batch.num_sequences > 0
            and all(s.stop - s.start == 1 and s.has_state and not s.emits for s in batch.sequences)
        )

    def _slots(self, batch: PackedBatch) -> Tensor:
        return self._on_device(batch).slots.to(torch.int32)


def _imported(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise ImportError(
            f"backend mamba_ssm needs {package}: pip install --no-build-isolation {package} ({error})"
        ) from error
