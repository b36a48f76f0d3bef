"""Memory follows the ids in use."""

import mmap
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hybridcache.arena import KEPT_BYTES, KEPT_SHARE, Arena
from hybridcache.attention_layer import Attention
from hybridcache.mamba_layer import Mamba2
from hybridcache.node import NO_IDS
from hybridcache.pool import Ids
from hybridcache.spec import ModelSpec
from hybridcache.storage import Storage

CPU = torch.device("cpu")

BUDGET = 48 << 20
"""Bytes."""


def resident(storage: Storage) -> int:
    """Bytes of storage that take memory now, and of what the system lists together with it."""
    ranges = [
        (a.memory.data_ptr(), a.memory.data_ptr() + a.memory.nbytes) for a in (storage.blocks, storage.slots)
    ]
    total, counted = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if mapping := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            start, stop = (int(address, 16) for address in mapping.groups())
            counted = any(start < high and low < stop for low, high in ranges)
        elif counted and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def fill(arena: Arena) -> Ids:
    """Write all ids."""
    ids = np.arange(arena.num_ids)
    arena.write(ids)
    arena.memory.fill_(1)
    return ids


@pytest.mark.skipif(sys.platform != "linux", reason="memory goes back to the system on Linux only")
def test_resident_memory_follows_the_mix() -> None:
    attention = Attention(d_model=64, num_heads=4, num_kv_heads=4, head_dim=16, kv_dtype="float32")
    mamba = Mamba2(d_model=64, nheads=8, headdim=32, d_state=64, ngroups=1, d_conv=4, conv_width_stored=3)
    spec = ModelSpec("toy", (attention, mamba, mamba), d_model=64, vocab_size=16)
    storage = Storage(spec, BUDGET, block_size=16)
    constant, kept = 2 << 20, 2 * max(KEPT_BYTES, KEPT_SHARE * BUDGET)
    assert resident(storage) <= constant
    for _ in range(2):
        blocks = fill(storage.blocks)
        assert 0.95 * BUDGET <= resident(storage) <= 1.1 * BUDGET + constant
        storage.released(blocks, NO_IDS)
        assert resident(storage) <= kept + constant
        slots = fill(storage.slots)
        assert 0.95 * BUDGET <= resident(storage) <= 1.1 * BUDGET + constant
        for some in np.array_split(np.random.default_rng(0).permutation(slots), 20):
            storage.released(NO_IDS, some)
        assert resident(storage) <= kept + constant
    half = fill(storage.blocks)[: storage.blocks.num_ids // 2]
    storage.released(half, NO_IDS)
    assert 0.45 * BUDGET <= resident(storage) <= 0.5 * BUDGET + kept + constant


@pytest.mark.parametrize("bytes_per_id", [96, 1000, 4096, 5000, 8192, 13_000])
def test_only_whole_pages_without_a_used_id_are_given_back(bytes_per_id: int) -> None:
    arena = Arena("kv", bytes_per_id, 300 * bytes_per_id, CPU)
    flat = arena.memory.view(-1)
    rng = np.random.default_rng(bytes_per_id)
    used = np.zeros(arena.num_ids, dtype=np.bool_)
    for round_ in range(9):
        begin = int(rng.integers(0, 250))
        some = np.unique(np.concatenate((np.arange(begin, begin + 50), rng.integers(0, 300, 20))))
        arena.write(some)
        used[some] = True
        arena.memory[torch.from_numpy(some)] = torch.from_numpy((some % 250 + 1).astype(np.uint8))[:, None]
        begin = int(rng.integers(0, 200))
        gone = rng.permutation(
            np.unique(np.concatenate((np.arange(begin, begin + 100), rng.integers(0, 300, 40))))
        )
        arena.release(gone, poison=False)
        used[gone] = False
        if round_ % 3 == 0:
            continue
        arena.trim()
        assert (arena.written == used).all() and arena.num_written == used.sum()
        expected = torch.from_numpy((np.flatnonzero(used) % 250 + 1).astype(np.uint8))[:, None]
        assert bool((arena.memory[torch.from_numpy(used)] == expected).all()), "a used id lost its content"
        owner = np.arange(arena.num_ids * bytes_per_id) // bytes_per_id
        starts = np.arange(0, len(owner), mmap.PAGESIZE)
        pages_in_use = np.logical_or.reduceat(used[owner], starts)
        for start in starts[~pages_in_use].tolist():
            assert not flat[start : start + mmap.PAGESIZE].any(), "a page without a used id was kept"


def test_a_few_released_ids_are_kept_for_the_next_request() -> None:
    arena = Arena("kv", 4096, 64 * KEPT_BYTES, CPU)
    count = KEPT_BYTES // 4096
    ids = np.arange(2 * count)
    arena.write(ids)
    arena.memory[: 2 * count] = 7
    arena.release(ids[:count], poison=False)
    assert bool((arena.memory[:count] == 7).all())
    arena.write(ids[:1])
    arena.release(ids[count : count + 1], poison=False)
    assert bool((arena.memory[: count + 1] == 7).all()), "one of the kept ids was used again"
    arena.release(ids[count + 1 : count + 2], poison=False)
    assert bool((arena.memory[0] == 7).all()) and bool((arena.memory[count + 2 : 2 * count] == 7).all())
    assert not arena.memory[1 : count + 2].any()
