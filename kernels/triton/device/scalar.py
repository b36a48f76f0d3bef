"""Triton: scalar functions and sums that several kernels use."""

import triton
import triton.language as tl


@triton.jit
def softplus(x: tl.tensor) -> tl.tensor:
    """log(1 + exp(x)), precise for small exp(x) too; x beyond 20."""
    e = tl.exp(tl.minimum(x, 20.0))
    u = 1.0 + e
    # Goldberg, 1991, theorem 4: the rounding of u cancels.
    near = tl.where(u == 1.0, e, tl.log(u) * e / tl.where(u == 1.0, 1.0, u - 1.0))
    return tl.where(x > 20.0, x, near)


@triton.jit
def sigmoid(x: tl.tensor) -> tl.tensor:
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + tl.exp(-x))
