"""Known faults of engines and servers, through a worker on the tiny model."""

import random
from dataclasses import replace

import pytest
import torch

from hybridcache.engine import Engine
from hybridcache.models.presets import write_checkpoint
from hybridcache.policies.build import ADMISSION
from hybridcache.worker import SamplingParams
from tests.worker_setup import (
    GREEDY,
    VOCABULARY,
    MakeWorker,
    break_part,
    check_idle,
    given,
    in_engine,
    make_worker,
    tokens,
)

__all__ = ["make_worker"]

LONG = replace(GREEDY, max_tokens=300)
PLAIN = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)


def test_case_012_requests_that_end_at_once_leave_nothing(make_worker: MakeWorker) -> None:
    worker = make_worker()
    prompts = [tokens(20 + seed, seed) for seed in range(8)]
    right = given(worker.generate(prompts, GREEDY))
    first = worker.generate(prompts, replace(GREEDY, max_tokens=1))
    assert [output.token_ids[0] for output in first] == [each.token_ids[0] for each in right]
    check_idle(worker)
    for seed, prompt in enumerate(prompts):
        stop = replace(GREEDY, stop_token_ids=(right[seed].token_ids[0],))
        (output,) = worker.generate([prompt], stop)
        assert output.finish_reason == "stop" and not output.token_ids
        queued = worker.submit(prompt, GREEDY)
        queued.abort()
        assert queued.result(60).finish_reason in ("abort", "length")
        with pytest.raises(ValueError, match="vocabulary"):
            worker.submit([*prompt, 99_999], GREEDY)
    check_idle(worker)
    assert given(worker.generate(prompts, GREEDY)) == right


@pytest.mark.parametrize("count", [24, pytest.param(100, marks=pytest.mark.full)])
def test_case_028_clients_that_go_away_free_their_slots(make_worker: MakeWorker, count: int) -> None:
    worker = make_worker(max_num_seqs=4, max_num_batched_tokens=32)
    rng = random.Random(0)
    streams = [worker.submit(tokens(20 + i % 50, i), replace(GREEDY, max_tokens=8)) for i in range(count)]
    for stream in rng.sample(streams, count):
        for _ in range(rng.randrange(4)):
            if not stream.ended:
                stream.wait(0.01)
        stream.abort()
    aborted = sum(stream.result(120).finish_reason == "abort" for stream in streams)
    assert worker.stats().engine.aborted == aborted > 0
    check_idle(worker)
    assert worker.generate([tokens(9)], GREEDY)[0].finish_reason == "length"


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, pytest.param(200, marks=pytest.mark.full)])
def test_case_040_the_last_slot_is_freed_once(make_worker: MakeWorker, count: int) -> None:
    worker = make_worker()
    for length in (15, 16):
        (output,) = worker.generate([tokens(length)], replace(PLAIN, max_tokens=count))
        assert len(output.token_ids) == count
        check_idle(worker)
        # An end token that comes behind the last token of a block.
        stop = replace(PLAIN, max_tokens=count + 8, stop_token_ids=(output.token_ids[-1],))
        (stopped,) = worker.generate([tokens(length)], stop)
        assert stopped.finish_reason == "stop" and len(stopped.token_ids) < count
        check_idle(worker)


def test_case_041_an_id_in_use_is_refused(make_worker: MakeWorker) -> None:
    worker = make_worker()
    first = worker.submit(tokens(30), LONG, request_id="a")
    with pytest.raises(ValueError, match="'a' is in use"):
        worker.submit(tokens(30), GREEDY, request_id="a")
    first.abort()
    first.wait(60)
    # Ids inside are the worker's own: two prompts at once under equal ones from the client cannot meet.
    third = worker.submit(tokens(30), GREEDY, request_id="a").result(60)
    assert third.finish_reason == "length"
    assert worker.stats().engine.finished == 2


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("part", "name"),
    [("runner", "execute"), ("sampler", "next_token"), ("cache", "restored"), ("cache", "computed")],
)
def test_case_046_a_failure_is_the_clients_to_see(
    make_worker: MakeWorker, part: str, name: str, streaming: bool
) -> None:
    worker = make_worker()
    right = given(worker.generate([tokens(30)], GREEDY))
    break_part(worker, part, name, 1)
    stream = worker.submit(tokens(30) + tokens(9), GREEDY)
    with pytest.raises(OSError, match="planted"):
        list(stream) if streaming else stream.result(60)
    check_idle(worker)
    assert worker.health and worker.stats().engine.failed == 1
    assert given(worker.generate([tokens(30)], GREEDY)) == right


