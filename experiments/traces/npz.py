"""Read hybridcache-trace-1, the native trace format."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hybridcache.experiments.traces.npz_arrays import NpzArrays
from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.experiments.traces.thinning import kept_requests

MEMORY_LIMIT_BYTES = 256 * 10**6  # a larger token pool (as stored) is read from a temporary file instead
_CHUNK_REQUESTS = 512  # requests whose token ranges are computed at a time


class NpzTrace:
    """A native trace. A request's input is its segments joined; a segment is a message."""

    def __init__(
        self,
        path: str | None,
        every_kth_session: int = 1,
        limit: int | None = None,
        memory_limit_bytes: int = MEMORY_LIMIT_BYTES,
    ) -> None:
        """Reads and checks the whole file; holds its pool (or a temporary file) and a few numbers a request.

        Raises:
            ValueError, OSError: as `NpzArrays`.
        """
        self._arrays = NpzArrays(path, memory_limit_bytes)
        self._kept = kept_requests(self._arrays.session, every_kth_session, limit)
        self.name = self._arrays.path.rsplit("/", 1)[-1].removesuffix(".npz")
        self.num_requests = len(self._kept)
        self.has_outputs = True

    def __iter__(self) -> Iterator[TraceRequest]:
        for first in range(0, len(self._kept), _CHUNK_REQUESTS):
            yield from self._requests(self._kept[first : first + _CHUNK_REQUESTS])

    def _requests(self, rows: NDArray[np.int64]) -> Iterator[TraceRequest]:
        """The requests with indices `rows` [k] int64; numpy finds all their ranges at once."""
        data = self._arrays
        # The segments of all requests in one line, each request's output after its inputs.
        counts = data.input_offsets[rows + 1] - data.input_offsets[rows] + 1
        last = np.cumsum(counts) - 1  # [k] places of the outputs
        first = last - counts + 1
        place = np.arange(last[-1] + 1) + np.repeat(data.input_offsets[rows] - first, counts)
        place[last] = 0  # no input segment: overwritten below
        segments = data.input_segments[place].astype(np.int64)
        segments[last] = data.output_segment[rows]
        starts, stops = data.segment_offsets[segments], data.segment_offsets[segments + 1]

        # Segments that touch in the pool are copied as one range.
        new = np.ones(len(segments), np.bool_)
        new[1:] = starts[1:] != stops[:-1]
        new[first] = True
        range_starts = starts[new].tolist()
        range_stops = stops[np.append(np.flatnonzero(new)[1:], len(new)) - 1].tolist()
        range_first = np.append(np.cumsum(new)[first] - 1, len(range_starts)).tolist()

        ends = np.cumsum(stops - starts)  # tokens, made relative to the request's start below
        ends -= np.repeat(ends[first] - (stops - starts)[first], counts)
        is_boundary = starts != stops  # an empty message has no end of its own
        is_boundary[last] = False
        boundaries = ends[is_boundary]
        boundary_first = np.append(0, np.cumsum(is_boundary)[last]).tolist()

        arrivals = (data.arrival[rows] - data.arrival[0]).tolist()
        sessions, turns = data.session[rows].tolist(), data.turn[rows].tolist()
        totals, prompts = ends[last].tolist(), ends[last - 1].tolist()
        for k in range(len(rows)):
            a, b = range_first[k], range_first[k + 1]
            yield TraceRequest(
                arrivals[k],
                sessions[k],
                turns[k],
                data.pool.join(range_starts[a:b], range_stops[a:b], totals[k]),
                prompts[k],
                boundaries[boundary_first[k] : boundary_first[k + 1]],
            )
