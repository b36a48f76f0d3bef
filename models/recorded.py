"""Passes of few tokens, recorded so that their kernels cost one call from Python."""

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from hybridcache.kernels.ops import Ops
from hybridcache.kernels.packed import PackedBatch
from hybridcache.kernels.recording import Recording, Scratch
from hybridcache.models.layer import LayerStates

MAX_TOKENS: Final = 64
"""Of a pass that is recorded; with more, the kernels outweigh what calling them costs."""
MAX_PASSES: Final = 256
"""That are remembered; the oldest leaves first."""

Layers = Callable[[Tensor, PackedBatch, LayerStates], Tensor]
"""x [T, d_model], batch, states -> [T, d_model]."""
Key = tuple[int, ...]
"""Tokens, threads, and which tensors the states are."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedPass:
    """A recording and the tensors through which a pass of its number of tokens comes and goes."""

    x: Tensor
    """[T, d_model]."""
    positions: Tensor
    """int64 [T]."""
    hidden: Tensor
    """[T, d_model]."""
    recording: Recording


@dataclass(slots=True, eq=False)
class _Seen:
    """A pass that came."""

    states: Sequence["weakref.ref[Tensor]"]
    """The entry ends when one of them dies: another tensor may then get its address and its id."""
    recorded: RecordedPass | None = None
    never: bool = False
    """It cannot be recorded."""


class RecordedPasses:
    """Runs layers. A number of tokens that comes again over the same states is recorded, then repeated.

    A repetition calls the same kernels on the batch's own numbers, so its bits are those of a pass that is
    not recorded. What cannot be recorded (by the backend, or since layers do more than call kernels) runs as
    it is. One pass is recorded or repeated at a time; another thread's runs as it is meanwhile.
    """

    __slots__ = ("_busy", "_scratch", "_seen")

    def __init__(self) -> None:
        self._busy = threading.Lock()
        self._seen: dict[Key, _Seen] = {}
        self._scratch = Scratch()

    def __call__(
        self, layers: Layers, ops: Ops, x: Tensor, batch: PackedBatch, state: LayerStates, rows: Tensor
    ) -> Tensor:
        """The rows [R] (int64) of what `layers` make of x [T, d_model] -> [R, d_model]."""
        if not 0 < len(x) <= MAX_TOKENS or not self._busy.acquire(blocking=False):
            return layers(x, batch, state)[rows]
        try:
            known = self._look_up(len(x), state)
            if known is None or known.never:
                return layers(x, batch, state)[rows]
            if known.recorded is None:
                hidden = self._record(known, layers, ops, x, batch, state)
            elif known.recorded.recording.fits(batch):
                known.recorded.x.copy_(x)
                known.recorded.positions.copy_(batch.positions)
                known.recorded.recording(batch)
                hidden = known.recorded.hidden
            else:  # the layers say what does not fit
                hidden = layers(x, batch, state)
            return hidden[rows]
        finally:
            self._busy.release()

    @property
    def num_recorded(self) -> int:
        """Passes that will be repeated when they come again."""
        return sum(seen.recorded is not None for seen in self._seen.values())

    def _look_up(self, tokens: int, state: LayerStates) -> _Seen | None:
        """What is known of such a pass; None the first time."""
        tensors = [tensor for views in state for tensor in views.values()]
        key = (tokens, torch.get_num_threads(), *map(id, tensors))
        known = self._seen.get(key)
        if known is None:
            if len(self._seen) >= MAX_PASSES:
                self._seen.pop(next(iter(self._seen)))
            seen = self._seen
            self._seen[key] = _Seen([weakref.ref(t, lambda _: seen.pop(key, None)) for t in tensors])
        return known

    def _record(
        self,
        known: _Seen,
        layers: Layers,
        ops: Ops,
        x: Tensor,
        batch: PackedBatch,
        state: LayerStates,
    ) -> Tensor:
        """The pass itself; `known` then has its recording, or that there is none."""
        x, positions = x.clone(), batch.positions.clone()
        batch = replace(batch, positions=positions)
        hidden, recording = ops.record(lambda: layers(x, batch, state), self._scratch)
        if recording is None:
            known.never = True
        else:
            known.recorded = RecordedPass(x, positions, hidden, recording)
        return hidden