def test_case_046_others_of_the_step_go_on_when_one_fails(make_worker: MakeWorker) -> None:
    worker, prompts = make_worker(), [tokens(20, seed) for seed in range(4)]
    right = given(worker.generate(prompts, GREEDY))
    worker.flush()
    break_part(worker, "sampler", "next_token", 2)
    streams = [worker.submit(prompt, GREEDY) for prompt in prompts]
    failed = 0
    for stream, expected in zip(streams, right, strict=True):
        try:
            assert given([stream.result(60)]) == [expected]
        except OSError:
            failed += 1
    assert failed == 1


@pytest.mark.parametrize("params", [GREEDY, replace(GREEDY, logprobs=None), replace(GREEDY, temperature=0.7)])
def test_case_046_numbers_that_are_none_fail_their_request_alone(
    make_worker: MakeWorker, params: SamplingParams
) -> None:
    """One prompt's token has a NaN embedding; the others of its steps end right, nothing of it is kept."""
    worker, bad = make_worker(max_num_batched_tokens=64, max_num_seqs=8), VOCABULARY - 1
    prompts = [[token % 900 + 16 for token in tokens(20, seed)] for seed in range(4)]
    params = replace(params, seed=1)
    right = given(worker.generate(prompts, params))
    worker.flush()

    def set_row(row: torch.Tensor) -> None:
        with torch.inference_mode():
            worker.in_engine(lambda engine: engine.runner.model.embedding.__setitem__(bad, row))  # type: ignore

    row = worker.in_engine(lambda engine: engine.runner.model.embedding[bad].clone())  # type: ignore
    poisoned = [*prompts[0][:10], bad, *prompts[0][:5]]
    set_row(torch.full_like(row, torch.nan))
    try:
        streams = [worker.submit(prompt, params) for prompt in (*prompts[:2], poisoned, *prompts[2:])]
        with pytest.raises(FloatingPointError, match="logits are NaN"):
            streams.pop(2).result(60)
        assert given([stream.result(60) for stream in streams]) == right
    finally:
        set_row(row)
    check_idle(worker)
    stats = worker.stats().engine
    assert (stats.failed, stats.failed_steps) == (1, 0)
    # Cold and as it was meant to be: neither states nor KV of the failed request serve anyone.
    (again,) = worker.generate([poisoned], params)
    assert again.num_cached_tokens <= 10
    assert given([again]) == given(make_worker(cache=False).generate([poisoned], params))


def test_case_046_a_nan_in_an_inner_chunk_is_seen_in_its_step(make_worker: MakeWorker) -> None:
    """The first of four chunks has it, none of whose logits are asked for: nothing of it is cached."""
    worker, bad = make_worker(max_num_batched_tokens=64, max_num_seqs=8), VOCABULARY - 1
    good = [token % 900 + 16 for token in tokens(200)]
    poisoned = [*good[:10], bad, *good[10:]]
    row = worker.in_engine(lambda engine: engine.runner.model.embedding[bad].clone())  # type: ignore

    def set_row(value: torch.Tensor) -> None:
        with torch.inference_mode():
            worker.in_engine(lambda engine: engine.runner.model.embedding.__setitem__(bad, value))  # type: ignore

    set_row(torch.full_like(row, torch.nan))
    try:
        with pytest.raises(FloatingPointError, match="logits are NaN"):
            worker.submit(poisoned, GREEDY).result(60)
    finally:
        set_row(row)
    stats = worker.stats()
    assert (stats.engine.steps, stats.engine.computed_tokens) == (1, 0)
    check_idle(worker)
    assert worker.generate([poisoned], GREEDY)[0].num_cached_tokens == 0
    assert worker.generate([poisoned], GREEDY)[0].num_cached_tokens > 190


def test_case_046_an_answer_that_the_cache_cannot_take_is_an_answer(make_worker: MakeWorker) -> None:
    worker = make_worker()
    right = given(worker.generate([tokens(30)], GREEDY))
    worker.flush()
    break_part(worker, "cache", "finish", 1)
    with pytest.warns(UserWarning, match="its tokens are not kept"):
        outputs = worker.generate([tokens(30)], GREEDY)
    assert given(outputs) == right and worker.stats().engine.failed_inserts == 1
    check_idle(worker)
    assert given(worker.generate([tokens(30)], GREEDY)) == right


def test_case_046_a_dead_engine_says_so(make_worker: MakeWorker) -> None:
    worker = make_worker()
    running = worker.submit(tokens(30), LONG)
    next(iter(running))
    break_part(worker, "scheduler", "schedule", 1)
    stream = worker.submit(tokens(31), LONG)
    for call in (lambda: stream.result(60), lambda: worker.generate([[1]], GREEDY), worker.stats):
        with pytest.raises(RuntimeError, match="the engine's thread died: OSError\\('planted'\\)"):
            call()
    assert not worker.health


