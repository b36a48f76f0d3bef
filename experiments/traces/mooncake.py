"""Read the Mooncake trace format: lengths and block hashes in place of tokens.

Qin et al., Mooncake, FAST '25: one JSON object a line with `timestamp` (ms), `input_length`, `output_length`
(tokens) and `hash_ids` (one a block of 512 input tokens, the last block possibly partial).
"""

from array import array
from collections.abc import Iterator

from hybridcache.experiments.traces.block_ids import BlockIds
from hybridcache.experiments.traces.fields import Row
from hybridcache.experiments.traces.jsonl import read_rows
from hybridcache.experiments.traces.lineage import Lineage
from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.experiments.traces.stitch import Stitcher
from hybridcache.experiments.traces.thinning import kept_requests, number_turns

BLOCK_TOKENS = 512  # tokens a hash id stands for
DEFAULT_MIN_BLOCKS = 2  # blocks; all requests of the conversation trace share the first one


class MooncakeTrace:
    """A Mooncake trace, stitched into conversations or not.

    A session is all requests with the same first `min_blocks` blocks; a shorter request is one by itself.
    Whatever stitching joins lies within one session.
    """

    def __init__(
        self,
        path: str | None,
        stitch: bool = True,
        min_blocks: int = DEFAULT_MIN_BLOCKS,
        every_kth_session: int = 1,
        limit: int | None = None,
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        """Reads and checks the whole file; holds a few numbers a request (unstitched: the ids), no tokens.

        Args:
            path: the file, plain or gzip.
            stitch: infer which request continues which (stitch.py); else no input repeats an output.
            min_blocks: shortest match, in blocks, that makes a continuation; 2 suits the conversation trace,
                where all share a first block, 1 the synthetic one.
            every_kth_session: keep sessions 0, k, 2k, ...
            limit: then keep the first requests.
            block_tokens: tokens a hash id stands for.

        Raises:
            ValueError, OSError: `path` is no such trace; the message names path, row and field.
        """
        arrivals = array("d")  # ms after the first row
        sessions = array("q")
        numbers: dict[tuple[int, ...], int] = {}  # a session's first blocks -> its number
        stitcher = Stitcher(block_tokens, min_blocks)
        lineage, block_ids = Lineage(), BlockIds(block_tokens)
        first = last = None
        for index, row in enumerate(read_rows(path or "")):
            last = row.time_of("timestamp", last, "ms")
            first = last if first is None else first
            num_input, num_output = row.length("input_length"), row.length("output_length")
            ids = _block_hashes(row, num_input, block_tokens)
            arrivals.append(last - first)
            key = tuple(ids[:min_blocks]) if len(ids) >= min_blocks else (-1, index)
            sessions.append(numbers.setdefault(key, len(numbers)))
            if stitch:
                lineage.add(stitcher.add(ids, num_input, num_output), num_input, num_output)
            else:
                block_ids.add(ids, num_input, num_output)
        if not stitch:
            try:
                block_ids.seal()
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
        self._source: Lineage | BlockIds = lineage if stitch else block_ids
        self._arrivals = arrivals
        self._sessions = sessions
        self._turns = number_turns(self._sessions)
        self._kept = kept_requests(self._sessions, every_kth_session, limit)
        self.name = str(path).rsplit("/", 1)[-1].removesuffix(".gz").removesuffix(".jsonl")
        self.num_requests = len(self._kept)
        self.has_outputs = stitch

    def __iter__(self) -> Iterator[TraceRequest]:
        for request in self._kept.tolist():
            tokens, boundaries = self._source.tokens(request)
            arrival = self._arrivals[request] / 1000
            session, turn = self._sessions[request], int(self._turns[request])
            yield TraceRequest(arrival, session, turn, tokens, int(boundaries[-1]), boundaries)


def _block_hashes(row: Row, num_input: int, block_tokens: int) -> list[int]:
    ids = row.integers("hash_ids", 2**64)
    needed = -(-num_input // block_tokens)
    if len(ids) != needed:
        raise row.error(
            "hash_ids",
            f"holds {len(ids)} ids, input_length {num_input} needs {needed} of {block_tokens} tokens; "
            "correct the row, or set trace.block_tokens to the trace's block size",
        )
    return ids
