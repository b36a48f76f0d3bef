"""Token ids: the one representation the cache compares and stores."""

from collections.abc import Iterable, Sequence
from operator import index
from struct import Struct

import numpy as np
from numpy.typing import NDArray

_ID_LIMIT = 2**32  # token ids are below this

TOKEN_BYTES = 4
"""Bytes of one token id as native uint32."""

TokenIds = NDArray[np.uint32]  # [n], uint32

_unpack = Struct("=I").unpack_from


def token_at(raw: bytes, position: int) -> int:
    """The id at ``position`` of token ids as native uint32."""
    token: int = _unpack(raw, position * TOKEN_BYTES)[0]
    return token


def as_positions(name: str, positions: Iterable[int]) -> tuple[int, ...]:
    """``positions`` as plain numbers of tokens. Raises ValueError, which calls them ``name``."""
    try:
        return tuple(map(index, positions))
    except TypeError as error:
        raise ValueError(f"{name}={positions!r}: give whole numbers of tokens, () for none") from error


def as_token_ids(tokens: Sequence[int] | NDArray[np.generic]) -> TokenIds:
    """`tokens` as a 1-D uint32 array; no copy when it already is one.

    Raises:
        ValueError: not one-dimensional, not integers, or an id outside [0, 2**32).
    """
    try:
        ids = np.asarray(tokens)
    except ValueError as error:  # ragged nesting
        raise ValueError("token ids must be a flat sequence of integers, got nested sequences") from error
    if ids.ndim != 1:
        raise ValueError(f"token ids must be one-dimensional, got shape {ids.shape}; pass one request")
    if ids.dtype == np.uint32:
        return ids
    if ids.size == 0:
        return np.empty(0, np.uint32)
    if ids.dtype.kind not in "iu":
        raise ValueError(f"token ids must be integers in [0, 2**32), got {ids.dtype}, e.g. {ids[0]!r}")
    if ids.dtype.kind == "i" and (low := ids.min()) < 0:
        raise ValueError(f"token id {low} is negative; ids lie in [0, 2**32)")
    if ids.dtype.itemsize > 4 and (high := ids.max()) >= _ID_LIMIT:
        raise ValueError(f"token id {high} is too large; ids lie in [0, 2**32)")
    return ids.astype(np.uint32)
