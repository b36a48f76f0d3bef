"""The native format: faithful, restartable, and refused when its arrays do not fit."""

import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridcache.experiments.traces.npz import NpzTrace
from hybridcache.experiments.traces.open import open_trace
from hybridcache.experiments.traces.request import TraceRequest

Arrays = dict[str, NDArray[np.generic]]


def small() -> Arrays:
    """Three requests of two sessions over six segments; segment 3 is empty."""
    return {
        "format": np.array("hybridcache-trace-1"),
        "tokens": np.array([10, 11, 12, 20, 21, 30, 31, 32, 40], np.uint16),
        "segment_offsets": np.array([0, 3, 5, 8, 8, 9], np.int64),
        "arrival": np.array([100.0, 100.5, 103.0]),
        "session": np.array([7, 3, 7], np.int32),
        "turn": np.array([0, 0, 1], np.int32),
        "input_offsets": np.array([0, 1, 3, 7], np.int64),
        "input_segments": np.array([0, 0, 2, 0, 1, 3, 2], np.int32),
        "output_segment": np.array([1, 4, 4], np.int32),
    }


def write(path: Path, arrays: Arrays, compress: bool = True) -> str:
    (np.savez_compressed if compress else np.savez)(path, **arrays)  # type: ignore[arg-type]
    return str(path)


def same(a: TraceRequest, b: TraceRequest) -> bool:
    return (
        a.tokens.tolist() == b.tokens.tolist()
        and a.boundaries.tolist() == b.boundaries.tolist()
        and ((a.arrival, a.session, a.turn, a.num_prompt) == (b.arrival, b.session, b.turn, b.num_prompt))
    )


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("memory_limit_bytes", [10**6, 0])
@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.uint32, np.int64, ">u4"])
def test_a_request_is_its_segments_joined(
    compress: bool, memory_limit_bytes: int, dtype: np.typing.DTypeLike, tmp_path: Path
) -> None:
    arrays = small()
    arrays["tokens"] = arrays["tokens"].astype(dtype)
    path = write(tmp_path / "small.npz", arrays, compress)
    trace = NpzTrace(path, memory_limit_bytes=memory_limit_bytes)
    assert (trace.name, trace.num_requests, trace.has_outputs) == ("small", 3, True)
    a, b, c = trace
    assert a.tokens.dtype == np.uint32
    assert a.tokens.tolist() == [10, 11, 12, 20, 21]
    assert b.tokens.tolist() == [10, 11, 12, 30, 31, 32, 40]
    assert c.tokens.tolist() == [10, 11, 12, 20, 21, 30, 31, 32, 40]
    assert [r.num_prompt for r in (a, b, c)] == [3, 6, 8]
    assert [r.boundaries.tolist() for r in (a, b, c)] == [[3], [3, 6], [3, 5, 8]]
    assert [(r.arrival, r.session, r.turn) for r in (a, b, c)] == [(0.0, 7, 0), (0.5, 3, 0), (3.0, 7, 1)]


@pytest.mark.parametrize(
    ("settings", "kept"),
    [({"every_kth_session": 2}, [0, 2]), ({"limit": 2}, [0, 1]), ({"every_kth_session": 2, "limit": 1}, [0])],
)
def test_thinning(settings: dict[str, int], kept: list[int], tmp_path: Path) -> None:
    path = write(tmp_path / "small.npz", small())
    whole = list(open_trace("npz", path=path))
    thinned = open_trace("npz", path=path, **settings)  # type: ignore[arg-type]
    assert thinned.num_requests == len(kept)
    assert all(same(a, whole[i]) for a, i in zip(thinned, kept, strict=True))


def random_arrays(requests: int, seed: int) -> Arrays:
    random = np.random.default_rng(seed)
    sizes = random.integers(0, 6, 300)
    sizes[:2] = 3
    counts = random.integers(1, 9, requests)
    offsets = np.append(0, np.cumsum(counts))
    segments = random.integers(0, 300, offsets[-1])
    segments[offsets[:-1]] = 0  # no input is empty
    return {
        "format": np.array("hybridcache-trace-1"),
        "tokens": random.integers(0, 2**32, sizes.sum(), dtype=np.uint32),
        "segment_offsets": np.append(0, np.cumsum(sizes)),
        "arrival": np.sort(random.random(requests)),
        "session": random.integers(0, 50, requests),
        "turn": np.zeros(requests, np.int64),
        "input_offsets": offsets,
        "input_segments": segments,
        "output_segment": np.flatnonzero(sizes)[random.integers(0, 200, requests)],
    }


