"""Backend `cuda`: recurrent layers in CUDA, all other operations in Triton."""

import torch
from torch import Tensor

from hybridcache.kernels.cuda.build import Kernels
from hybridcache.kernels.cuda.copies import CudaCopies
from hybridcache.kernels.cuda.scans import CudaScans
from hybridcache.kernels.packed import PackedBatch
from hybridcache.kernels.triton.ops import TritonOps

CHUNK_BELOW = 65_536
"""State elements of a Mamba-1 layer, 4,096 channels of 16: fewer leave a large GPU idle, token by token."""


class CudaOps(CudaScans, TritonOps):
    """CUDA for the convolution, Mamba-1, decoding, and every recurrence when `linear` is "invariant".

    Unless it is, layers of Mamba-1 with fewer than CHUNK_BELOW elements are scanned by chunks.
    A prefill of Mamba-2 or the gated delta rule goes to Triton's chunks otherwise, which use tensor cores.
    `numerics` as TritonOps says.
    """

    name = "cuda"

    def __init__(self, device: torch.device, linear: str, kernels: Kernels) -> None:
        TritonOps.__init__(self, device, linear)
        self.kernels = kernels
        self.copier = CudaCopies(kernels)
        self.chunk_below = 0 if self.stepwise else CHUNK_BELOW

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
        scan = CudaScans.mamba2_scan if self._goes_by_token(batch) else TritonOps.mamba2_scan
        return scan(self, x, dt, A, B, C, D, dt_bias, dt_limit, ssm_state, batch)

    def gated_delta_scan(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor,
        beta: Tensor,
        ssm_state: Tensor,
        batch: PackedBatch,
        scale: float,
        l2norm: bool,
    ) -> Tensor:
        scan = CudaScans.gated_delta_scan if self._goes_by_token(batch) else TritonOps.gated_delta_scan
        return scan(self, q, k, v, log_decay, beta, ssm_state, batch, scale, l2norm)

    def _goes_by_token(self, batch: PackedBatch) -> bool:
        return self.stepwise or all(s.stop - s.start <= 1 for s in batch.sequences)
