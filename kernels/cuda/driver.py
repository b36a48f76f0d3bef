"""CUDA's driver, as far as kernels without host code need it: loading them and launching them."""

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import NamedTuple


class Function(NamedTuple):
    """A kernel in the context that was current when it was loaded."""

    handle: c_void_p
    threads: int
    """Of a block."""
    shared_bytes: int
    """Of a block."""
    span: int
    """How much a block takes of what the grid is spread over."""


class Driver:
    """Calls of libcuda, in the current context. RuntimeError with the driver's words where one fails."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    @classmethod
    def of_this_machine(cls) -> "Driver":
        """Raises RuntimeError where there is no driver."""
        try:
            return cls(ctypes.CDLL("libcuda.so.1"))
        except OSError as error:
            raise RuntimeError(f"no NVIDIA driver: {error}") from error

    def enter(self, device: int) -> None:
        """Makes torch's context of a device current in a thread that has none: torch does that late."""
        context, handle = c_void_p(), c_int()
        self._call("cuCtxGetCurrent", byref(context))
        if not context.value:
            self._call("cuDeviceGet", byref(handle), c_int(device))
            self._call("cuDevicePrimaryCtxRetain", byref(context), handle)
            self._call("cuCtxSetCurrent", context)

    def load(self, image: bytes, name: str) -> Function:
        """The kernel `name` of a cubin, with the shape that its source gives in `hc_shape`."""
        module, handle, address, size = c_void_p(), c_void_p(), c_uint64(), c_size_t()
        self._call("cuModuleLoadData", byref(module), c_char_p(image))
        self._call("cuModuleGetFunction", byref(handle), module, c_char_p(name.encode()))
        self._call("cuModuleGetGlobal_v2", byref(address), byref(size), module, c_char_p(b"hc_shape"))
        shape = (c_int * 3)()
        self._call("cuMemcpyDtoH_v2", byref(shape), address, c_size_t(ctypes.sizeof(shape)))
        return Function(handle, *shape)

    def launch(
        self,
        function: Function,
        grid: tuple[int, int, int],
        stream: int,
        arguments: Sequence[ctypes.Structure],
    ) -> None:
        """Launches on the stream. The arguments are copied before this returns."""
        pointers = (c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        sizes = (*grid, function.threads, 1, 1, function.shared_bytes)
        self._call(
            "cuLaunchKernel", function.handle, *map(c_uint, sizes), c_void_p(stream), byref(pointers), None
        )

    def _call(self, name: str, *arguments: object) -> None:
        if code := getattr(self._library, name)(*arguments):
            words = c_char_p()
            self._library.cuGetErrorString(c_int(code), byref(words))
            raise RuntimeError(f"{name}: {(words.value or b'unknown error').decode()} ({code})")
