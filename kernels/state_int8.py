"""States as 8-bit integers with one scale a head: the plain twin of csrc/cuda/state_int8.cuh."""

from collections.abc import Sequence

import torch
from torch import Tensor

Pairs = Sequence[tuple[int, int]]
"""(slot of a state, slot of a packed one)."""
LEAST_SCALE = torch.finfo(torch.float32).tiny
"""What a head of zeros or of denormal numbers gets: 1 over a smaller scale is infinite."""


def pack_states(states: Tensor, packed: Tensor, scales: Tensor, pairs: Pairs) -> None:
    """Writes states [slots, heads, ...] to `packed` int8 [packed slots, heads, ...], `scales` [.., heads].

    scale = largest magnitude of a head / 127, at least LEAST_SCALE; a value is off by at most half a scale. A
    head that is not finite gets the scale NaN.
    """
    for slot, target in pairs:
        heads = states[slot].float().flatten(1)
        most = heads.abs().amax(1).clamp_min(127 * LEAST_SCALE)
        rounded = (heads * (127 / most)[:, None]).round().clamp(-127, 127).nan_to_num(0.0)
        packed[target] = rounded.to(torch.int8).view(packed.shape[1:])
        scales[target] = torch.where(most.isfinite(), most / 127, torch.nan)


def unpack_states(states: Tensor, packed: Tensor, scales: Tensor, pairs: Pairs) -> None:
    """Writes packed states back to `states`, in their dtype."""
    for slot, source in pairs:
        heads = packed[source].flatten(1).float() * scales[source][:, None]
        states[slot] = heads.view(states.shape[1:]).to(states.dtype)
