"""wandb: never imported unless asked for; offline runs hold configuration, course and result."""

import json
import os
import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from hybridcache.experiments import tracker
from hybridcache.experiments.run import replay

Values = dict[str, Any]


def records(path: Path) -> list[Any]:
    """All records of a .wandb file. wandb's own process may still be writing it when a run has finished."""
    deadline = monotonic() + 60.0
    while True:
        found = list(_written(path))
        if found and found[-1].WhichOneof("record_type") == "exit":
            return found
        assert monotonic() < deadline, f"{path} has no end: {len(found)} records"
        sleep(0.1)


def _written(path: Path) -> Iterator[Any]:
    """The whole records so far: 7 bytes, then 32 KiB blocks of (crc32, length, type) and data."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32_768 - at % 32_768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        part = data[at + 7 : at + 7 + length]
        if len(part) < length:
            return
        whole += part
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
            record.ParseFromString(whole)
            yield record
            whole = b""


def test_offline_logs_configuration_course_and_summary(
    values: Callable[..., Values], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker, "LOG_EVERY_REQUESTS", 512)
    summary = replay(values("wandb.mode=offline", "trace.requests=1200", "trace.limit=null"), tmp_path)
    files = list(tmp_path.rglob("*.wandb"))
    assert len(files) == 1
    config: dict[str, Any] = {}
    result: dict[str, Any] = {}
    course: dict[str, list[float]] = defaultdict(list)
    for record in records(files[0]):
        for item in [*record.run.config.update, *record.config.update]:
            config[item.key or item.nested_key[0]] = json.loads(item.value_json)
        for item in record.summary.update:
            result[item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
        for item in record.history.item:
            course[item.key or item.nested_key[0]].append(json.loads(item.value_json))
    assert config["eviction"] == summary["config"]["eviction"]
    assert config["budget_gb"] == 1
    assert course["_step"] == [512, 1_024, 1_200]
    assert course["token_hit_rate"][-1] == pytest.approx(summary["token_hit_rate"])
    assert result["hit_tokens"] == summary["hit_tokens"]


def test_disabled_does_not_import_wandb(values: Callable[..., Values], tmp_path: Path) -> None:
    code = (
        "import json, sys; from pathlib import Path; from hybridcache.experiments.run import replay\n"
        "replay(json.loads(sys.argv[1]), Path(sys.argv[2])); assert 'wandb' not in sys.modules"
    )
    here = Path(__file__).resolve().parents[1]
    subprocess.run(
        [sys.executable, "-c", code, json.dumps(values("trace.requests=5")), str(tmp_path)],
        check=True,
        env={**os.environ, "PYTHONPATH": str(here)},
    )
