"""A packed batch as the Triton kernels are given it."""

import pytest
import torch

from hybridcache.kernels.packed import PackedBatch

device_batch = pytest.importorskip("hybridcache.kernels.triton.batch")


@pytest.mark.parametrize(
    ("window", "owners", "numbers", "offsets"),
    [
        (0, [0, 0, 0, 1, 2, 2], [0, 1, 2, 0, 0, 1], [0, 3, 4, 6]),
        (512, [0, 0, 1, 2, 2], [1, 2, 0, 0, 1], [0, 2, 3, 5]),
        (1, [0, 1, 2], [2, 0, 1], [0, 1, 2, 3]),
    ],
)
def test_decoding_takes_the_parts_that_it_sees(
    window: int, owners: list[int], numbers: list[int], offsets: list[int]
) -> None:
    """Behind 1,100, 0 and 512 tokens: room for the keys there are, however long the longest sequence is."""
    before = [1_100, 0, 8, 512]
    tables = [list(range(70)) for _ in before]
    batch = PackedBatch.build([1, 1, 3, 1], num_computed=before, block_tables=tables)
    view = device_batch.DeviceBatch(batch, torch.device("cpu"))
    assert view.decoding == [0, 1, 3]
    parts = view.decode_parts(512, window)
    assert [column.tolist() for column in parts] == [owners, numbers, offsets]
    assert view.decode_parts(512, window) is parts
