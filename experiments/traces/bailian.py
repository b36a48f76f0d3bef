"""Read the Qwen-Bailian trace format: lengths, block hashes, and which request continues which.

Published with Wang et al., KVCache Cache in the Wild, USENIX ATC '25: one JSON object a line with `chat_id`,
`parent_chat_id` (-1 for the first turn), `timestamp` (s), `input_length`, `output_length` (tokens), `type`,
`turn` and `hash_ids` (one a block of 16 input tokens; the last block, where partial, may have one or not).
"""

from array import array
from collections.abc import Iterator

from hybridcache.experiments.traces.block_ids import BlockIds
from hybridcache.experiments.traces.fields import MAX_TOKENS, Row
from hybridcache.experiments.traces.jsonl import read_rows
from hybridcache.experiments.traces.lineage import Lineage
from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.experiments.traces.stitch import Stitcher
from hybridcache.experiments.traces.thinning import kept_requests

BLOCK_TOKENS = 16  # tokens a hash id stands for
_MOST = 2**63 - 1  # chat ids


class BailianTrace:
    """A Qwen-Bailian trace. A session is a first turn and all that continues it, directly or not.

    A request repeats its parent's input and output where its hashes agree with the parent's up to the last
    full block and it is long enough; templates that rewrite the history share only what the hashes say.
    """

    def __init__(
        self,
        path: str | None,
        stitch: bool = True,
        every_kth_session: int = 1,
        limit: int | None = None,
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        """Reads and checks the whole file; holds a few numbers a request (unstitched: the ids), no tokens.

        Args:
            path: the file, plain or gzip.
            stitch: follow `parent_chat_id` (stitch.py); else no input repeats an output.
            every_kth_session: keep sessions 0, k, 2k, ...
            limit: then keep the first requests.
            block_tokens: tokens a hash id stands for.

        Raises:
            ValueError, OSError: `path` is no such trace; the message names path, row and field.
        """
        arrivals = array("d")  # s after the first row
        sessions, turns = array("q"), array("q")
        chats: dict[int, int] = {}  # chat_id -> the request's index
        stitcher = Stitcher(block_tokens, min_blocks=1)
        lineage, block_ids = Lineage(), BlockIds(block_tokens)
        first = last = None
        num_sessions = 0
        for index, row in enumerate(read_rows(path or "")):
            last = row.time_of("timestamp", last)
            first = last if first is None else first
            num_input, num_output = row.length("input_length"), row.length("output_length")
            ids = _block_hashes(row, num_input, block_tokens)
            chat = row.integer("chat_id", 0, _MOST)
            if chat in chats:
                raise row.error("chat_id", f"is {chat}, as that of an earlier row; drop one of them")
            # A parent before the file's start is not in it.
            parent = chats.get(row.integer("parent_chat_id", -1, _MOST), -1)
            chats[chat] = index
            arrivals.append(last - first)
            turns.append(row.integer("turn", 0, MAX_TOKENS))
            sessions.append(num_sessions if parent < 0 else sessions[parent])
            num_sessions += parent < 0
            if stitch:
                lineage.add(stitcher.add(ids, num_input, num_output, parent), num_input, num_output)
            else:
                if len(ids) * block_tokens < num_input:
                    ids = [*ids, 2**64 - 1 - index]  # the last block, which nobody else has
                block_ids.add(ids, num_input, num_output)
        if not stitch:
            try:
                block_ids.seal()
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
        self._source: Lineage | BlockIds = lineage if stitch else block_ids
        self._arrivals, self._sessions, self._turns = arrivals, sessions, turns
        self._kept = kept_requests(sessions, every_kth_session, limit)
        self.name = str(path).rsplit("/", 1)[-1].removesuffix(".gz").removesuffix(".jsonl")
        self.num_requests = len(self._kept)
        self.has_outputs = stitch

    def __iter__(self) -> Iterator[TraceRequest]:
        for request in self._kept.tolist():
            tokens, boundaries = self._source.tokens(request)
            yield TraceRequest(
                self._arrivals[request],
                self._sessions[request],
                self._turns[request],
                tokens,
                int(boundaries[-1]),
                boundaries,
            )


def _block_hashes(row: Row, num_input: int, block_tokens: int) -> list[int]:
    ids = row.integers("hash_ids", 2**64)
    full, needed = num_input // block_tokens, -(-num_input // block_tokens)
    if len(ids) not in (full, needed):
        raise row.error(
            "hash_ids",
            f"holds {len(ids)} ids, input_length {num_input} needs {needed} of {block_tokens} tokens; "
            "correct the row, or set trace.block_tokens to the trace's block size",
        )
    return ids
