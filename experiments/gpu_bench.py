"""What the sections of the GPU check share: sizes, a clock, rows of results."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from hybridcache.kernels.ops import Ops
from hybridcache.kernels.packed import PackedBatch

BLOCK_SIZE = 16  # tokens
MEASURED_S = 0.005
"""Seconds that a repeat should take, for which short runs are repeated, MAX_RUNS times at most."""
MAX_RUNS = 20


class Sizes(NamedTuple):
    """Dimensions of the layers that are measured, and how much of them."""

    tokens: int
    """Of a long prefill."""
    checked_tokens: int
    """Of a comparison with float64."""
    context: int
    """Keys of a sequence that decodes."""
    batches: tuple[int, ...]
    """Sequences that decode together."""
    checkpoints: tuple[int, ...]
    """States stored in one pass."""
    heads: int
    kv_heads: int
    head_dim: int
    mamba2_heads: int
    mamba2_dim: int
    d_state: int
    groups: int
    channels: int
    """Of Mamba-1, whose d_state is 16."""
    delta_heads: int
    """Value heads of the gated delta rule, twice its key heads, of `delta_dim` each."""
    delta_dim: int
    copied_bytes: int
    """Of the copy that measures bandwidth."""
    matrix: int
    """Rows, columns and inner dimension of the product that measures the matrix rate."""
    prompt: int
    """Tokens of the model's cold prompt."""
    suffix: int
    """New tokens behind a cached prompt."""


# Layers of Nemotron-H 8B (attention, Mamba-2), Jamba 1.5 mini (attention, Mamba-1) and Qwen3-Next 80B.
REAL = Sizes(
    32_768, 390, 8_192, (1, 32, 128), (0, 1, 8, 64),
    32, 8, 128, 128, 64, 128, 8, 8_192, 32, 128, 1 << 31, 8_192, 16_384, 128,
)  # fmt: skip
TINY = Sizes(40, 18, 20, (1, 2), (0, 1), 2, 1, 16, 2, 16, 16, 1, 16, 2, 16, 1 << 12, 16, 20, 3)


class Row(NamedTuple):
    """One result."""

    section: str
    name: str
    value: float | None
    unit: str
    floor: float | None = None
    """What the measured ceilings allow, in the same unit."""
    ok: bool | None = None
    """None: a figure that nothing is asked of."""
    note: str = ""


@dataclass(slots=True)
class Bench:
    """A backend on a device, the sizes, and the results so far."""

    ops: Ops
    sizes: Sizes
    dtype: torch.dtype
    repeats: int
    bytes_per_s: float = 0.0
    """Measured by the section of ceilings, like the next; without it there are no floors."""
    flops_per_s: float = 0.0
    rows: list[Row] = field(default_factory=list)

    @property
    def device(self) -> torch.device:
        """Where everything runs."""
        return self.ops.device

    def randn(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Normal numbers there, of the activations' dtype unless another is given."""
        return torch.randn(*shape, device=self.device).to(dtype or self.dtype)

    def seconds(self, run: Callable[[], object]) -> float:
        """Median of the repeats after a run that compiles and warms up; short runs several at a time."""
        run()
        taken, count = [], 1
        for _ in range(self.repeats):
            self.wait()
            start = time.perf_counter()
            for _ in range(count):
                run()
            self.wait()
            taken.append((time.perf_counter() - start) / count)
            count = max(1, min(MAX_RUNS, int(MEASURED_S / taken[-1])))
        return median(taken)

    def graphed(self, run: Callable[[], object]) -> Callable[[], object]:
        """`run` as a CUDA graph, so that the device's time shows and not Python's; itself on a CPU."""
        if self.device.type != "cuda":
            return run
        run()
        self.wait()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return graph.replay

    @contextmanager
    def attempt(self, section: str, name: str, *, ours: bool = True) -> Iterator[None]:
        """What is raised inside becomes a row, a failed one if it is `ours`; the section goes on.

        Not where the device has stopped answering: then the section ends with what is raised.
        """
        try:
            yield
        except Exception as error:
            self.wait()
            words = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            self.rows.append(Row(section, name, None, "", ok=False if ours else None, note=words))

    def wait(self) -> None:
        """Until the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def timed(
        self,
        section: str,
        name: str,
        run: Callable[[], object],
        flops: float,
        num_bytes: float,
        *,
        ours: bool = True,
    ) -> None:
        """Adds a row of milliseconds with its floor: the slower of arithmetic and memory. See `attempt`."""
        floor = None
        if self.flops_per_s and self.bytes_per_s:
            floor = 1e3 * max(flops / self.flops_per_s, num_bytes / self.bytes_per_s)
        with self.attempt(section, name, ours=ours):
            self.rows.append(Row(section, name, self.seconds(run) * 1e3, "ms", floor))

    def batch(
        self,
        lengths: list[int],
        before: list[int] | None = None,
        emits: list[list[tuple[int, int]]] | None = None,
    ) -> PackedBatch:
        """Sequence i has slot i and the next free blocks."""
        tables, first = [], 0
        for length, known in zip(lengths, before or [0] * len(lengths), strict=True):
            count = -(-(length + known) // BLOCK_SIZE)
            tables.append(list(range(first, first + count)))
            first += count
        return PackedBatch.build(
            lengths,
            slots=list(range(len(lengths))),
            num_computed=before,
            emits=emits,
            block_tables=tables,
            block_size=BLOCK_SIZE,
        )
