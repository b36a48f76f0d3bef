"""Matrix products whose rows do not depend on each other: oneDNN with packed weights, and our own."""

import ctypes
from collections.abc import Callable
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridcache.kernels.huge_pages import on_huge_pages
from hybridcache.kernels.operands import DTYPE_CODES, threads_for
from hybridcache.kernels.ops import Linear

LinearMethod = Literal["auto", "tested", "onednn", "fixed"]
"""`fixed`: our own product. `tested`: oneDNN for every shape that passes the self-test, else our own.
`auto`: our own with AVX2, where it was measured (with many rows as fast as oneDNN, with few up to twice);
elsewhere `tested`. One method a weight, whatever the number of rows: the two round differently."""
TEST_ROWS = (1, 2, 7, 16, 17, 64, 333)
"""Numbers of rows at which a shape is tried when it is first packed."""


class LinearWeight(ctypes.Structure):
    """A packed weight, as hc_linear takes it."""

    _fields_ = (
        ("packed", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("in", ctypes.c_int64),
        ("outs", ctypes.c_int64),
        ("dtype", ctypes.c_int64),
    )


class OneDnnLinear(Linear):
    """oneDNN's product with the weight reordered once (float32).

    It rests on two private operators of torch: `available` is asked first, `rows_agree` tries each shape.
    """

    method = "onednn"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._bias = None if bias is None else bias.to(torch.float32, copy=True)
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 64)

    @staticmethod
    def available(weight: Tensor) -> bool:
        """Whether torch has the operators and they take this dtype."""
        names = ("_reorder_linear_weight", "_linear_pointwise")
        return (
            weight.dtype == torch.float32
            and torch._C._has_mkldnn
            and all(hasattr(torch.ops.mkldnn, name) for name in names)
        )

    def __call__(self, x: Tensor) -> Tensor:
        rows = _as_rows(x, self.in_features)
        count = len(rows)
        if count == 0:
            return x.new_empty((*x.shape[:-1], self.out_features))
        if count == 1:  # another kernel is chosen for one row
            rows = F.pad(rows, (0, 0, 0, 1))
        out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self._bias, "none", [], "")
        return out[:count].to(x.dtype).view(*x.shape[:-1], self.out_features)


class FixedLinear(Linear):
    """Our own product, summed in one order whatever the number of rows; bfloat16 weights stay bfloat16."""

    method = "fixed"

    def __init__(self, library: ctypes.CDLL, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        library.hc_panel.restype = ctypes.c_int64
        panel = int(library.hc_panel())
        padded = -(-self.out_features // panel) * panel
        if weight.dtype == torch.float16:
            weight = weight.float()
        weight = weight.contiguous()
        self._packed = on_huge_pages(padded * self.in_features, weight.dtype)
        self._bias = torch.zeros(padded)
        if bias is not None:
            self._bias[: self.out_features] = bias
        self._weight = LinearWeight(
            self._packed.data_ptr(),
            self._bias.data_ptr(),
            self.in_features,
            self.out_features,
            DTYPE_CODES[weight.dtype],
        )
        self._address = ctypes.addressof(self._weight)
        library.hc_pack_linear.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        library.hc_pack_linear.restype = None
        library.hc_pack_linear(self._address, weight.data_ptr())
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        library.hc_linear.argtypes = (pointer, pointer, integer, pointer, integer, integer)
        library.hc_linear.restype = None
        self._run = library.hc_linear

    def __call__(self, x: Tensor) -> Tensor:
        rows = _as_rows(x, self.in_features)
        count = rows.shape[0]
        out = torch.empty(count, self.out_features)
        threads = threads_for(count * self.in_features * self.out_features)
        self._run(self._address, rows.data_ptr(), self.in_features, out.data_ptr(), count, threads)
        if x.dtype is not torch.float32:
            out = out.to(x.dtype)
        return out if x.dim() == 2 else out.view(*x.shape[:-1], self.out_features)


def rows_agree(linear: Linear) -> bool:
    """Whether a row has the same bits at every number of rows in TEST_ROWS, from either end of the input."""
    generator = torch.Generator().manual_seed(0)
    most = max(TEST_ROWS)
    x = torch.randn(most, linear.in_features, generator=generator)
    whole = linear(x)
    return all(
        torch.equal(linear(x[:count]), whole[:count]) and torch.equal(linear(x[-count:]), whole[-count:])
        for count in TEST_ROWS
        if count < most
    )


class LinearPacker:
    """Packs weights by `method`; shapes are tried once each, with the number of threads set then."""

    def __init__(
        self,
        library: ctypes.CDLL,
        method: LinearMethod = "auto",
        self_test: Callable[[Linear], bool] = rows_agree,
    ) -> None:
        if method not in get_args(LinearMethod):
            raise ValueError(f"linear method is {method!r}; use {', '.join(get_args(LinearMethod))}")
        self._library = library
        if method == "auto":
            method = "fixed" if torch.backends.cpu.get_cpu_capability() == "AVX2" else "tested"
        self._method = method
        self._self_test = self_test
        self.passed: dict[tuple[int, int, bool], bool] = {}
        """(out, in, with bias) -> whether oneDNN passed there."""

    def pack(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """Packs weight [out, in] and bias [out]; ValueError for other shapes or an impossible "onednn"."""
        if weight.dim() != 2 or (bias is not None and bias.shape != weight.shape[:1]):
            shapes = tuple(weight.shape), None if bias is None else tuple(bias.shape)
            raise ValueError(f"linear: weight and bias have shapes {shapes}; expected [out, in] and [out]")
        if weight.dtype not in DTYPE_CODES or weight.device.type != "cpu":
            raise ValueError(f"linear: weight is {weight.dtype} on {weight.device}; use floats on the CPU")
        possible = OneDnnLinear.available(weight)
        if self._method == "onednn" and not possible:
            raise ValueError(
                f"linear method onednn cannot take {weight.dtype} weights here; use tested or fixed"
            )
        if self._method == "fixed" or not possible:
            return FixedLinear(self._library, weight, bias)
        packed = OneDnnLinear(weight, bias)
        if self._method == "onednn":
            return packed
        shape = (*weight.shape, bias is not None)
        if shape not in self.passed:
            self.passed[shape] = self._self_test(packed)
        return packed if self.passed[shape] else FixedLinear(self._library, weight, bias)


def _as_rows(x: Tensor, width: int) -> Tensor:
    if x.shape[-1] != width:
        raise ValueError(f"linear: x has width {x.shape[-1]}; the weight takes {width}")
    if x.dtype is torch.float32 and x.dim() == 2 and x.is_contiguous():
        return x
    return x.reshape(-1, width).float().contiguous()
