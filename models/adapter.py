"""Low-rank adapters on a matrix that several layers share (Hu et al., 2021)."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from hybridcache.kernels.ops import Linear


class AdaptedLinear(Linear):
    """W x + U D x, where W is shared and the adapter is the layer's own.

    Several outputs joined in W, such as Q, K and V, each have an adapter: their D are joined to one matrix,
    their U lie in `ups`, in order.
    """

    def __init__(self, shared: Linear, down: Linear, ups: Sequence[Linear]) -> None:
        self.in_features, self.out_features = shared.in_features, shared.out_features
        self.method = f"{shared.method} + adapter"
        self.shared: Final = shared
        self.down: Final = down
        self.ups: Final = tuple(ups)

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        ranks = [up.in_features for up in self.ups]
        parts = torch.split(self.down(x), ranks, dim=-1)
        return self.shared(x) + torch.cat([up(part) for up, part in zip(self.ups, parts, strict=True)], -1)
