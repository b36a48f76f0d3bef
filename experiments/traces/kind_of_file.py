"""Which kind of trace a source is: a generator's name, or a file told by its name and first row."""

from itertools import islice
from pathlib import Path

from hybridcache.experiments.traces.files import check_file
from hybridcache.experiments.traces.jsonl import read_rows
from hybridcache.experiments.traces.open import FILE_KINDS, GENERATORS

_BY_SUFFIX = {".npz": "npz", ".csv": "azure", ".json": "sharegpt"}
_BY_FIELD = {
    "chat_id": "bailian",
    "hash_ids": "mooncake",
    "input_tokens": "marconi",
    "messages": "prompts",
    "prompt": "prompts",
}


def kind_of(source: str) -> str:
    """The kind that `open_trace` takes.

    Raises:
        ValueError: a file that is none of them; the message says how to name its kind.
        OSError: no such file.
    """
    if source in GENERATORS:
        return source
    check_file(source)
    suffix = Path(source.removesuffix(".gz")).suffix
    if suffix in _BY_SUFFIX:
        return _BY_SUFFIX[suffix]
    for row in islice(read_rows(source), 1):
        for field, kind in _BY_FIELD.items():
            if field in row.values:
                return kind
    raise ValueError(f"{source}: cannot tell its kind; add --kind, one of {', '.join(FILE_KINDS)}")
