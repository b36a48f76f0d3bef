"""Triton: scalar functions, and a product, that several kernels use."""

import triton
import triton.language as tl


@triton.jit
def softplus(x: tl.tensor) -> tl.tensor:
    """log(1 + exp(x)), precise for small exp(x) too; x beyond 20."""
    e = tl.exp(tl.where(x > 20.0, 20.0, x))
    u = 1.0 + e
    # Goldberg, 1991, theorem 4: the rounding of u cancels.
    near = tl.where(u == 1.0, e, tl.log(u) * e / tl.where(u == 1.0, 1.0, u - 1.0))
    return tl.where(x > 20.0, x, near)


@triton.jit
def bounded(x: tl.tensor, low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """x within [low, high]; NaN stays NaN."""
    x = tl.where(x < low, low, x)
    return tl.where(x > high, high, x)


@triton.jit
def causal_product(
    weights: tl.tensor, values: tl.tensor, acc: tl.tensor, rows: tl.tensor, keys: tl.tensor
) -> tl.tensor:
    """acc [M, D] + weights [M, N] values [N, D], where row i has weight 0 for every key beyond rows[i].

    0 times NaN is NaN in a product, so keys with a value that is not finite are left out of it. The rows that
    see them become NaN, and no row before them.
    """
    finite = tl.min((tl.abs(values) < float("inf")).to(tl.int32), axis=1) > 0
    cleaned = tl.where(finite[:, None], values, 0.0).to(values.dtype)
    acc = tl.dot(weights.to(values.dtype), cleaned, acc, input_precision="ieee")
    first = tl.min(tl.where(finite, 1 << 30, keys), axis=0)
    return tl.where((rows >= first)[:, None], float("nan"), acc)


@triton.jit
def sigmoid(x: tl.tensor) -> tl.tensor:
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + tl.exp(-x))
