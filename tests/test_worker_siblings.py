"""Prompts of one beginning, submitted together."""

from dataclasses import replace

import pytest

from hybridcache.engine import Engine
from tests.worker_setup import GREEDY, MakeWorker, Watched, given, in_engine, make_worker, tokens

__all__ = ["make_worker"]

FOUR = replace(GREEDY, max_tokens=4)


@pytest.mark.parametrize("chunk", [64, 2_048])
def test_siblings_share_what_one_computes(make_worker: MakeWorker, chunk: int) -> None:
    """Eight prompts of one beginning, submitted together: it is computed once."""
    worker, common = make_worker(max_num_batched_tokens=chunk, max_num_seqs=8), tokens(160)
    prompts = [common + tokens(9 + i, i) for i in range(8)]
    outputs = worker.generate(prompts, FOUR)
    computed = worker.stats().engine.computed_tokens
    # Of an answer of four tokens three are computed.
    own = sum(len(prompt) - len(common) + 3 for prompt in prompts)
    assert computed == len(common) + own
    assert [output.num_cached_tokens for output in outputs] == [0] + [160] * 7
    assert given(outputs) == given(make_worker(cache=False).generate(prompts, FOUR))


@pytest.mark.parametrize(
    "steps", [0, 2, 3, 5, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 4, 6, 7))]
)
def test_siblings_survive_their_leader(make_worker: MakeWorker, steps: int) -> None:
    """The first of eight is aborted after so many steps; the others end right."""
    worker, common = make_worker(max_num_batched_tokens=48, max_num_seqs=8), tokens(160)
    prompts = [common + tokens(9 + i, i) for i in range(8)]
    right = given(make_worker(cache=False).generate(prompts, GREEDY))
    leader, *others = prompts

    def plant(engine: Engine) -> None:
        engine.runner = Watched(engine.runner, lambda count: count == steps and worker.abort("leader"))

    in_engine(worker, plant)
    streams = [worker.submit(leader, GREEDY, request_id="leader")]
    streams += [worker.submit(prompt, GREEDY) for prompt in others]
    outputs = [stream.result(60) for stream in streams]
    assert given(outputs[1:]) == right[1:]
    assert outputs[0].finish_reason == "abort"
    assert tuple(outputs[0].token_ids) == right[0].token_ids[: len(outputs[0].token_ids)]
