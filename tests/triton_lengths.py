"""Which Triton kernels are compiled once more for a batch of other lengths.

A script: run without TRITON_INTERPRET it prints their names as a JSON list, those of single operations, or
with `models` those of every family's tiny model. None should be: each would hold up a request for seconds,
and might sum in another order.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from hybridcache.kernels.packed import PackedBatch
from hybridcache.kernels.triton.ops import TritonOps
from hybridcache.models.load import LoadedModel, load_model
from hybridcache.models.preset_configs import TINY_CONFIGS
from hybridcache.storage import Storage
from tests.triton_aot import Launch, recording
from tests.triton_launches import CPU, LENGTHS, batch, launch_lengths

OTHERS = (
    batch((0, 206), (640, 1), (256, 1)),
    batch((640, 15), (16, 1)),
    batch((0, 2), (0, 1)),
)
"""208, 16 and 3 tokens; 41, 41 and 1 blocks; LENGTHS has 201 and 44."""
SINGLE = batch((5, 1))


def more(launch: Callable[[PackedBatch], object]) -> Iterator[str]:
    """Names of the kernels that not all batches have alike; of decoding alone, those that others have not."""
    taken: list[set[Launch]] = []
    for packed in (LENGTHS, *OTHERS, SINGLE):
        with recording() as launches:
            launch(packed)
        taken.append(set(launches))
    usual, *others, single = taken
    assert single
    for found in set.union(*(usual ^ other for other in others)) | (single - usual):
        yield found.kernel.__name__


def of_models() -> Iterator[str]:
    """`more` of every family."""
    from hybridcache.models.presets import write_checkpoint

    for family in TINY_CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            write_checkpoint(family, Path(folder), seed=1)
            for linear in ("auto", "invariant"):
                loaded = load_model(Path(folder), ops=TritonOps(CPU, linear), dtype="bfloat16")
                launch = partial(compute, loaded, Storage(loaded.spec, 1 << 24, 16, memory="split"))
                yield from (f"{family}, {linear}: {name}" for name in more(launch))


def compute(loaded: LoadedModel, storage: Storage, packed: PackedBatch) -> None:
    """A pass of the model."""
    tokens = torch.zeros(packed.num_tokens, dtype=torch.int64)
    loaded.model(tokens, packed, storage.states(), torch.tensor([0]))


if __name__ == "__main__":
    json.dump(sorted(of_models() if "models" in sys.argv[1:] else more(launch_lengths)), sys.stdout)
