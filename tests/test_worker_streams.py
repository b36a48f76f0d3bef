"""Streams, aborts and many clients at once."""

import asyncio
import gc
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from hybridcache.request_output import Chunk, RequestOutput
from hybridcache.worker import SamplingParams, Stream, Worker, WorkerClosed
from tests.worker_setup import GREEDY, Given, MakeWorker, check_idle, given, make_worker, tokens

__all__ = ["make_worker"]

LONG = replace(GREEDY, max_tokens=400)


def joined(chunks: Sequence[Chunk], sample: int = 0) -> tuple[list[int], str, list[object], list[str | None]]:
    own = [chunk for chunk in chunks if chunk.sample == sample]
    return (
        [token for chunk in own for token in chunk.token_ids],
        "".join(chunk.text for chunk in own),
        [choice for chunk in own for choice in chunk.logprobs],
        [chunk.finish_reason for chunk in own],
    )


def check_chunks(chunks: Sequence[Chunk], output: RequestOutput) -> None:
    """The chunks joined are the output, and the last of each answer says why it ended."""
    for index, sample in enumerate(output.samples):
        token_ids, text, logprobs, reasons = joined(chunks, index)
        assert token_ids == list(sample.token_ids) and text == sample.text
        assert logprobs == list(sample.logprobs or ())
        assert reasons[-1] == sample.finish_reason and set(reasons[:-1]) <= {None}


def test_a_stream_gives_what_generate_gives(make_worker: MakeWorker) -> None:
    worker = make_worker()
    for params in (GREEDY, replace(GREEDY, n=3, temperature=0.9, seed=1)):
        worker.flush()
        (whole,) = worker.generate([tokens(40)], params)
        worker.flush()
        stream = worker.submit(tokens(40), params)
        chunks = list(stream)
        output = stream.result()
        check_chunks(chunks, output)
        assert len(chunks) >= 6
        assert output.samples == whole.samples
        # One figure for the cache, streamed or not.
        assert (output.num_cached_tokens, output.miss) == (whole.num_cached_tokens, whole.miss)


def test_a_stream_in_an_event_loop(make_worker: MakeWorker) -> None:
    worker = make_worker()

    async def ask(seed: int) -> RequestOutput:
        stream = worker.submit(tokens(30, seed), GREEDY)
        chunks = [chunk async for chunk in stream]
        output = await stream
        check_chunks(chunks, output)
        return output

    async def ask_all() -> list[RequestOutput]:
        # A blocking call within a running loop, as in a notebook.
        worker.generate([tokens(5)], GREEDY)
        return await asyncio.gather(*(ask(seed) for seed in range(6)))

    whole = worker.generate([tokens(30, seed) for seed in range(6)], GREEDY)
    worker.flush()
    # In two loops of two threads at once.
    with ThreadPoolExecutor(2) as pool:
        for outputs in pool.map(lambda _: asyncio.run(ask_all()), range(2)):
            assert given(outputs) == given(whole)


def test_leaving_a_stream_aborts_its_request(make_worker: MakeWorker) -> None:
    worker = make_worker()

    async def leave() -> Stream:
        stream = worker.submit(tokens(30), LONG)
        async for _ in stream:
            break
        return stream

    async def be_cancelled() -> Stream:
        stream = worker.submit(tokens(31), LONG)

        async def read() -> None:
            async for _ in stream:
                pass

        task = asyncio.create_task(read())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return stream

    def leave_in_a_thread() -> Stream:
        stream = worker.submit(tokens(32), LONG)
        for _ in stream:
            break
        gc.collect()
        return stream

    for stream in (asyncio.run(leave()), asyncio.run(be_cancelled()), leave_in_a_thread()):
        output = stream.result(60)
        assert output.finish_reason == "abort" and len(output.token_ids) < 400
    assert worker.stats().engine.aborted == 3


def test_an_event_loop_that_is_gone_aborts_its_requests(make_worker: MakeWorker) -> None:
    worker = make_worker()
    stream = worker.submit(tokens(30), LONG)
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(stream._whole())
    loop.run_until_complete(asyncio.sleep(0))
    stream._chunks.clear()
    loop.close()
    assert stream.result(60).finish_reason in ("abort", "length")
    del waiting


def test_ids_of_requests(make_worker: MakeWorker) -> None:
    worker = make_worker()
    first = worker.submit(tokens(30), LONG, request_id="mine")
    with pytest.raises(ValueError, match="request_id='mine' is in use"):
        worker.submit(tokens(5), GREEDY, request_id="mine")
    other = worker.submit(tokens(31), GREEDY)
    assert worker.abort("mine") and not worker.abort("nobody's")
    assert first.result(60).finish_reason == "abort"
    assert other.result(60).finish_reason == "length"
    assert not worker.abort("mine")
    # It ended, so the id is free again.
    assert worker.submit(tokens(30), GREEDY, request_id="mine").result(60).request_id == "mine"


