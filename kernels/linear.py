"""Matrix products whose rows do not depend on each other: oneDNN with packed weights, and our own."""

import ctypes
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridcache.kernels.operands import DTYPE_CODES, Operands, Rows, declare, threads_for
from hybridcache.kernels.ops import Linear

LinearMethod = Literal["auto", "onednn", "fixed"]
TEST_ROWS = (1, 2, 7, 16, 17, 64, 333)
"""Numbers of rows at which a shape is tried when it is first packed."""


class LinearArgs(ctypes.Structure):
    """Arguments of hc_linear."""

    _fields_ = (
        ("x", Rows),
        ("out", Rows),
        ("packed", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
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
        declare(library, "linear", batch=False)
        self._run = library.hc_linear
        library.hc_panel.restype = ctypes.c_int64
        panel = int(library.hc_panel())
        panels = -(-self.out_features // panel)
        dtype = torch.bfloat16 if weight.dtype == torch.bfloat16 else torch.float32
        padded = F.pad(weight.to(dtype), (0, 0, 0, panels * panel - self.out_features))
        self._packed = padded.view(panels, panel, self.in_features).transpose(1, 2).contiguous()
        self._bias = torch.zeros(panels * panel)
        if bias is not None:
            self._bias[: self.out_features] = bias

    def __call__(self, x: Tensor) -> Tensor:
        rows = _as_rows(x, self.in_features)
        out = torch.empty(len(rows), self.out_features)
        operands = Operands("linear")
        args = LinearArgs(
            operands.rows(rows, "x", (len(rows), self.in_features)),
            (out.data_ptr(), self.out_features),
            self._packed.data_ptr(),
            self._bias.data_ptr(),
            len(rows),
            self.in_features,
            self.out_features,
            DTYPE_CODES[self._packed.dtype],
        )
        self._run(ctypes.byref(args), threads_for(len(rows) * self.in_features * self.out_features))
        return out.to(x.dtype).view(*x.shape[:-1], self.out_features)


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
    """Packs weights by `method`; "auto" takes oneDNN for every shape that passes `self_test`, else our own.

    Shapes are tried once each, with the number of threads set at that moment.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        method: LinearMethod = "auto",
        self_test: Callable[[Linear], bool] = rows_agree,
    ) -> None:
        if method not in ("auto", "onednn", "fixed"):
            raise ValueError(f"linear method is {method!r}; use auto, onednn or fixed")
        self._library = library
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
                f"linear method onednn cannot take {weight.dtype} weights here; use auto or fixed"
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
    return (x if x.dim() == 2 else x.reshape(-1, width)).float().contiguous()
