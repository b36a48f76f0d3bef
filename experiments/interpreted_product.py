"""Products in Triton's interpreter as tensor cores have them: all rows summed in one order."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


@contextmanager
def rows_alike() -> Iterator[None]:
    """Inside, a row of an interpreted product has the same bits wherever it lies in its tile.

    The interpreter's own product is numpy's, a BLAS, which rounds a row according to its place.
    """
    own = InterpreterBuilder.create_dot
    InterpreterBuilder.create_dot = _product
    try:
        yield
    finally:
        InterpreterBuilder.create_dot = own


def _product(builder: object, a: Any, b: Any, d: Any, *precision: object) -> Any:
    """a [M, K] times b [K, N] plus d [M, N], from the first k to the last."""
    left, right, total = a.data.astype(d.data.dtype), b.data.astype(d.data.dtype), d.data
    for inner in range(left.shape[-1]):
        total = total + left[..., inner, None] * right[..., inner, None, :]
    return TensorHandle(total, d.dtype.scalar)