def test_waiting_for_a_while(make_worker: MakeWorker) -> None:
    stream = make_worker().submit(tokens(30), LONG)
    with pytest.raises(TimeoutError, match="has not ended"):
        stream.result(0.0)
    assert not stream.ended
    stream.abort()
    assert stream.wait(60)


def test_closing_fails_what_runs(make_worker: MakeWorker) -> None:
    worker = make_worker(max_num_seqs=2)
    streams = [worker.submit(tokens(30, seed), LONG) for seed in range(4)]
    failed: list[BaseException] = []

    def generate() -> None:
        try:
            worker.generate([tokens(9)], LONG)
        except WorkerClosed as error:
            failed.append(error)

    thread = threading.Thread(target=generate)
    thread.start()
    next(iter(streams[0]))
    worker.close()
    thread.join(60)
    assert not thread.is_alive() and len(failed) == 1
    for stream in streams[1:]:
        with pytest.raises(WorkerClosed):
            stream.result(60)
    assert not worker._jobs


def test_a_forgotten_worker_ends_its_thread() -> None:
    worker = Worker("tiny", budget_gb=0.01, threads=1)
    worker.generate([tokens(5)], GREEDY)
    thread = worker._engine._thread
    del worker
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "count", [pytest.param(60, id="60"), pytest.param(500, id="500", marks=pytest.mark.full)]
)
def test_many_clients_of_whom_a_third_go_away(make_worker: MakeWorker, count: int) -> None:
    params = [
        replace(GREEDY, max_tokens=4),
        SamplingParams(max_tokens=4, temperature=0.9, seed=3, logprobs=0, ignore_eos=True),
        replace(GREEDY, max_tokens=1),
    ]
    shared = [tokens(48, 90), tokens(80, 91)]
    prompts = [shared[i % 2][: 30 + i % 40] + tokens(1 + i % 37, i % 12) for i in range(36)]
    with Worker("tiny", budget_gb=0.02, threads=1, cache=False) as cold:
        right = [given(cold.generate(prompts, each)) for each in params]
    # So small that it evicts all the time.
    worker = make_worker(budget_gb=0.0012, max_num_batched_tokens=96, max_num_seqs=16)
    level = []
    for attempt in range(2):
        _crowd(worker, prompts, params, right, count, random.Random(attempt))
        check_idle(worker)
        level.append(worker.stats().usage)
    assert worker.stats().engine.aborted > 0


def _crowd(
    worker: Worker,
    prompts: list[list[int]],
    params: list[SamplingParams],
    right: list[list[Given]],
    count: int,
    rng: random.Random,
) -> None:
    """Half of the requests from threads, half from an event loop; every third is left at a random moment."""
    plans = [(i, rng.randrange(len(prompts)), rng.randrange(len(params)), rng.random()) for i in range(count)]

    def check(output: RequestOutput, prompt: int, kind: int, leaves: bool) -> None:
        expected = right[kind][prompt]
        if leaves:
            assert output.finish_reason in ("abort", "length")
            assert tuple(output.token_ids) == expected.token_ids[: len(output.token_ids)]
        else:
            assert Given.of(output) == expected and output.finish_reason == "length"

    def from_a_thread(plan: tuple[int, int, int, float]) -> None:
        i, prompt, kind, moment = plan
        stream = worker.submit(prompts[prompt], params[kind])
        if i % 3 == 0:
            stream.wait(0.3 * moment)
            stream.abort()
        check(stream.result(120), prompt, kind, i % 3 == 0)

    async def from_a_loop(plan: tuple[int, int, int, float]) -> None:
        i, prompt, kind, moment = plan
        await asyncio.sleep(0.2 * moment)
        stream = worker.submit(prompts[prompt], params[kind])
        if i % 3 == 0:
            taken = 0
            async for _ in stream:
                taken += 1
                if taken > 3 * moment:
                    break
        check(await stream, prompt, kind, i % 3 == 0)

    async def loop() -> None:
        await asyncio.gather(*(from_a_loop(plan) for plan in plans[1::2]))

    with ThreadPoolExecutor(12) as pool:
        looping = pool.submit(lambda: asyncio.run(loop()))
        done = [pool.submit(from_a_thread, plan) for plan in plans[::2]]
        for each in (looping, *done):
            each.result(300)