@pytest.mark.parametrize("num_top", [1, 5])
@pytest.mark.parametrize("chunk", [32, 512])
def test_case_047_prompt_logprobs_are_the_whole_prompts(
    make_worker: MakeWorker, num_top: int, chunk: int
) -> None:
    worker = make_worker(max_num_batched_tokens=chunk, max_num_seqs=8)
    prompt = tokens(117)
    params = replace(GREEDY, prompt_logprobs=num_top)
    (cold,) = worker.generate([prompt], params)
    assert cold.prompt_logprobs is not None and len(cold.prompt_logprobs) == 117
    assert cold.prompt_logprobs[0] is None
    judged = [choice for choice in cold.prompt_logprobs[1:] if choice is not None]
    assert [choice.token for choice in judged] == prompt[1:]
    assert all(len(choice.top) == num_top for choice in judged)
    # The one before the last token of a shorter prompt's answer is the same number.
    worker.generate([prompt[:112]], GREEDY)
    (plain,) = worker.generate([prompt], GREEDY)
    assert plain.num_cached_tokens == 111
    (hit,) = worker.generate([prompt], params)
    assert hit.num_cached_tokens == 0 and hit.prompt_logprobs == cold.prompt_logprobs
    assert given([hit]) == given([cold]) == given([plain])
    # Nothing of these requests was kept.
    assert in_engine(worker, lambda engine: len(engine.cache.store.tree.roots)) == 1


