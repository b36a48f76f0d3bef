"""The benchmarks against a server."""

import json
from pathlib import Path
from typing import Any

import pytest

from hybridcache.experiments import http_overhead, serve_bench
from hybridcache.experiments.sse_client import Address, Answer
from tests.server_setup import MakeServer, make_server
from tests.worker_setup import MakeWorker, make_worker

__all__ = ["make_server", "make_worker"]


def test_a_trace_against_a_server(
    make_server: MakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = make_server(server={"api_keys": ("key",)}, max_num_batched_tokens=512)
    out = tmp_path / "figures.json"
    command = [
        "chat",
        "limit=40",
        "--url",
        server.url,
        "--speed",
        "1000",
        "--requests",
        "6",
        "--api-key",
        "key",
    ]
    serve_bench.main([*command, "--max-tokens", "900", "--json", str(out)])
    found: dict[str, Any] = json.loads(out.read_text())
    off, on = found["cache off"], found["cache on"]
    # The sixth request goes on from the second, and waits for its prefix should it come too soon.
    assert off["cached_tokens"] == 0 < on["cached_tokens"] < on["prompt_tokens"] == off["prompt_tokens"]
    for each in (off, on):
        assert each["requests"] == 6 and each["failed"] == 0
        assert 0 < each["ttft_p50"] <= each["ttft_p99"] <= each["e2e_p99"] and each["itl_p50"] > 0
        assert each["sent_late_p50"] >= 0
    printed = capsys.readouterr().out
    assert "cache off" in printed and "cached_share" in printed and "sent_late_p95" in printed


def test_what_fails_is_counted_and_not_averaged() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    whole = Answer(1.0, [1.5, 1.75], 2.0, usage)
    late = Answer(3.0, [], 3.5, {}, "429")
    found = serve_bench.figures([whole, late], [1.0, 2.5])
    assert (found["requests"], found["failed"], found["cached_share"]) == (2, 1, 0.4)
    assert (found["ttft_mean"], found["itl_mean"], found["e2e_mean"]) == (0.5, 0.25, 1.0)
    assert found["sent_late_mean"] == 0.25
    assert serve_bench.figures([late], [2.5])["failed"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--url", "https://x"], "http://HOST:PORT"),
        (["--speed", "0"], "--speed 0"),
        (["--url", "http://127.0.0.1:9"], "refused"),
        (["--max-tokens", "1"], "no request of at most 1 tokens"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        serve_bench.main(["chat", "limit=5", *arguments])
    assert message in capsys.readouterr().err


def test_an_address() -> None:
    assert Address.of("http://localhost:81") == ("localhost", 81)
    assert Address.of("http://[::1]") == ("::1", 80)


def test_http_beside_the_worker(make_worker: MakeWorker) -> None:
    found = http_overhead.measure(make_worker(), streams=3, answer=4, repeats=1)
    assert found["http_tokens_per_second"] > 0 and found["http_to_worker"] > 0
