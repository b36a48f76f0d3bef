"""The layers of the GPU check by others: mamba-ssm, causal-conv1d, and torch's own attention."""

import importlib
from collections.abc import Callable
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from hybridcache.experiments.gpu_layers import LayerCall

FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
"""Torch's attention but its plain form, which would hold all scores."""
PACKAGES = {
    "mamba2": ("mamba_ssm.ops.triton.ssd_combined", "mamba_chunk_scan_combined"),
    "mamba1": ("mamba_ssm.ops.selective_scan_interface", "selective_scan_fn"),
    "conv": ("causal_conv1d", "causal_conv1d_fn"),
}
NAMES = {layer: name for layer, (_, name) in PACKAGES.items()} | {"attention": "SDPA"}
"""What each layer's counterpart is called; layers without one are not among them."""


class Oracle(NamedTuple):
    """A layer of one sequence that starts from nothing: without slots, blocks or stored states."""

    run: Callable[[], Tensor]
    rows: Callable[[Tensor], Tensor]
    """Its result in the layer's own shape, [tokens, ...]."""


def oracle(layer: LayerCall) -> Oracle:
    """Of a layer of NAMES. Raises ImportError where its package is not installed."""
    x, w = [t[None] for t in layer.inputs], layer.weights
    if layer.name == "attention":
        q, k, v = (t.transpose(1, 2) for t in x)
        return Oracle(lambda: _attention(q, k, v), lambda out: out[0].transpose(0, 1))
    module, name = PACKAGES[layer.name]
    theirs: Callable[..., Tensor] = getattr(importlib.import_module(module), name)
    if layer.name == "mamba2":
        return Oracle(
            lambda: theirs(x[0], x[1], w[0], x[2], x[3], 128, D=w[1], dt_bias=w[1], dt_softplus=True),
            lambda out: out[0],
        )
    if layer.name == "mamba1":
        u, dt, z, B, C = (t.transpose(1, 2).contiguous() for t in x)
        return Oracle(
            lambda: theirs(u, dt, w[0], B, C, w[1], z, w[1], delta_softplus=True), lambda out: out[0].T
        )
    line = x[0].transpose(1, 2)
    return Oracle(lambda: theirs(line, w[0], w[1], activation="silu"), lambda out: out[0].T)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(FUSED):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
