"""Tensors addressed by ids: the KV of blocks and the states of slots."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from hybridcache.arena import Arena
from hybridcache.copier import Copier, TorchCopier
from hybridcache.id_layout import IdLayout
from hybridcache.lease import BlockCopy, StateCopy
from hybridcache.pool import Ids, MemoryBudget
from hybridcache.spec import ModelSpec


class Storage:
    """What the ids of a PrefixCache of the same spec, budget and block size stand for.

    Id-first: all tensors of a slot, and all layers' K and V of a block, are one region of exactly
    `spec.checkpoint_bytes` and `block_size * spec.kv_bytes_per_token` bytes. With `memory="unified"` either
    pool may come to fill the whole budget, so each has room for all of it, which only a CPU's lazily backed
    memory makes possible: resident memory follows the ids in use (see Arena).

    `copier` performs the copies: torch, unless a faster one for the device is given.

    Knows which ids were written and not released since (`blocks.written`, `slots.written`), and not why
    an id was chosen. `debug_poison` fills what is released with NaN; it stays resident then.

    Raises ValueError for a budget that is infinite or holds no id, for tensors that cannot be aligned, and
    for `unified` on a device other than a CPU.
    """

    __slots__ = (
        "spec",
        "block_size",
        "device",
        "debug_poison",
        "blocks",
        "slots",
        "copier",
        "_states",
        "_rows",
    )

    def __init__(
        self,
        spec: ModelSpec,
        budget_bytes: float,
        block_size: int = 16,
        *,
        device: str | torch.device = "cpu",
        memory: str = "unified",
        kv_fraction: float = 0.5,
        debug_poison: bool = False,
        copier: Copier | None = None,
    ) -> None:
        if block_size < 1:
            raise ValueError(f"block_size={block_size}: give the tokens of a block, at least 1")
        self.device = torch.device(device)
        if memory == "unified" and self.device.type != "cpu":
            raise ValueError(
                f"memory='unified' on {self.device}: blocks and slots have no shared arena there yet, so "
                "each needs its own part of the device's memory; use memory='split'"
            )
        self.spec = spec
        self.block_size = block_size
        self.debug_poison = debug_poison
        self.copier = TorchCopier() if copier is None else copier
        limits = MemoryBudget(budget_bytes, memory, kv_fraction).limits
        block_layout, slot_layout = IdLayout.of_blocks(spec, block_size), IdLayout.of_slots(spec)
        assert block_layout.bytes_per_id == block_size * spec.kv_bytes_per_token, spec.name
        assert slot_layout.bytes_per_id == spec.checkpoint_bytes, spec.name
        self.blocks = Arena("kv", block_layout.bytes_per_id, limits["kv"], self.device)
        """Empty for a model without attention."""
        self.slots = Arena("state", slot_layout.bytes_per_id, limits["state"], self.device)
        """Empty for a model without recurrent layers."""
        states: list[dict[str, Tensor]] = [{} for _ in spec.layers]
        for layout, arena in ((block_layout, self.blocks), (slot_layout, self.slots)):
            for tensor in layout.tensors:
                views = states[tensor.layer]
                if tensor.name in views:
                    raise ValueError(
                        f"layer {tensor.layer} has state and KV called {tensor.name!r}: rename one"
                    )
                views[tensor.name] = arena.view(tensor.offset, tensor.shape, getattr(torch, tensor.dtype))
        self._states: tuple[Mapping[str, Tensor], ...] = tuple(states)
        self._rows = [
            self.blocks.view(run.offset, (run.num_tensors, block_size, run.row_bytes), torch.uint8)
            for run in block_layout.row_runs()
        ]
        """The KV of a block by token, uint8 [num_blocks, tensors, block_size, bytes of a token]."""

    def states(self) -> Sequence[Mapping[str, Tensor]]:
        """What a model reads and writes: one mapping per layer of the spec, by the names that it declares.

        A state tensor of shape S is a view [num_slots, *S], a KV tensor a view [num_blocks, block_size, *S]:
        contiguous but for the first stride, which is a region's. The same objects every time.
        """
        return self._states

    def perform(self, state_copies: Sequence[StateCopy], block_copies: Sequence[BlockCopy]) -> None:
        """Perform the copies in order: each may read what one before it wrote, and overwrite its source.

        Raises ValueError, before anything is copied, for ids that storage does not have, a copy onto itself,
        a number of tokens outside [1, block_size], or a source that nobody wrote before its turn.
        """
        self.slots.check([slot for copy in state_copies for slot in copy])
        self.blocks.check([block for copy in block_copies for block in copy[:2]])
        for copy in (*state_copies, *block_copies):
            if copy[0] == copy[1]:
                raise ValueError(f"{copy} copies onto itself")
        for copy in block_copies:
            if not 1 <= copy.num_tokens <= self.block_size:
                raise ValueError(f"{copy}: a block has 1 to {self.block_size} tokens")
        for arena, pairs in (
            (self.slots, [copy[:2] for copy in state_copies]),
            (self.blocks, [copy[:2] for copy in block_copies]),
        ):
            targets: set[int] = set()
            for source, target in pairs:
                if source not in targets:
                    arena.check_written(source)
                targets.add(target)
        self.slots.write(np.array([target for _, target in state_copies], np.int64))
        self.blocks.write(np.array([target for _, target, _ in block_copies], np.int64))
        self.copier.copy_entries(self.slots.memory, state_copies)
        for rows in self._rows:
            self.copier.copy_rows(rows, block_copies)

    def released(self, block_ids: Ids, slots: Ids) -> None:
        """Nobody holds these ids (distinct) any longer: their content is gone, their memory goes in batches.

        Copies that read from them have been performed before. Ids that were never written may be among them.
        """
        self.blocks.release(self.blocks.check(block_ids), self.debug_poison)
        self.slots.release(self.slots.check(slots), self.debug_poison)
