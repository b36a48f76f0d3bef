"""Memory that is read from end to end: on huge pages its addresses cost less to look up."""

import contextlib
import mmap

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20
"""Bytes; where a system's are larger, it uses small ones here."""


def on_huge_pages(count: int, dtype: torch.dtype) -> Tensor:
    """`count` elements of any value. As many huge pages as they fill, where the system has them to give.

    What does not fill one stays on small pages, so that no more memory is used than asked for.
    """
    huge_bytes = count * dtype.itemsize // HUGE_PAGE * HUGE_PAGE
    if not huge_bytes or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(count, dtype=dtype)
    region = mmap.mmap(-1, count * dtype.itemsize + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = -torch.frombuffer(region, dtype=torch.uint8).data_ptr() % HUGE_PAGE
    with contextlib.suppress(OSError):  # a system without them: small pages serve as well, only slower
        region.madvise(mmap.MADV_HUGEPAGE, start, huge_bytes)
    return torch.frombuffer(region, dtype=dtype, count=count, offset=start)
