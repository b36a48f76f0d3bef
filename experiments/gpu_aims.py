"""What the GPU kernels are asked to reach, held against a run's results."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hybridcache.experiments.gpu_bench import Row

SCANS = {"mamba2": "mamba_chunk_scan_combined", "mamba1": "selective_scan_fn"}
"""Their counterparts in mamba-ssm."""


class Aim(NamedTuple):
    """`row` takes at most `times` what `against` takes, or what its own floor says."""

    section: str
    row: str
    times: float
    against: str | None = None


AIMS = (
    *(Aim("prefill", f"{scan}, 0 checkpoints", 1.5, f"{scan}, {theirs}") for scan, theirs in SCANS.items()),
    *(
        Aim("prefill", f"{scan}, 1 checkpoints", 1.05, f"{scan}, 0 checkpoints")
        for scan in (*SCANS, "gated_delta")
    ),
    Aim("prefill", "attention", 1 / 0.6),
    *(Aim("decode", f"attention, batch {count}, graph", 1 / 0.8) for count in (1, 32, 128)),
    Aim("copies", "one launch", 1 / 0.85),
    Aim("model", "hit against a cold prompt of its new tokens", 1.3),
)


def aims(rows: Sequence[Row]) -> Iterator[Row]:
    """A row for each aim whose measurements are among `rows`; `floor` is what was aimed at, in times."""
    values = {(row.section, row.name): row for row in rows if row.value is not None}
    for aim in AIMS:
        measured = values.get((aim.section, aim.row))
        if measured is None or measured.value is None:
            continue
        if aim.section == "model":
            ratio: float | None = measured.value
        elif aim.against is None:
            ratio = measured.value / measured.floor if measured.floor else None
        else:
            other = values.get((aim.section, aim.against))
            ratio = measured.value / other.value if other and other.value else None
        if ratio is not None:
            against = aim.against or "floor"
            yield Row("aims", f"{aim.row} / {against}", ratio, "times", aim.times, ratio <= aim.times)
