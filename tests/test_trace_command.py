"""`hybridcache trace`: what it says of a trace, and the file that it writes."""

import json
from pathlib import Path

import numpy as np
import pytest

from hybridcache.cli import main
from hybridcache.experiments.bounds import replay_bounds
from hybridcache.experiments.describe import as_text, describe
from hybridcache.experiments.trace_command import model_of, trace_of
from hybridcache.experiments.traces.open import open_trace
from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.experiments.working_set import WorkingSet
from hybridcache.policies.branch_and_final import BranchAndFinal
from tests.conftest import Values
from tests.toy_spec import HYBRID


def test_convert_writes_the_same_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "agent.npz"
    assert main(["trace", "convert", "agent", "limit=60", "seed=3", "--out", str(out)]) == 0
    assert "60 requests" in capsys.readouterr().out
    wanted, found = list(open_trace("agent", limit=60, seed=3)), list(open_trace("npz", path=str(out)))
    for a, b in zip(wanted, found, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        assert a.boundaries.tolist() == b.boundaries.tolist()
        assert (a.arrival, a.session, a.turn, a.num_prompt) == (b.arrival, b.session, b.turn, b.num_prompt)
    # Messages that repeat are there once.
    with np.load(out) as arrays:
        assert len(arrays["tokens"]) < sum(len(r.tokens) for r in wanted) / 4
    # A converted file is one to convert.
    assert main(["trace", "convert", str(out), "--out", str(tmp_path / "again.npz")]) == 0
    assert len(list(open_trace("npz", path=str(tmp_path / "again.npz")))) == 60


def test_describe_agrees_with_the_bounds_of_reports(
    capsys: pytest.CaptureFixture[str], values: object
) -> None:
    assert main(["trace", "describe", "chat", "limit=120", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert callable(values)
    bounds = replay_bounds(values("trace.limit=120"))
    assert found["bounds"]["token_hit_rate_hybrid"] == pytest.approx(bounds.hybrid_token_hit_rate)
    assert found["bounds"]["token_hit_rate_kv"] == pytest.approx(bounds.kv_token_hit_rate)
    assert found["bounds"]["flops_saved_ratio_hybrid"] == pytest.approx(bounds.hybrid_flops_saved_ratio)
    assert found["requests"] == 120
    assert 0 < found["working_set_gb"]["mean"] < found["working_set_gb"]["peak"] < found["everything_gb"]
    assert main(["trace", "describe", "chat", "limit=120"]) == 0
    assert "working set" in capsys.readouterr().out


def test_long_lengths_are_printed_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "describe", "agent", "limit=5", "tool_prompt_tokens=15000"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "input tokens" in line)
    assert "e+" not in line
    assert int(line.split()[-1].replace(",", "")) > 10_000


class Listed:
    """A trace of given requests: (seconds, tokens of the input); each answers with one token of its own."""

    name = "listed"
    has_outputs = True

    def __init__(self, *requests: tuple[float, list[int]]) -> None:
        self._requests = requests
        self.num_requests = len(requests)

    def __iter__(self):  # type: ignore[no-untyped-def]
        for i, (arrival, tokens) in enumerate(self._requests):
            everything = np.array([*tokens, 10_000 + i], np.uint32)
            yield TraceRequest(arrival, i, 0, everything, len(tokens), np.array([len(tokens)]))


def test_working_set_and_reuse_of_requests_known_by_heart() -> None:
    spec = HYBRID
    text = list(range(100, 164))
    trace = Listed((0.0, text), (10.0, [*text, *range(200, 232)]), (30.0, [*text, 7, 8]), (40.0, [1, 2, 3]))
    found = describe(trace, spec, BranchAndFinal(), block_size=16)
    kv, checkpoint = 64 * spec.kv_bytes_per_token, spec.checkpoint_bytes
    # The first request's end (its answer's token is never computed) is resumed at after 10 s and after 20 s.
    assert found["reuse_seconds"]["mean"] == 15
    assert found["bounds"]["token_hit_rate_hybrid"] == 128 / (64 + 96 + 66 + 3)
    assert found["branch_points"] == 1
    sizes = found["working_set_gb"]
    assert sizes["peak"] == pytest.approx((kv + checkpoint) / 1e9)
    assert sizes["mean"] == pytest.approx((kv + checkpoint) / 1e9 * 30 / 40)


def test_a_trace_without_reuse_has_no_time_until_reuse() -> None:
    found = describe(Listed((0.0, [1, 2, 3]), (1.0, [4, 5, 6])), HYBRID, BranchAndFinal())
    assert "seconds until reuse  nothing is used again" in as_text(found)


def test_working_set_without_reuse_is_empty() -> None:
    found = WorkingSet(HYBRID, 16)
    for i in range(3):
        found.add(np.arange(1000 * i, 1000 * i + 40, dtype=np.uint32).tobytes(), 0, float(i), None)
    assert found.total() == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["describe", "nowhere.npz"], "nowhere.npz: no such file"),
        (["describe", "chat", "limit"], "'limit': give settings as KEY=VALUE"),
        (["describe", "chat", "limit=[1"], "limit=[1: not YAML"),
        (["describe", "chat", "limit=1", "trace.limit=2"], "'trace.limit=2': limit is given already"),
        (["describe", "chat", "kind=scan"], "'kind=scan': kind is given already"),
        (["describe", "chat", "limit=0"], "trace.limit must be an integer of 1 or more"),
        (["describe", "chat", "--model", "gpt"], "model=gpt is unknown; choose one of bamba_9b"),
        (["convert", "chat", "--out", "x.json"], "the native format is .npz"),
        (["convert", "chat", "--out", "no/x.npz"], "--out no/x.npz: there is no folder no; make it first"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["trace", *arguments])
    assert stop.value.code == 2
    assert problem in capsys.readouterr().err


def test_models_by_name_and_by_file(tmp_path: Path) -> None:
    named = model_of("tiny")
    assert named.name == "tiny"
    config: Values = {"model_type": "mamba2", "hidden_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="config"):
        model_of(str(tmp_path / "config.json"))
    for text in (b"name: [1", b"name: \xff"):
        (tmp_path / "model.yaml").write_bytes(text)
        with pytest.raises(ValueError, match=r"model\.yaml: not YAML"):
            model_of(str(tmp_path / "model.yaml"))
    assert trace_of("chat", None, ["trace.limit=3"]).num_requests == 3
