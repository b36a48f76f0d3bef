"""What a client may ask for, and what it gets."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridcache.intake import Prompt
from hybridcache.models.presets import preset_folder, write_checkpoint
from hybridcache.worker import RequestTooLarge, SamplingParams, Worker, WorkerClosed
from tests.worker_setup import GREEDY, MakeWorker, check_idle, given, in_engine, make_worker, tokens

__all__ = ["make_worker"]

SHORT = SamplingParams(max_tokens=3, temperature=0.0)
TEXT = "The quick brown fox jumps over the lazy dog. "


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """One worker for all questions that leave it as it was."""
    with Worker("tiny", budget_gb=0.02, threads=1, max_model_len=256) as made:
        yield made
        check_idle(made)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "prompts is empty"),
        ("", "empty"),
        ([[]], "the prompt is empty"),
        ([[1, 2], []], "the prompt is empty"),
        ([1, 4_096], "token 4096; the vocabulary ends at 4095"),
        ([1, -1], "-1"),
        ([[1.5, 2.0]], "float"),
        (b"bytes", "the prompt is bytes"),
        ([b"bytes"], "the prompt is bytes"),
        ([None], "NoneType"),
        ([{"role": "user"}], r"dict.*chats go to chat\(\)"),
        ({"prompt_token_ids": [1, 2]}, "prompts={'prompt_token_ids'"),
        ({1, 2}, "prompts={1, 2}"),
        (None, "prompts=None"),
        (5, "prompts=5"),
        ([5] * 254, "254 prompt tokens and max_tokens=3 exceed max_model_len=256"),
    ],
)
def test_bad_prompts(worker: Worker, prompts: object, message: str) -> None:
    steps = worker.stats().engine.steps
    with pytest.raises(ValueError, match=message):
        worker.generate(prompts, SHORT)  # type: ignore[arg-type]
    assert worker.stats().engine.steps == steps and worker.health


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (replace(SHORT, stop_token_ids=(4_096,)), "stop_token_ids has token 4096"),
        (replace(SHORT, logit_bias={5_000: 1.0}), "logit_bias has token 5000"),
        (replace(SHORT, shown_token_ids=(5_000,)), "shown_token_ids has token 5000"),
        (replace(SHORT, max_tokens=255), "max_tokens=255 exceed max_model_len"),
        ([SHORT, SHORT], "2 params for 1 prompts"),
        ({"max_tokens": 3}, "params={'max_tokens': 3}: give SamplingParams"),
        ([{"max_tokens": 3}], "params={'max_tokens': 3}: give SamplingParams"),
        (3, "params=3: give SamplingParams"),
    ],
)
def test_bad_parameters(worker: Worker, params: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        worker.generate([[1, 2]], params)  # type: ignore[arg-type]


@pytest.mark.parametrize("salt", ["", "x" * 257, 3])
def test_bad_salts(worker: Worker, salt: object) -> None:
    with pytest.raises(ValueError, match="cache_salt"):
        worker.generate([[1, 2]], SHORT, cache_salt=salt)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "huge"}, "neither a folder nor a preset; the presets are tiny"),
        ({"budget_gb": 0}, "budget_gb=0"),
        ({"budget_gb": float("inf")}, "budget_gb=inf"),
        ({"budget_gb": 10**400}, "budget_gb=1000"),
        ({"budget_gb": 1e-6}, "one request of one token takes"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"eviction": "random"}, "eviction='random'"),
        ({"admission": "never"}, "admission='never'"),
        ({"order": "lifo"}, "order='lifo'"),
        ({"block_size": 0}, "block_size=0"),
        ({"max_num_seqs": 0}, "max_num_seqs=0"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens=0"),
        ({"max_model_len": 1}, "max_model_len=1"),
        ({"max_model_len": 10**9}, "the model is made for"),
        ({"ttl_seconds": 0.0}, "ttl_seconds=0.0"),
        ({"threads": 0}, "threads=0: give 1 to 1024, or None"),
        ({"threads": 10**6}, "threads=1000000: give 1 to 1024, or None"),
        ({"max_queue": -1}, "max_queue=-1"),
        ({"cache": "no"}, "cache='no': give True or False"),
        ({"debug_poison": 1}, "debug_poison=1: give True or False"),
        ({"hardware": "h100"}, "hardware='h100': give a HardwareProfile"),
        ({"prices": 5}, "prices=5: give a Prices"),
        ({"memory": "split", "kv_fraction": 1.0}, "of which 50000000 are for KV and 0 for states"),
        ({"backend": "tpu"}, "backend is 'tpu'"),
    ],
)
def test_bad_settings(make_worker: MakeWorker, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_worker(**settings)


@pytest.mark.parametrize("chat", ["x", ["x"], [None], {"role": "user"}, [{"role": "user"}, None], 5])
def test_what_is_no_chat(worker: Worker, chat: Any) -> None:
    with pytest.raises(ValueError, match="is no chat: give a list of messages"):
        worker.chat(chat, SHORT)


@pytest.mark.parametrize("prompt", [None, 5, {"role": "user"}, "", [], ["a"], [{"role": "user"}, None]])
def test_what_cannot_be_explained(worker: Worker, prompt: Any) -> None:
    with pytest.raises(ValueError, match=r"empty|one-dimensional|must be integers|no chat"):
        worker.explain(prompt)


def test_texts_and_token_ids(worker: Worker) -> None:
    mixed: list[Prompt] = [TEXT, tokens(20)]
    both = worker.generate(mixed, SHORT)
    assert [len(output.token_ids) for output in both] == [3, 3]
    assert worker._codec is not None
    ids = worker._codec.encode(TEXT)
    for prompts in (ids, [ids], np.array(ids), [np.array(ids)], TEXT):
        (output,) = worker.generate(prompts, SHORT)
        assert (output.token_ids, output.text) == (both[0].token_ids, both[0].text)
        assert output.num_prompt_tokens == len(ids) == output.num_cached_tokens + 1
        assert output.miss == {"last_token": 1}
        assert output.ttft_seconds is not None and output.ttft_seconds > 0
        assert output.logprobs is None and output.prompt_logprobs is None


def test_params_for_each_prompt(worker: Worker) -> None:
    params = [replace(SHORT, max_tokens=count) for count in (1, 4, 2)]
    outputs = worker.generate([tokens(9, seed) for seed in range(3)], params)
    assert [len(output.token_ids) for output in outputs] == [1, 4, 2]


def test_the_checkpoints_defaults(worker: Worker) -> None:
    assert worker.default_params == SamplingParams(temperature=0.0)
    (output,) = worker.generate(tokens(250, 5))
    # Without max_tokens all that the model's length allows: 256 tokens.
    assert output.finish_reason == "length" and len(output.token_ids) == 6


def test_max_tokens_as_the_budget_allows(make_worker: MakeWorker) -> None:
    spec = make_worker()._spec
    blocks = 5
    budget = blocks * 16 * spec.kv_bytes_per_token + spec.checkpoint_bytes
    worker = make_worker(budget_gb=budget / 1e9)
    (output,) = worker.generate([tokens(50)], SamplingParams(temperature=0.0, ignore_eos=True))
    # The last token is sampled and never computed.
    assert output.finish_reason == "length" and len(output.token_ids) == blocks * 16 - 50 + 1
    with pytest.raises(RequestTooLarge, match="the budget is"):
        worker.generate([tokens(50)], SamplingParams(max_tokens=blocks * 16 - 50 + 2))
    with pytest.raises(RequestTooLarge, match="the budget is"):
        worker.generate([tokens(3), tokens(81)], SamplingParams())
    stats = worker.stats()
    assert stats.cache.requests_refused == 2 and stats.engine.failed == 0


def test_stop_tokens_end_the_answer_and_are_left_out(worker: Worker) -> None:
    prompt = tokens(30, 7)
    (plain,) = worker.generate([prompt], GREEDY)
    (stopped,) = worker.generate([prompt], replace(GREEDY, stop_token_ids=(plain.token_ids[3],)))
    at = list(plain.token_ids).index(plain.token_ids[3])
    assert stopped.token_ids == plain.token_ids[:at] and stopped.finish_reason == "stop"
    assert stopped.logprobs == (plain.logprobs or ())[:at] and stopped.samples[0].stop_text is None
    (later,) = worker.generate([prompt], replace(GREEDY, min_tokens=5, stop_token_ids=(plain.token_ids[0],)))
    assert len(later.token_ids) >= 5 and plain.token_ids[0] not in later.token_ids[:5]


def test_several_end_tokens_of_the_checkpoint(
    make_worker: MakeWorker, tmp_path: Path, worker: Worker
) -> None:
    folder = tmp_path / "eos"
    folder.mkdir()
    for file in preset_folder("tiny").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    prompts = [tokens(12, seed) for seed in (1, 2)]
    plain = worker.generate(prompts, GREEDY)
    ends = [output.token_ids[2] for output in plain]
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": {ends}}}')
    other = make_worker(folder)
    for output, whole in zip(other.generate(prompts, replace(GREEDY, ignore_eos=False)), plain, strict=True):
        at = min(list(whole.token_ids).index(end) for end in ends if end in whole.token_ids)
        assert output.token_ids == whole.token_ids[:at] and output.finish_reason == "stop"
    assert given(other.generate(prompts, GREEDY)) == given(plain)


def test_logprobs_judge_the_tokens(worker: Worker) -> None:
    (output,) = worker.generate([tokens(25)], GREEDY)
    assert output.logprobs is not None
    assert [choice.token for choice in output.logprobs] == list(output.token_ids)
    for choice in output.logprobs:
        assert choice.top[0] == (choice.token, choice.logprob) and len(choice.top) == 3
        assert choice.logprob == max(logprob for _, logprob in choice.top) < 0


def test_salts_share_nothing(make_worker: MakeWorker) -> None:
    worker, prompt = make_worker(), tokens(40)
    hits = [
        worker.generate([prompt], SHORT, cache_salt=salt)[0].num_cached_tokens for salt in ("a", None, "b")
    ]
    assert hits == [0, 0, 0]
    assert worker.generate([prompt], SHORT, cache_salt="a")[0].num_cached_tokens == 39
    worker.flush("a")
    hits = [
        worker.generate([prompt], SHORT, cache_salt=salt)[0].num_cached_tokens for salt in ("a", None, "b")
    ]
    assert hits == [0, 39, 39]
    worker.flush()
    assert worker.generate([prompt], SHORT)[0].num_cached_tokens == 0


def test_expiry(make_worker: MakeWorker) -> None:
    worker, prompt = make_worker(ttl_seconds=1e-9), tokens(40)
    worker.generate([prompt], SHORT)
    (output,) = worker.generate([prompt], SHORT)
    assert output.num_cached_tokens == 0 and output.miss.get("expired")


def test_a_chat_goes_on_from_its_last_turn(make_worker: MakeWorker) -> None:
    worker = make_worker()
    assert worker._codec is not None
    messages: list[dict[str, str]] = [{"role": "system", "content": TEXT * 3}]
    turn_end = 0
    for turn in range(3):
        messages.append({"role": "user", "content": f"And then? {turn}"})
        output = worker.chat(messages, replace(SHORT, max_tokens=8)).result()
        assert output.num_cached_tokens >= turn_end, turn
        turn_end = worker._codec.chat(messages).turn_end or 0
        assert turn_end > 0
        messages.append({"role": "assistant", "content": str(output.text)})


def test_an_agent_goes_on_from_its_last_result(make_worker: MakeWorker) -> None:
    # One question, then calls and their results; the next prompt leaves out how the model got to its calls.
    worker = make_worker()
    assert worker._codec is not None
    call = {"type": "function", "function": {"name": "read", "arguments": {"file": "a"}}}
    messages: list[dict[str, Any]] = [{"role": "user", "content": TEXT}]
    turn_end = 0
    for turn in range(3):
        output = worker.chat(messages, replace(SHORT, max_tokens=8)).result()
        assert output.num_cached_tokens >= turn_end, turn
        turn_end = worker._codec.chat(messages).turn_end or 0
        assert turn_end > output.num_cached_tokens
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": f"{TEXT} {turn}"},
        ]


def test_where_the_messages_of_a_chat_end(worker: Worker) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "Two."},
        {"role": "user", "content": "Three?"},
    ]
    assert worker._codec is not None
    chat = worker._codec.chat(messages)
    assert len(chat.boundaries) == 4 and chat.turn_end == chat.boundaries[-1] < len(chat.token_ids)
    assert worker._codec.chat(messages[:3]).turn_end == chat.boundaries[1]
    for at, count in zip(chat.boundaries, range(1, 5), strict=True):
        assert worker._codec.chat(messages[:count]).token_ids[:at] == chat.token_ids[:at]
    with pytest.raises(ValueError, match="the chat is empty"):
        worker.chat([])


def test_without_a_tokenizer(make_worker: MakeWorker, tmp_path: Path) -> None:
    worker = make_worker(write_checkpoint("bamba", tmp_path / "m", seed=1, vocab_size=1_024))
    (output,) = worker.generate([tokens(9)], GREEDY)
    assert output.text is None and len(output.token_ids) == 6
    for ask in (
        lambda: worker.generate("text", SHORT),
        lambda: worker.generate([[1]], replace(SHORT, stop=("x",))),
        lambda: worker.chat([{"role": "user", "content": "Hi"}]),
    ):
        with pytest.raises(ValueError, match="no tokenizer"):
            ask()


def test_the_seed_decides_whatever_else_runs(make_worker: MakeWorker) -> None:
    params = SamplingParams(max_tokens=6, temperature=1.3, top_p=0.9, seed=5, logprobs=1, ignore_eos=True)
    prompt, others = tokens(50), [tokens(30 + i, i) for i in range(6)]
    worker = make_worker(max_num_batched_tokens=64)
    alone = given(worker.generate([prompt], params))
    busy = worker.generate([*others, prompt], [replace(params, seed=None)] * 6 + [params])
    assert given(busy)[-1:] == alone
    assert given(worker.generate([prompt], replace(params, seed=6))) != alone
    again = make_worker(cache=False)
    assert given(again.generate([prompt], params)) == alone


@pytest.mark.parametrize("order", ["fcfs", "longest_hit"])
def test_penalties_and_bias_with_a_hit(make_worker: MakeWorker, order: str) -> None:
    params = replace(
        GREEDY,
        repetition_penalty=1.3,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        logit_bias={9: 1.5},
        min_tokens=2,
    )
    worker, prompts = make_worker(order=order), [tokens(40), tokens(40) + tokens(9)]
    cold = given(worker.generate(prompts, params))
    hit = worker.generate(prompts, params)
    assert given(hit) == cold and all(output.num_cached_tokens for output in hit)


def test_priority(make_worker: MakeWorker) -> None:
    worker = make_worker(max_num_seqs=1)
    streams = [worker.submit(tokens(60, i), GREEDY, priority=-i) for i in range(5)]
    admitted = [stream.result().ttft_seconds or 0.0 for stream in streams]
    # The first may have been started before the others came.
    assert admitted[1:] == sorted(admitted[1:], reverse=True)


def test_a_closed_worker_says_so(make_worker: MakeWorker) -> None:
    worker = make_worker()
    with worker:
        assert worker.health
    assert not worker.health
    for call in (
        lambda: worker.generate([[1]], SHORT),
        lambda: worker.submit([1], SHORT),
        worker.stats,
        worker.flush,
        worker.check,
    ):
        with pytest.raises(WorkerClosed, match="closed"):
            call()
    assert not worker._jobs and not worker.abort("anything")
    worker.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_fork_of_the_process_is_told_at_once(make_worker: MakeWorker) -> None:
    """The engine's thread is not in it: a call would wait for ever."""
    worker = make_worker()
    says = f"the worker runs in process {os.getpid()}: make one in this process"
    child = os.fork()
    if not child:
        signal.alarm(30)
        try:
            worker.generate([[1]], SHORT)
        except WorkerClosed as error:
            worker.close()
            os._exit(0 if str(error) == says and not worker.health and not worker.abort("a") else 1)
        os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert worker.health and len(worker.generate([[1]], SHORT)[0].token_ids) == 3


def test_models_share_no_cache(make_worker: MakeWorker, checkpoint: Callable[[str], Path]) -> None:
    fingerprints = {
        in_engine(make_worker(folder), lambda engine: engine.cache.spec.fingerprint)
        for folder in ("tiny", checkpoint("jamba"))
    }
    assert len(fingerprints) == 2
