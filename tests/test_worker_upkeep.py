"""What a worker keeps and shows while no step runs, and what it takes of its caller."""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridcache.engine import Engine
from hybridcache.models.presets import preset_folder
from hybridcache.runner import ModelRunner
from hybridcache.worker import SamplingParams
from tests.worker_setup import GREEDY, MakeWorker, given, in_engine, make_worker, tokens

__all__ = ["make_worker"]


@pytest.mark.parametrize("way", ["flush", "expire", "abort", "cache=false"])
def test_memory_is_given_back_though_no_step_follows(make_worker: MakeWorker, way: str) -> None:
    """Storage holds what the cache holds, also once nothing runs any more."""
    ttl_seconds, cached = (0.2 if way == "expire" else None), way != "cache=false"
    worker = make_worker(ttl_seconds=ttl_seconds, cache=cached, debug_poison=False, max_num_batched_tokens=64)

    def held(engine: Engine) -> tuple[int, int, int, int]:
        assert isinstance(engine.runner, ModelRunner)
        store, storage = engine.cache.store, engine.runner.storage
        assert storage.blocks.num_written <= store.blocks.num_used
        return (
            storage.blocks.num_written, store.blocks.num_used, storage.slots.num_written, store.slots.num_used
        )  # fmt: skip

    stream = worker.submit(tokens(2_000), SamplingParams(max_tokens=500, ignore_eos=True))
    if way == "abort":
        next(iter(stream))
    else:
        stream.abort()
    stream.wait(60)
    if way != "expire":
        worker.generate([tokens(40, 1), tokens(30, 2)], GREEDY)
    if way == "flush":
        assert min(in_engine(worker, held)) > 0
        worker.flush()
    if way == "expire":
        time.sleep(0.25)
        assert worker.picture().nodes == () and worker.stats().num_checkpoints == 0
    found = in_engine(worker, held)
    assert found[0] == found[1] and found[2] == found[3]
    assert (found == (0, 0, 0, 0)) == (way != "abort")


@pytest.mark.parametrize("limit", [1.5, -1, True, "all"])
def test_a_picture_of_no_count_is_refused(make_worker: MakeWorker, limit: Any) -> None:
    worker = make_worker()
    with pytest.raises(ValueError, match=rf"limit={limit!r}: give the nodes to show"):
        worker.picture(limit)
    worker.generate([tokens(40)], GREEDY)
    assert len(worker.picture(1).nodes) == 1 and worker.picture(0).nodes == ()


def test_what_has_expired_is_not_shown(make_worker: MakeWorker) -> None:
    worker = make_worker(ttl_seconds=600.0)
    worker.submit(tokens(40), GREEDY, ttl_seconds=0.2).result(60)
    worker.generate([tokens(30, 1)], GREEDY)
    assert max(node.stop for node in worker.picture().nodes) == 40 + 6 - 1
    time.sleep(0.25)
    nodes = worker.picture().nodes
    assert max(node.stop for node in nodes) == 30 + 6 - 1
    assert all(node.expires_in_seconds is not None and node.expires_in_seconds > 0 for node in nodes)
    stats = worker.stats()
    assert stats.usage.state.evictable == stats.num_checkpoints * worker.in_engine(
        lambda engine: engine.cache.spec.checkpoint_bytes
    ) and stats.num_checkpoints == sum(node.checkpoint is not None for node in nodes)


@pytest.mark.parametrize("salt", [5, "", "x" * 257, b"a", "\ud800"])
def test_a_flush_of_what_is_no_salt_is_refused(make_worker: MakeWorker, salt: Any) -> None:
    worker = make_worker()
    worker.generate([tokens(40)], GREEDY)
    with pytest.raises(ValueError, match="cache_salt="):
        worker.flush(salt)
    assert worker.picture().nodes


@pytest.mark.parametrize(
    "setting",
    [
        {"budget_gb": "1"}, {"budget_gb": None}, {"budget_gb": True}, {"block_size": 1.5},
        {"block_size": None}, {"max_num_seqs": 2.5}, {"max_num_batched_tokens": "64"}, {"max_queue": 1.5},
        {"threads": "2"}, {"max_model_len": 100.5}, {"ttl_seconds": "5m"}, {"kv_fraction": "half"},
        {"model": 5}, {"eviction": 5}, {"eviction": {}}, {"eviction": {"name": 5}}, {"admission": None},
    ],
)  # fmt: skip
def test_a_setting_of_another_type_is_named(make_worker: MakeWorker, setting: dict[str, Any]) -> None:
    (name,) = setting
    says = "is no policy" if name in ("eviction", "admission") else f"^{name}="
    with pytest.raises(ValueError, match=says):
        make_worker(**setting)


