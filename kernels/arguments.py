"""Argument structures of the C++ kernels, field by field as csrc/ declares them."""

import ctypes
from ctypes import c_float, c_int64, c_void_p

from hybridcache.kernels.operands import Pool, Rows


class LinearArgs(ctypes.Structure):
    """hc_linear."""

    _fields_ = (("weight", c_void_p), ("x", Rows), ("out", Rows), ("rows", c_int64))


class ConvArgs(ctypes.Structure):
    """hc_causal_conv1d."""

    _fields_ = (
        ("x", Rows),
        ("out", Rows),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("state", Pool),
        ("channels", c_int64),
        ("width", c_int64),
        ("silu", c_int64),
    )


class Mamba1Args(ctypes.Structure):
    """hc_mamba1_scan."""

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


class Mamba2Args(ctypes.Structure):
    """hc_mamba2_scan, and hc_mamba2_recurrence of csrc/cuda/."""

    _fields_ = (
        ("x", Rows),
        ("dt", Rows),
        ("b", Rows),
        ("c", Rows),
        ("out", Rows),
        ("a", c_void_p),
        ("d", c_void_p),
        ("dt_bias", c_void_p),
        ("dt_min", c_float),
        ("dt_max", c_float),
        ("state", Pool),
        ("heads", c_int64),
        ("head_dim", c_int64),
        ("groups", c_int64),
        ("d_state", c_int64),
    )


class GatedDeltaArgs(ctypes.Structure):
    """hc_gated_delta_scan, and hc_gated_delta_recurrence of csrc/cuda/."""

    _fields_ = (
        ("q", Rows),
        ("k", Rows),
        ("v", Rows),
        ("log_decay", Rows),
        ("beta", Rows),
        ("out", Rows),
        ("state", Pool),
        ("key_heads", c_int64),
        ("value_heads", c_int64),
        ("key_dim", c_int64),
        ("value_dim", c_int64),
        ("scale", c_float),
        ("l2norm", c_int64),
    )


class StoreArgs(ctypes.Structure):
    """hc_store_kv."""

    _fields_ = (
        ("k", Rows),
        ("v", Rows),
        ("keys", Pool),
        ("values", Pool),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
    )


class AttentionArgs(ctypes.Structure):
    """hc_paged_attention; soft_cap and window 0: none."""

    _fields_ = (
        ("q", Rows),
        ("out", Rows),
        ("keys", Pool),
        ("values", Pool),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("scale", c_float),
        ("soft_cap", c_float),
        ("window", c_int64),
    )


class MapArgs(ctypes.Structure):
    """hc_map; `function` numbers the enum in kernels.h."""

    _fields_ = (
        ("x", Rows),
        ("factor", Rows),
        ("out", Rows),
        ("rows", c_int64),
        ("width", c_int64),
        ("function", c_int64),
    )


class NormArgs(ctypes.Structure):
    """hc_rms_norm; `gate_first`: the gate goes in before the norm."""

    _fields_ = (
        ("x", Rows),
        ("gate", Rows),
        ("out", Rows),
        ("weight", c_void_p),
        ("rows", c_int64),
        ("width", c_int64),
        ("groups", c_int64),
        ("gate_first", c_int64),
        ("eps", c_float),
        ("offset", c_float),
    )


class AddArgs(ctypes.Structure):
    """hc_add."""

    _fields_ = (
        ("x", Rows),
        ("y", Rows),
        ("out", Rows),
        ("rows", c_int64),
        ("width", c_int64),
        ("factor", c_float),
    )


class SoftmaxArgs(ctypes.Structure):
    """hc_softmax."""

    _fields_ = (("x", Rows), ("out", Rows), ("rows", c_int64), ("width", c_int64))


class TopKArgs(ctypes.Structure):
    """hc_top_k."""

    _fields_ = (
        ("x", Rows),
        ("values", Rows),
        ("indices", c_void_p),
        ("rows", c_int64),
        ("width", c_int64),
        ("k", c_int64),
    )


class RopeTableArgs(ctypes.Structure):
    """hc_rope_table."""

    _fields_ = (
        ("positions", c_void_p),
        ("inv_freq", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("rows", c_int64),
        ("width", c_int64),
        ("scaling", c_float),
    )


class RopeArgs(ctypes.Structure):
    """hc_rope."""

    _fields_ = (
        ("x", Rows),
        ("out", Rows),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("rows", c_int64),
        ("heads", c_int64),
        ("head_dim", c_int64),
        ("pairs", c_int64),
    )


class ExpertsArgs(ctypes.Structure):
    """hc_experts; `experts` points to pairs of weights, `function` numbers the enum in kernels.h."""

    _fields_ = (
        ("x", Rows),
        ("out", Rows),
        ("shares", c_void_p),
        ("chosen", c_void_p),
        ("experts", c_void_p),
        ("tokens", c_int64),
        ("top_k", c_int64),
        ("num_experts", c_int64),
        ("width", c_int64),
        ("function", c_int64),
        ("gated", c_int64),
    )
