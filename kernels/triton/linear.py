"""A matrix product on the GPU whose rows do not depend on how many there are."""

import torch
import triton
from torch import Tensor

from hybridcache.kernels.ops import Linear
from hybridcache.kernels.triton.device.matmul import invariant_matmul
from hybridcache.kernels.triton.launch import launch


class InvariantLinear(Linear):
    """Tiles of one shape, no split of the sum: a row has the same bits at any number of rows."""

    method = "invariant"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        if weight.dim() != 2 or (bias is not None and bias.shape != weight.shape[:1]):
            shapes = tuple(weight.shape), None if bias is None else tuple(bias.shape)
            raise ValueError(f"linear: weight and bias have shapes {shapes}; expected [out, in] and [out]")
        self.out_features, self.in_features = weight.shape
        self._weight = weight.contiguous()
        self._bias = None if bias is None else bias.contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.in_features:
            raise ValueError(f"linear: x has width {x.shape[-1]}; the weight takes {self.in_features}")
        rows = x.reshape(-1, self.in_features)
        rows = rows if rows.stride(1) == 1 else rows.contiguous()
        out = torch.empty(len(rows), self.out_features, dtype=x.dtype, device=x.device)
        if out.numel():
            wide = x.dtype != self._weight.dtype or x.dtype == torch.float32
            tile_rows, tile_outs, tile_inner = (32, 32, 32) if wide else (64, 128, 64)
            grid = (triton.cdiv(len(rows), tile_rows), triton.cdiv(self.out_features, tile_outs))
            launch(
                invariant_matmul,
                grid,
                rows,
                self._weight,
                self._bias,
                out,
                len(rows),
                self.out_features,
                self.in_features,
                rows.stride(0),
                BM=tile_rows,
                BN=tile_outs,
                BK=tile_inner,
                HAS_BIAS=self._bias is not None,
                num_warps=4,
                num_stages=3,
                enable_fp_fusion=True,
            )
        return out.view(*x.shape[:-1], self.out_features)
