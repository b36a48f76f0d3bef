"""as_token_ids accepts every integer array and refuses everything else."""

import numpy as np
import pytest

from hybridcache.tokens import as_token_ids


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.int32, np.int64, np.uint32, np.uint64])
def test_integers_become_uint32(dtype: type[np.generic]) -> None:
    ids = as_token_ids(np.array([0, 5, 100], dtype))
    assert ids.dtype == np.uint32
    assert ids.tolist() == [0, 5, 100]


def test_uint32_is_not_copied() -> None:
    ids = np.arange(5, dtype=np.uint32)
    assert as_token_ids(ids) is ids


def test_lists_tuples_ranges_and_extremes() -> None:
    assert as_token_ids([0, 2**32 - 1]).tolist() == [0, 2**32 - 1]
    assert as_token_ids((7,)).tolist() == [7]
    assert as_token_ids(range(3)).tolist() == [0, 1, 2]
    assert as_token_ids([]).dtype == np.uint32
    assert len(as_token_ids([])) == 0


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ([1, -1], "negative"),
        (np.array([-3], np.int8), "negative"),
        ([2**32], "too large"),
        (np.array([2**40], np.uint64), "too large"),
        ([1.0, 2.0], "float"),
        ([True, False], "bool"),
        (["1"], "integers"),
        ([2**70], "integers"),
        ([[1, 2], [3, 4]], "one-dimensional"),
        ([[1, 2], [3]], "flat sequence"),
        (np.array(3), "one-dimensional"),
    ],
)
def test_everything_else_is_refused(bad: object, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        as_token_ids(bad)  # type: ignore[arg-type]