@pytest.mark.parametrize("memory_limit_bytes", [10**6, 0])
def test_many_requests_against_plain_joining(memory_limit_bytes: int, tmp_path: Path) -> None:
    """More requests than are handled at a time; two readings side by side; any thinning."""
    arrays = random_arrays(1300, 1)
    path = write(tmp_path / "t.npz", arrays)
    trace = NpzTrace(path, memory_limit_bytes=memory_limit_bytes)
    texts = np.split(arrays["tokens"], arrays["segment_offsets"][1:-1].tolist())
    offsets, segments = arrays["input_offsets"].tolist(), arrays["input_segments"].tolist()
    for i, (one, two) in enumerate(zip(trace, NpzTrace(path), strict=True)):
        assert same(one, two)
        parts = [texts[s] for s in segments[offsets[i] : offsets[i + 1]]]
        output = texts[int(arrays["output_segment"][i])]
        assert np.array_equal(one.tokens, np.concatenate([*parts, output]))
        assert one.boundaries.tolist() == np.unique(np.cumsum([len(p) for p in parts])).tolist()
        assert one.num_prompt == one.boundaries[-1]
    sessions = list(dict.fromkeys(arrays["session"].tolist()))
    kept = [r for r in trace if sessions.index(r.session) % 7 == 0]
    thinned = list(NpzTrace(path, every_kth_session=7))
    assert len(kept) == len(thinned)
    assert all(map(same, kept, thinned))


def test_a_large_pool_stays_out_of_memory(tmp_path: Path) -> None:
    """Peak memory of opening and reading follows the request; the pool here is 32 MB of ids."""
    arrays = small()
    size = 8_000_000
    arrays["tokens"] = np.zeros(size, np.uint32)
    arrays["segment_offsets"] = np.array([0, 3, 5, 8, 8, size])
    path = write(tmp_path / "t.npz", arrays)
    del arrays
    tracemalloc.start()
    trace = NpzTrace(path, limit=1, memory_limit_bytes=1_000_000)
    assert len(next(iter(trace)).tokens) == 5
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000


def changed(name: str, value: object) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        arrays[name] = np.array(value)

    return change


BAD = [
    (changed("format", "hybridcache-trace-2"), "format", "knows 'hybridcache-trace-1'"),
    (changed("format", 1), "format", "a string"),
    (changed("tokens", [1.0] * 9), "tokens", "integers"),
    (changed("tokens", [[1] * 9]), "tokens", "integers with 1 dim"),
    (changed("tokens", [-1] * 9), "tokens", "negative"),
    (changed("tokens", [2**33] * 9), "tokens", "too large"),
    (changed("tokens", [1] * 8), "segment_offsets", "run from 0 to 8"),
    (changed("segment_offsets", [0, 3, 2, 8, 8, 9]), "segment_offsets", "ascend"),
    (changed("segment_offsets", [1, 3, 5, 8, 8, 9]), "segment_offsets", "from 0"),
    (changed("segment_offsets", np.empty(0, np.int64)), "segment_offsets", "nothing"),
    (changed("segment_offsets", [0, 3, 5, 9]), "input_segments", r"lie in \[0, 3\), got 3"),
    (changed("arrival", [0.0, np.nan, 1.0]), "arrival", "nan"),
    (changed("arrival", [0.0, 1.0, np.inf]), "arrival", "inf"),
    (changed("arrival", [0.0, 2.0, 1.0]), "arrival", "sort the requests"),
    (changed("arrival", [0, 1, 2]), "arrival", "floats"),
    (changed("arrival", np.empty(0)), "arrival", "no requests"),
    (changed("session", [1, 2]), "session", "3 entries"),
    (changed("turn", [0.0, 0.0, 1.0]), "turn", "integers"),
    (changed("arrival", [-1e308, 0.0, 1e308]), "arrival", "no clock shows that"),
    (changed("session", np.array([1, 2**63, 2], np.uint64)), "session", "below 2"),
    (changed("turn", np.array([1, 2, 2**64 - 1], np.uint64)), "turn", "below 2"),
    (changed("input_offsets", [0, 1, 3]), "input_offsets", "4 entries"),
    (changed("input_offsets", [0, 4, 3, 7]), "input_offsets", "ascend"),
    (changed("input_offsets", [0, 1, 3, 6]), "input_offsets", "run from 0 to 7"),
    (changed("input_offsets", [0, 1, 1, 7]), "input_offsets", "input without tokens"),
    (changed("input_segments", [0, 0, 2, 0, -1, 3, 2]), "input_segments", "got -1"),
    (changed("input_segments", [3, 0, 2, 0, 1, 3, 2]), "input_offsets", "input without tokens"),
    (changed("output_segment", [1, 4, 5]), "output_segment", "got 5"),
    (changed("output_segment", [1, 3, 4]), "output_segment", "empty segment"),
    (changed("session", np.array([{}, 1, 2], object)), "session", "cannot be read"),
]


