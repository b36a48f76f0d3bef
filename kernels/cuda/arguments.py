"""Argument structures of the CUDA kernels, field by field as csrc/cuda/ declares them.

The Mamba-2 and gated delta kernels take those of kernels/arguments.py.
"""

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
        ("initial", Pool),
        ("state", Pool),
        ("totals", c_void_p),
        ("channels", c_int64),
        ("d_state", c_int64),
    )


class SelectivePassArgs(ctypes.Structure):
    """hc_selective_pass."""

    _fields_ = (
        ("a", c_void_p),
        ("totals", c_void_p),
        ("states", c_void_p),
        ("initial", Pool),
        ("state", Pool),
        ("channels", c_int64),
        ("d_state", c_int64),
    )


class ConvArgs(ctypes.Structure):
    """hc_causal_conv1d."""

    _fields_ = (
        ("x", Rows),
        ("out", Rows),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("state", Pool),
        ("tiles", c_void_p),
        ("num_tiles", c_int64),
        ("channels", c_int64),
        ("silu", c_int64),
        ("segments", c_int64),
    )


class EntryCopyArgs(ctypes.Structure):
    """hc_entry_copy."""

    _fields_ = (
        ("data", c_void_p),
        ("stride", c_int64),
        ("segment_stride", c_int64),
        ("num_segments", c_int64),
        ("unit_bytes", c_int64),
        ("longest", c_int64),
        ("copies", c_void_p),
        ("num_copies", c_int64),
    )


class StateInt8Args(ctypes.Structure):
    """hc_state_int8."""

    _fields_ = (
        ("state", Pool),
        ("packed", c_void_p),
        ("scales", c_void_p),
        ("packed_stride", c_int64),
        ("scales_stride", c_int64),
        ("copies", c_void_p),
        ("num_copies", c_int64),
        ("heads", c_int64),
        ("elements", c_int64),
        ("restore", c_int64),
    )
