"""Write any trace in the native format, hybridcache-trace-1."""

from array import array
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hybridcache.experiments.traces.npz_arrays import FORMAT
from hybridcache.experiments.traces.request import Trace
from hybridcache.tokens import TokenIds


class Written(NamedTuple):
    """What a file came to hold."""

    requests: int
    segments: int
    tokens: int  # of the pool: a message that is repeated is there once


def write_npz(trace: Trace, path: Path) -> Written:
    """Write `trace` to `path`, whole or not at all; messages and outputs that repeat are stored once.

    Holds the distinct tokens in memory, 4 bytes each. Raises OSError when `path` cannot be written.
    """
    segments: dict[bytes, int] = {}  # digest of a message -> its number
    pool: list[TokenIds] = []
    sizes, inputs, outputs = array("q"), array("q"), array("q")
    offsets, sessions, turns, arrivals = array("q", [0]), array("q"), array("q"), array("d")

    def segment(tokens: TokenIds) -> int:
        digest = blake2b(tokens.tobytes(), digest_size=16).digest()
        number = segments.setdefault(digest, len(segments))
        if number == len(pool):
            pool.append(tokens.copy())
            sizes.append(len(tokens))
        return number

    for request in trace:
        start = 0
        for stop in request.boundaries.tolist():
            inputs.append(segment(request.tokens[start:stop]))
            start = stop
        outputs.append(segment(request.tokens[request.num_prompt :]))
        offsets.append(len(inputs))
        arrivals.append(request.arrival)
        sessions.append(request.session)
        turns.append(request.turn)
    draft = path.with_name(f".{path.name}.draft.npz")
    try:
        np.savez_compressed(
            draft,
            format=np.array(FORMAT),
            tokens=np.concatenate(pool),
            segment_offsets=np.append(0, np.cumsum(np.frombuffer(sizes, np.int64))),
            arrival=np.frombuffer(arrivals),
            session=np.frombuffer(sessions, np.int64),
            turn=np.frombuffer(turns, np.int64),
            input_offsets=np.frombuffer(offsets, np.int64),
            input_segments=np.frombuffer(inputs, np.int64),
            output_segment=np.frombuffer(outputs, np.int64),
        )
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return Written(len(arrivals), len(sizes), sum(sizes))
