"""Which Triton kernels are compiled once more for a batch of other lengths.

A script: run without TRITON_INTERPRET it prints their names as a JSON list. None should be: each would hold
up a request for seconds, and might sum in another order.
"""

import json
import sys

from tests.triton_aot import Launch, recording
from tests.triton_launches import LENGTHS, batch, launch_lengths

OTHERS = (
    batch((0, 206), (640, 1), (256, 1)),
    batch((640, 15), (16, 1)),
    batch((0, 2), (0, 1)),
)
"""208, 16 and 3 tokens; 41, 41 and 1 blocks; LENGTHS has 201 and 44."""
SINGLE = batch((5, 1))


def main() -> None:
    """Prints the names."""
    taken: list[set[Launch]] = []
    for packed in (LENGTHS, *OTHERS, SINGLE):
        with recording() as launches:
            launch_lengths(packed)
        taken.append(set(launches))
    usual, *others, single = taken
    more = set.union(*(usual ^ other for other in others)) | (single - usual)
    json.dump(sorted(launch.kernel.__name__ for launch in more), sys.stdout)


if __name__ == "__main__":
    main()
