"""The demo and the benchmark of the worker, on the tiny model and few tokens."""

import pytest

from hybridcache.experiments import overhead, worker_demo
from tests.worker_setup import MakeWorker, make_worker

__all__ = ["make_worker"]


def test_the_benchmark(make_worker: MakeWorker) -> None:
    workers = {"off": make_worker(cache=False), "on": make_worker()}
    first = overhead.ttft(workers["on"], cached=64, new=8, repeats=2)
    assert all(value > 0 for value in first.values()) and first.keys() > {"hit_seconds", "cold_long_to_hit"}
    assert overhead.throughput(workers, prompts=2, length=30, answer=3, pairs=2)["on_to_off"] > 0
    found = overhead.bookkeeping(workers["on"], running=3, answer=6)
    assert 0 < found["bookkeeping_to_step"] < 1 and found["bookkeeping_seconds"] < found["step_seconds"]


def test_the_demo(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker_demo, "SESSIONS", 2)
    monkeypatch.setattr(worker_demo, "TURNS", 2)
    monkeypatch.setattr(worker_demo, "SYSTEM_TOKENS", 40)
    worker_demo.main()
    printed = capsys.readouterr().out
    assert "both gave the same 64 tokens" in printed
    for row in ("TTFT, median ms", "tokens computed", "token hit rate", "lost: new"):
        assert row in printed