@pytest.mark.parametrize(
    "setting",
    [
        {"priority": "high"}, {"priority": float("nan")}, {"priority": 1.5}, {"priority": None},
        {"ttl_seconds": "5m"}, {"ttl_seconds": True}, {"ttl_seconds": float("nan")}, {"ttl_seconds": 0},
        {"request_id": 5}, {"cache_salt": 5},
    ],
)  # fmt: skip
def test_a_request_of_another_type_is_refused_and_harms_nobody(
    make_worker: MakeWorker, setting: dict[str, Any]
) -> None:
    worker = make_worker()
    stream = worker.submit(tokens(40), GREEDY)
    with pytest.raises(ValueError, match=f"^{next(iter(setting))}="):
        worker.submit(tokens(30), GREEDY, **setting)
    assert stream.result(60).finish_reason == "length" and worker.health


def test_what_the_caller_does_with_its_arrays_changes_nothing(make_worker: MakeWorker) -> None:
    """A prompt and its parameters are taken as they are at the call, though they wait to be computed."""
    worker = make_worker()
    prompt, bias = np.array(tokens(60), dtype=np.uint32), {20: 50.0}
    params = replace(GREEDY, logit_bias=bias)
    right = worker.generate([prompt.copy()], params)[0]
    worker.flush()
    streams = []

    def wait(engine: Engine) -> None:
        """Sent, and changed, before the engine goes on."""
        streams.append(worker.submit(prompt, params))
        prompt[:] = 17
        bias.clear()
        bias[10**7] = 1.0

    in_engine(worker, wait)
    found = streams[0].result(60)
    assert (found.token_ids, found.logprobs) == (right.token_ids, right.logprobs)
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(found.prompt_token_ids)[0] = 3
    worker.check()
    assert worker.generate([tokens(60)], params)[0].num_cached_tokens == 59


def test_new_weights_bring_their_end_tokens_and_defaults(make_worker: MakeWorker, tmp_path: Path) -> None:
    """An answer ends, and is sampled, as that of a worker made with them."""
    tuned = tmp_path / "tuned"
    shutil.copytree(preset_folder("tiny"), tuned)
    worker = make_worker()
    params, prompt = SamplingParams(max_tokens=8, temperature=0.0), tokens(20)
    (before,) = worker.generate([prompt], params)
    assert before.finish_reason == "length"
    sampling = {"eos_token_id": [2, before.token_ids[3]], "do_sample": True, "temperature": 0.5}
    (tuned / "generation_config.json").write_text(json.dumps(sampling))
    worker.load_weights(tuned)
    (after,) = worker.generate([prompt], params)
    assert after.finish_reason == "stop" and len(after.token_ids) < 4
    assert worker.default_params.temperature == 0.5


@pytest.mark.parametrize(
    ("file", "change", "problem"),
    [
        ("chat_template.jinja", lambda text: text + " ", "another tokenizer or chat template"),
        (
            "tokenizer.json",
            lambda text: text.replace("<|pad|>", "<|fill|>"),
            "another tokenizer or chat template",
        ),
        (
            "config.json",
            lambda text: json.dumps(json.loads(text) | {"max_position_embeddings": 64}),
            "made for 64 tokens",
        ),
    ],
)
def test_weights_that_other_texts_go_with_are_refused(
    make_worker: MakeWorker, tmp_path: Path, file: str, change: Callable[[str], str], problem: str
) -> None:
    other = tmp_path / "other"
    shutil.copytree(preset_folder("tiny"), other)
    (other / file).write_text(change((other / file).read_text()))
    worker = make_worker()
    (before,) = worker.generate([tokens(20)], GREEDY)
    with pytest.raises(ValueError, match=problem):
        worker.load_weights(other)
    (after,) = worker.generate([tokens(20)], GREEDY)
    assert given([after]) == given([before]) and after.num_cached_tokens == 19
