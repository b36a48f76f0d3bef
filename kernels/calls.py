"""Calls of the C++ kernels, and the memory of their results; both can be recorded."""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from hybridcache.kernels.build import Library
from hybridcache.kernels.operands import BatchArgs
from hybridcache.kernels.packed import PackedBatch
from hybridcache.kernels.recording import Call, Recorder, Scratch

KERNELS = (
    "linear",
    "causal_conv1d",
    "mamba1_scan",
    "mamba2_scan",
    "gated_delta_scan",
    "store_kv",
    "paged_attention",
    "rms_norm",
    "map",
    "add",
    "softmax",
    "top_k",
    "rope_table",
    "rope",
    "experts",
)
"""All of them take (arguments, batch or null, threads)."""


class KernelCalls:
    """The compiled library. One thread's recording does not see what other threads call."""

    def __init__(self, library: Library) -> None:
        self.library = ctypes.CDLL(str(library.path))
        self._functions = {name: getattr(self.library, f"hc_{name}") for name in KERNELS}
        pointer = ctypes.c_void_p
        for function in self._functions.values():
            function.argtypes = (pointer, pointer, ctypes.c_int64)
            function.restype = None
        self.library.hc_panel.restype = ctypes.c_int64
        self.library.hc_pack_linear.argtypes = (pointer, pointer)
        self.library.hc_pack_linear.restype = None
        self.library.hc_replay.argtypes = (pointer, ctypes.c_int64, pointer)
        self.library.hc_replay.restype = None
        self._local = threading.local()
        self._batch: tuple[PackedBatch | None, BatchArgs] = (None, BatchArgs())

    @property
    def recorder(self) -> Recorder | None:
        """This thread's recorder; None: nothing is recorded."""
        recorder: Recorder | None = getattr(self._local, "recorder", None)
        return recorder

    @contextmanager
    def recording(self, scratch: Scratch) -> Iterator[Recorder]:
        """Records this thread's calls; they are performed as well."""
        self._local.recorder = Recorder(scratch)
        try:
            yield self._local.recorder
        finally:
            self._local.recorder = None

    def run(
        self,
        kernel: str,
        args: ctypes.Structure,
        threads: int,
        batch: PackedBatch | None = None,
        keep: object = None,
    ) -> None:
        """Calls a kernel. A recording keeps `args` and `keep`; the tensors behind them are the caller's."""
        function = self._functions[kernel]
        if (recorder := self.recorder) is not None:
            address = ctypes.cast(function, ctypes.c_void_p).value
            recorder.calls.append((Call(address, ctypes.addressof(args), threads), (args, keep)))
        function(ctypes.byref(args), None if batch is None else ctypes.byref(self.batch_args(batch)), threads)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Memory for a result, which a kernel writes in full."""
        recorder = self.recorder
        return torch.empty(shape, dtype=dtype) if recorder is None else recorder.scratch.empty(shape, dtype)

    def batch_args(self, batch: PackedBatch) -> BatchArgs:
        """The batch's structure; the last one is kept, since all layers of a pass share it."""
        last, args = self._batch
        if last is not batch:
            args = BatchArgs.of(batch)
            self._batch = (batch, args)
        return args