def test_case_053_new_weights_forget_the_old_ones_states(
    make_worker: MakeWorker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folders = [
        write_checkpoint("bamba", tmp_path_factory.mktemp("weights") / str(seed), seed=seed)
        for seed in (1, 2)
    ]
    prompt = tokens(60)
    old, new = (make_worker(folder) for folder in folders)
    right = given(new.generate([prompt], GREEDY))
    assert given(old.generate([prompt], GREEDY)) != right
    old.load_weights(folders[1])
    (output,) = old.generate([prompt], GREEDY)
    assert output.num_cached_tokens == 0 and given([output]) == right
    with pytest.raises(ValueError, match="another geometry"):
        old.load_weights("tiny")
    running = old.submit(prompt, LONG)
    with pytest.raises(RuntimeError, match="running"):
        old.load_weights(folders[0])
    running.abort()
    running.wait(60)


def test_case_073_reasoning_that_the_next_turn_drops(make_worker: MakeWorker) -> None:
    worker, prompt, before = make_worker(), tokens(80), 0
    for turn in range(5):
        (output,) = worker.generate([prompt], replace(PLAIN, max_tokens=24))
        assert output.num_cached_tokens >= before, turn
        # The checkpoint before the prompt's last token serves whoever goes on from the prompt.
        before = len(prompt) - 1
        prompt = prompt + list(output.token_ids[20:]) + tokens(10, turn)
    assert before > 0


@pytest.mark.parametrize("ending", ["stop text", "stop token", "length", "abort"])
def test_case_074_the_next_turn_hits_what_the_client_was_given(make_worker: MakeWorker, ending: str) -> None:
    worker, prompt = make_worker(), tokens(50, 3)
    (whole,) = worker.generate([prompt], replace(PLAIN, max_tokens=24))
    worker.flush()
    assert worker._codec is not None
    decode = worker._codec.decode
    params = replace(PLAIN, max_tokens=24)
    if ending == "stop text":
        # In the middle of a run of tokens: the last characters of one and the first of the next.
        texts = [decode([token]) for token in whole.token_ids]
        at = next(
            i for i in range(6, 22) if len(texts[i]) > 2 and len(texts[i + 1]) > 1 and texts[i].isascii()
        )
        params = replace(params, stop=(texts[at][-2:] + texts[at + 1][:1],))
    elif ending == "stop token":
        params = replace(params, stop_token_ids=(whole.token_ids[10],))
    elif ending == "length":
        params = replace(params, max_tokens=9)
    else:
        params = replace(params, max_tokens=2_000)
    if ending == "abort":
        stream = worker.submit(prompt, params)
        received: list[int] = []
        for chunk in stream:
            received += chunk.token_ids
            if len(received) > 8:
                break
        output = stream.result(60)
        assert output.finish_reason == "abort"
    else:
        (output,) = worker.generate([prompt], params)
        assert output.finish_reason == ("length" if ending == "length" else "stop")
    answer = list(output.token_ids)
    if ending == "stop text":
        assert output.text is not None and params.stop[0] not in output.text
        assert 0 < len(answer) <= at and output.text.startswith(decode(answer))

    def path(engine: Engine) -> int:
        """Tokens of the key: of prompt and answer, and of nothing behind them."""
        root = next(iter(engine.cache.store.tree.roots))
        beyond = [*prompt, *answer, *whole.token_ids[len(answer) :]]
        return engine.cache.match_prefix(beyond, root, engine.clock.now()).matched

    assert in_engine(worker, path) <= len(prompt) + len(answer)
    (turn,) = worker.generate([prompt + answer + tokens(6)], PLAIN)
    if ending in ("stop token", "length"):
        # The state stands at the last computed token: of a cut answer the last one never was.
        assert turn.num_cached_tokens == len(prompt) + len(answer) - (ending == "length")
    else:
        assert turn.num_cached_tokens >= len(prompt) - 1


@pytest.mark.parametrize("hit", [False, True])
def test_case_093_one_figure_for_cached_tokens(make_worker: MakeWorker, hit: bool) -> None:
    figures = set()
    for way in ("generate", "stream", "wait", "many"):
        worker, prompt = make_worker(), tokens(40)
        if hit:
            worker.generate([prompt], PLAIN)
        stream = None if way in ("generate", "many") else worker.submit(prompt, PLAIN)
        if way == "stream" and stream is not None:
            list(stream)
        output = stream.result(60) if stream is not None else worker.generate([prompt, tokens(3)], PLAIN)[0]
        figures.add((output.num_prompt_tokens, output.num_cached_tokens, *sorted(output.miss.items())))
    assert figures == {(40, 39, ("last_token", 1)) if hit else (40, 0, ("new", 40))}


def test_case_094_preemption_is_counted_once(make_worker: MakeWorker) -> None:
    worker = make_worker(max_num_batched_tokens=32, max_num_seqs=4)
    stream = worker.submit(tokens(60), replace(GREEDY, max_tokens=40))

    def preempt(engine: Engine) -> int:
        for request in list(engine.scheduler.running):
            engine.scheduler.preempt(request, engine.clock.now())
        return engine.scheduler.stats.num_preemptions

    while in_engine(worker, preempt) < 4 and not stream.ended:
        pass
    output, stats = stream.result(60), worker.stats()
    assert stats.scheduler.num_preemptions >= 1
    assert (output.num_cached_tokens, output.miss) == (0, {"new": 60})
    assert (stats.cache.requests, stats.cache.input_tokens, stats.cache.hit_tokens) == (1, 60, 0)
    assert stats.engine.finished == 1 and stats.engine.generated_tokens == 40


@pytest.mark.parametrize(
    ("dtype", "block_size"),
    [
        ("float32", 16),
        pytest.param("float32", 64, marks=pytest.mark.full),
        pytest.param("bfloat16", 16, marks=pytest.mark.full),
        ("bfloat16", 64),
    ],
)
@pytest.mark.parametrize("admission", sorted(ADMISSION.keys() - {"every_n"}))
def test_case_098_no_setting_switches_the_cache_off(
    make_worker: MakeWorker, dtype: str, admission: str, block_size: int
) -> None:
    worker = make_worker(dtype=dtype, admission=admission, block_size=block_size)
    prompt = tokens(200)
    first, second = (worker.generate([prompt], PLAIN)[0] for _ in range(2))
    (turn,) = worker.generate([prompt + list(first.token_ids) + tokens(20)], PLAIN)
    assert turn.num_cached_tokens > 0 == first.num_cached_tokens
    if admission in ("all_blocks", "branch_final_prompt"):
        assert second.num_cached_tokens >= 192
    assert worker.stats().cache.request_hits == (2 if second.num_cached_tokens else 1)


def test_case_107_no_split_of_a_prefill_changes_the_result(make_worker: MakeWorker) -> None:
    prompts = [tokens(90 + 7 * seed, seed) for seed in range(4)]
    results = set()
    for chunk in (16, 33, 4_096):
        worker = make_worker(max_num_batched_tokens=chunk, max_num_seqs=4)
        for _ in range(2):
            results.add(tuple(given(worker.generate(prompts, GREEDY))))
        worker.flush()
        results.add(tuple(given(worker.generate(prompts, GREEDY))))
    assert len(results) == 1


def test_case_115_samples_of_one_prompt(make_worker: MakeWorker) -> None:
    worker, prompt = make_worker(), tokens(60)
    (single,) = make_worker(cache=False).generate([prompt], GREEDY)
    (cold,) = worker.generate([prompt], replace(GREEDY, n=4))
    (again,) = worker.generate([prompt], replace(GREEDY, n=4))
    batch = worker.generate([prompt] * 4, GREEDY)
    assert (cold.num_prompt_tokens, cold.num_cached_tokens) == (60, 0)
    assert (again.num_prompt_tokens, again.num_cached_tokens) == (60, 59)
    assert [output.num_cached_tokens for output in batch] == [59] * 4
    samples = [*cold.samples, *again.samples, *(output.samples[0] for output in batch)]
    assert len(samples) == 12 and all(sample == single.samples[0] for sample in samples)
