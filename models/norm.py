"""Root mean square normalisation of the hidden state."""

from dataclasses import dataclass

from torch import Tensor

from hybridcache.kernels.ops import Ops


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """Zhang and Sennrich (2019), with `unit_offset` times 1 + weight."""

    weight: Tensor
    eps: float
    ops: Ops
    unit_offset: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, width] -> [T, width] in the weight's dtype."""
        return self.ops.rms_norm(
            x.to(self.weight.dtype), self.weight, self.eps, add_unit_offset=self.unit_offset
        )
