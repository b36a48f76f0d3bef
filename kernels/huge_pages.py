"""Memory that is filled once and read from end to end ever after: on huge pages its addresses cost less."""

import contextlib
import mmap

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20
"""Bytes; where a system's are larger, it uses small ones here."""


class HugePages:
    """`tensor` [count], of any value, and the request to move it to huge pages once it is filled.

    Asked for at the start they would be cleared as they are first written, and a virtual machine that gets
    them from its host at that moment loads a model at half the speed. Asked for afterwards, small pages are
    joined by the system in the background. What does not fill a huge page stays on small ones.
    """

    def __init__(self, count: int, dtype: torch.dtype) -> None:
        self._huge_bytes = count * dtype.itemsize // HUGE_PAGE * HUGE_PAGE
        if not self._huge_bytes or not hasattr(mmap, "MADV_HUGEPAGE"):
            self._huge_bytes = 0
            self.tensor: Tensor = torch.empty(count, dtype=dtype)
            return
        size = count * dtype.itemsize + HUGE_PAGE
        self._region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._start = -torch.frombuffer(self._region, dtype=torch.uint8).data_ptr() % HUGE_PAGE
        self.tensor = torch.frombuffer(self._region, dtype=dtype, count=count, offset=self._start)

    def filled(self) -> None:
        """The values are there: the system may join the pages."""
        if self._huge_bytes:
            with contextlib.suppress(OSError):  # a system without them: small pages serve too, only slower
                self._region.madvise(mmap.MADV_HUGEPAGE, self._start, self._huge_bytes)
