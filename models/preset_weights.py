"""Seeded weights for a model of transformers whose logits and states have the size of a trained model's.

transformers' own initialisation gives logits of 0.01 and states that forget within a few tokens: differences
between a right and a wrong implementation vanish in it.
"""

import hashlib
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

_STEP_RANGE = (0.001, 0.3)
"""Time steps of the scans before the input moves them: memories of a few to a thousand tokens."""


def seed_weights(model: nn.Module, seed: int, *, embedding_std: float, head_std: float) -> None:
    """Overwrites every parameter of `model` and, where it has one, the correction of router scores.

    A parameter's values depend on the seed, its name and its shape alone, not on the other parameters or on
    torch's global generator. Matrices get variance 1 / fan-in; `embedding_std` and `head_std` are the
    standard deviations of the entries of the token embedding and of the (untied) LM head.
    """
    heads = {"embed": embedding_std, "lm_head": head_std}
    tensors: Mapping[str, Tensor] = dict(model.named_parameters()) | {
        name: buffer for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")
    }
    with torch.no_grad():
        for name, tensor in tensors.items():
            std = next((value for key, value in heads.items() if key in name), None)
            tensor.copy_(_values(name, tensor, _generator(seed, name), std))


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def _values(name: str, old: Tensor, generator: torch.Generator, std: float | None) -> Tensor:
    """New float32 values of a parameter by its name; `std` is set for embedding and head."""
    shape = old.shape
    if name.endswith("A_log"):
        return torch.log(1 + 7 * torch.rand(shape, generator=generator))
    if name.endswith(("dt_bias", "dt_proj.bias")):
        low, high = (math.log(step) for step in _STEP_RANGE)
        step = torch.exp(low + (high - low) * torch.rand(shape, generator=generator))
        return step + torch.log(-torch.expm1(-step))  # softplus of it is `step`
    noise = torch.randn(shape, generator=generator)
    if std is not None:
        return std * noise
    if old.dim() == 1:
        # Norms, biases and skip weights start at 0 or 1, whichever means "nothing happens" there.
        return torch.round(old.float().mean()) + 0.1 * noise
    # An adapter corrects its matrix; as large as that, it makes attention so sharp that rounding shows.
    gain = 0.5 if "adapter" in name else 1.0
    return gain * noise / math.sqrt(shape[-1])