@pytest.mark.parametrize("memory_limit_bytes", [10**6, 0])
@pytest.mark.parametrize(("change", "name", "problem"), BAD)
def test_arrays_that_do_not_fit(
    change: Callable[[Arrays], None], name: str, problem: str, memory_limit_bytes: int, tmp_path: Path
) -> None:
    arrays = small()
    change(arrays)
    path = write(tmp_path / "bad.npz", arrays)
    with pytest.raises(ValueError, match=rf"bad.npz.*array '{name}': .*{problem}"):
        NpzTrace(path, memory_limit_bytes=memory_limit_bytes)


@pytest.mark.parametrize("name", list(small()))
def test_a_missing_array(name: str, tmp_path: Path) -> None:
    arrays = small()
    del arrays[name]
    path = write(tmp_path / "bad.npz", arrays)
    with pytest.raises(ValueError, match=rf"bad.npz, array '{name}': missing"):
        open_trace("npz", path=path)


def test_rows_are_named(tmp_path: Path) -> None:
    arrays = small()
    arrays["arrival"] = np.array([0.0, 2.0, 1.0])
    with pytest.raises(ValueError, match=r"bad.npz, row 2, array 'arrival'"):
        open_trace("npz", path=write(tmp_path / "bad.npz", arrays))


@pytest.mark.parametrize("memory_limit_bytes", [10**6, 0])
def test_damaged_files(memory_limit_bytes: int, tmp_path: Path) -> None:
    whole = Path(write(tmp_path / "t.npz", random_arrays(50, 2))).read_bytes()
    bad = tmp_path / "bad.npz"
    at = whole.index(b"tokens.npy") + 200  # inside the compressed ids
    for data in (b"plain text", whole[: len(whole) // 2], whole[:at] + b"\0" * 64 + whole[at + 64 :]):
        bad.write_bytes(data)
        with pytest.raises(ValueError, match=r"bad.npz.*(no .npz file|damaged|cannot be read|ids)"):
            NpzTrace(str(bad), memory_limit_bytes=memory_limit_bytes)


HEADER = "{'descr': '<i8', 'fortran_order': False, 'shape': (%s,), }"


@pytest.mark.parametrize("memory_limit_bytes", [10**6, 0])
@pytest.mark.parametrize("name", ["session", "tokens"])
@pytest.mark.parametrize("header", [HEADER % 10**15, HEADER % 10**20, HEADER % -3, "{'descr': [[[[", "'\x00"])
def test_a_header_that_is_none_or_promises_too_much(
    header: str, name: str, memory_limit_bytes: int, tmp_path: Path
) -> None:
    path = tmp_path / "bad.npz"
    write(path, {key: value for key, value in small().items() if key != name})
    text = header.encode() + b"\n"
    with zipfile.ZipFile(path, "a") as archive:
        data = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(24)
        archive.writestr(f"{name}.npy", data)
    with pytest.raises(ValueError, match=rf"bad.npz, array '{name}': "):
        NpzTrace(str(path), memory_limit_bytes=memory_limit_bytes)
