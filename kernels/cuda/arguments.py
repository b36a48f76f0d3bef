"""Argument structures of the CUDA kernels, field by field as csrc/cuda/ declares them."""

import ctypes
from ctypes import c_int64, c_void_p

from hybridcache.kernels.operands import Pool, Rows


class SelectiveArgs(ctypes.Structure):
    """hc_selective_scan and hc_selective_update."""

    _fields_ = (
        ("x", Rows),
        ("dt", Rows),
        ("z", Rows),
        ("b", Rows),
        ("c", Rows),
        ("out", Rows),
        ("a", c_void_p),
        ("d", c_void_p),
        ("dt_bias", c_void_p),
        ("state", Pool),
        ("channels", c_int64),
        ("d_state", c_int64),
    )
