"""Matrix products whose rows do not depend on each other: oneDNN with packed weights, and our own."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridcache.kernels.arguments import LinearArgs
from hybridcache.kernels.calls import KernelCalls
from hybridcache.kernels.huge_pages import HugePages
from hybridcache.kernels.operands import DTYPE_CODES, out_rows, threads_for
from hybridcache.kernels.ops import Linear

LinearMethod = Literal["auto", "tested", "onednn", "fixed"]
"""`fixed`: our own product. `tested`: oneDNN for every shape that passes the self-test, else our own.
`auto`: our own with AVX2, where it was measured (with many rows as fast as oneDNN, with few up to twice);
elsewhere `tested`. Our own is tried as well: a shape that fails is computed row by row. One method a weight,
whatever the number of rows: they round differently."""
TEST_ROWS = (1, 2, 7, 16, 17, 64, 333)
"""Numbers of rows at which a shape is tried when it is first packed."""
TEST_PANELS = 3
"""Whole panels of our own product that are tried, beside the incomplete one."""


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

    def __init__(self, calls: KernelCalls, parts: Sequence[Tensor], bias: Tensor | None) -> None:
        """`parts`: weights [out, in] of one dtype, one below the other; all but the last in whole panels."""
        self.out_features, self.in_features = sum(len(part) for part in parts), parts[0].shape[1]
        self.panel = int(calls.library.hc_panel())
        """Outputs that are computed together."""
        padded = -(-self.out_features // self.panel) * self.panel
        self.dtype = torch.float32 if parts[0].dtype == torch.float16 else parts[0].dtype
        """Of the packed weight."""
        self._pages = HugePages(padded * self.in_features, self.dtype)
        packed = self._pages.tensor.data_ptr()
        self._bias = torch.zeros(padded)
        if bias is not None:
            self._bias[: self.out_features] = bias
        self._weight = LinearWeight(
            packed,
            self._bias.data_ptr(),
            self.in_features,
            self.out_features,
            DTYPE_CODES[self.dtype],
        )
        self.address = ctypes.addressof(self._weight)
        """Of the packed weight, for kernels that multiply."""
        outs, code = 0, DTYPE_CODES[self.dtype]
        for part in parts:
            assert outs % self.panel == 0 and part.shape[1] == self.in_features, part.shape
            # Panels lie one behind the other, so that a part begins where its first one does.
            place = packed + outs * self.in_features * self.dtype.itemsize
            target = LinearWeight(place, None, self.in_features, len(part), code)
            given = part.to(self.dtype).contiguous()
            calls.library.hc_pack_linear(ctypes.addressof(target), given.data_ptr())
            outs += len(part)
        self._pages.filled()
        self._calls = calls

    def __call__(self, x: Tensor) -> Tensor:
        rows = _as_rows(x, self.in_features)
        count = rows.shape[0]
        out = self._calls.empty(count, self.out_features)
        args = LinearArgs(self.address, (rows.data_ptr(), rows.stride(0)), out_rows(out), count)
        self._calls.run("linear", args, threads_for(count * self.in_features * self.out_features))
        if x.dtype is not torch.float32:
            out = out.to(x.dtype)
        return out if x.dim() == 2 else out.view(*x.shape[:-1], self.out_features)


class RowByRowLinear(Linear):
    """Another product, one row at a time: slow, and a row cannot depend on what it does not see."""

    method = "row by row"

    def __init__(self, linear: Linear) -> None:
        self.out_features, self.in_features = linear.out_features, linear.in_features
        self._linear = linear

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if not len(rows):
            return self._linear(x)
        out = torch.cat([self._linear(rows[i : i + 1]) for i in range(len(rows))])
        return out.view(*x.shape[:-1], self.out_features)


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
        calls: KernelCalls,
        method: LinearMethod = "auto",
        self_test: Callable[[Linear], bool] = rows_agree,
    ) -> None:
        if method not in get_args(LinearMethod):
            raise ValueError(f"linear method is {method!r}; use {', '.join(get_args(LinearMethod))}")
        self._calls = calls
        if method == "auto":
            method = "fixed" if torch.backends.cpu.get_cpu_capability() == "AVX2" else "tested"
        self._method = method
        self._self_test = self_test
        self.passed: dict[tuple[object, ...], bool] = {}
        """(method, out, in, with bias, dtype) -> whether rows agreed there."""

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
            return self._fixed([weight], bias)
        packed = OneDnnLinear(weight, bias)
        if self._method == "onednn" or self._passes(packed, weight, bias):
            return packed
        return self._fixed([weight], bias)

    def pack_joined(self, parts: Sequence[Tensor], bias: Tensor | None) -> Linear:
        """Packs weights [out, in] as one, without joining them in memory where our own product allows it."""
        panel = int(self._calls.library.hc_panel())
        alike = len({(part.dtype, part.shape[1:]) for part in parts}) == 1
        if self._method != "fixed" or not alike or any(len(part) % panel for part in parts[:-1]):
            return self.pack(torch.cat(list(parts)), bias)
        return self._fixed(parts, bias)

    def _fixed(self, parts: Sequence[Tensor], bias: Tensor | None) -> Linear:
        """Our own product; each panel of outputs is computed for itself, so that a few are tried."""
        packed, last = FixedLinear(self._calls, parts, bias), parts[-1]
        outs = min(len(last), TEST_PANELS * packed.panel + len(last) % packed.panel)
        probe, weight = packed, last[-outs:]
        if outs < packed.out_features:
            probe = FixedLinear(self._calls, [weight], None if bias is None else bias[-outs:])
        return packed if self._passes(probe, weight, bias) else RowByRowLinear(packed)

    def _passes(self, packed: Linear, weight: Tensor, bias: Tensor | None) -> bool:
        """Whether `packed`, or what had its method and shape before, agreed with itself."""
        key = (packed.method, *weight.shape, bias is not None, weight.dtype)
        if key not in self.passed:
            self.passed[key] = self._self_test(packed)
        return self.passed[key]


def _as_rows(x: Tensor, width: int) -> Tensor:
    if x.shape[-1] != width:
        raise ValueError(f"linear: x has width {x.shape[-1]}; the weight takes {width}")
    if x.dtype is torch.float32 and x.dim() == 2 and x.stride(1) == 1:
        return x
    return x.reshape(-1, width).float().contiguous()
