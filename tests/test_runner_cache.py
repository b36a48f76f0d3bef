"""Requests served through PrefixCache and ModelRunner, compared with cold runs to the bit."""

import numpy as np
import pytest
import torch

from hybridcache.lease import Wait
from tests.step_driver import NAMESPACE, Cold, Driver, mixed, prompt_of
from tests.toy_hybrid import SPECS, ToyModel

Pair = tuple[Driver, Cold]


def pair(name: str = "hybrid", **settings: object) -> Pair:
    spec = SPECS[name]
    driver = Driver(spec, ToyModel(spec), **settings)  # type: ignore[arg-type]
    return driver, Cold(spec, lambda: ToyModel(spec), driver.storage.block_size)


@pytest.mark.parametrize(
    ("name", "chunk"),
    [
        *((name, 7) for name in SPECS),
        ("hybrid", None),
        *(pytest.param(name, None, marks=pytest.mark.full) for name in SPECS if name != "hybrid"),
    ],
)
def test_turns_branches_and_repeats_equal_cold_runs(name: str, chunk: int | None) -> None:
    driver, cold = pair(name)
    first = driver.serve(prompt_of(37), 6, chunk)
    second = driver.serve(first.tokens + prompt_of(9, 1), 5, chunk)
    again = driver.serve(first.prompt, 6, chunk)
    branch = driver.serve(first.prompt[:21] + prompt_of(12, 2), 4, chunk)
    sibling = driver.serve(first.prompt[:21] + prompt_of(15, 3), 4, chunk)
    requests = [first, second, again, branch, sibling]
    hits = [request.lease.hit for request in requests]
    assert hits == [0, 42, 36, 21 if name == "attention" else 0, 21]
    assert again.answer == first.answer
    cold.check(*requests)
    assert cold.check_states(driver) == (0 if name == "attention" else 9)
    # Nothing was computed but what was not hit; the last sampled token never is.
    model = driver.runner.model
    assert isinstance(model, ToyModel)
    assert model.num_tokens == sum(len(r.tokens) - 1 - r.lease.hit for r in requests)
    for request in requests:
        assert sorted(request.logits) == list(range(request.lease.hit, len(request.tokens) - 1))


@pytest.mark.parametrize("name", ["hybrid", pytest.param("any", marks=pytest.mark.full)])
def test_checkpoints_in_the_middle_of_a_pass_equal_those_at_its_end(name: str) -> None:
    found = []
    for emits in (True, False):
        driver, cold = pair(name, admission="every_n", n=6)
        base = driver.admit(prompt_of(30), 9)
        driver.run(base, 9, 30 if emits else 11, emits=emits)
        branch = driver.admit(base.prompt[:20] + prompt_of(10, 1), 3)
        driver.run(branch, 3, emits=emits)
        assert branch.lease.hit == 18
        cold.check(base, branch)
        assert cold.check_states(driver) == 10
        found.append(driver.checkpoints())
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(state, found[1][tokens]) for tokens, state in found[0].items())


@pytest.mark.parametrize("name", ["hybrid", pytest.param("any", marks=pytest.mark.full)])
def test_eight_requests_in_one_batch_equal_solo_runs(name: str) -> None:
    driver, cold = pair(name)
    requests = mixed(driver)
    assert [r.lease.hit for r in requests[1:]] == [42, 33, 0, 0, 16, 0, 39, 0]
    cold.check(*requests)
    assert cold.check_states(driver) >= 16


def test_siblings_wait_for_the_common_prefix_and_hit_it() -> None:
    driver, cold = pair()
    first = driver.admit(prompt_of(60), 2)
    other = first.prompt[:35] + prompt_of(9, 1)
    wait = driver.cache.acquire(other, NAMESPACE, driver.now, max_tokens=2)
    assert isinstance(wait, Wait) and wait.position == 35
    driver.step({first: 60})
    assert wait.over
    second = driver.admit(other, 2)
    assert second.lease.hit == 35
    while len(first.answer) < 2:
        driver.step({first: 1, second: len(second.tokens) - second.lease.num_computed})
    driver.run(second, 2)
    driver.finish(first)
    cold.check(first, second)


def test_a_preempted_request_goes_on_as_if_it_had_not_been() -> None:
    driver, cold = pair()
    request = driver.admit(prompt_of(30), 12)
    driver.step({request: 20})
    driver.finish(request, keep=request.lease.num_computed)
    back = driver.admit(request.prompt, 12, first=False)
    assert back.lease.hit == 20
    driver.step({back: 10})
    for _ in range(4):
        driver.step({back: 1})
    assert len(back.answer) == 5
    driver.finish(back, keep=back.lease.num_computed)
    last = driver.admit(back.tokens, 7, first=False)
    assert last.lease.hit == 34
    driver.run(last, 7)
    cold.check(back, last)
    assert back.answer + last.answer == cold_answer(cold, request.prompt, 12)


def cold_answer(cold: Cold, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(cold.logits(tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def test_a_failed_step_leaves_what_was_there_before(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, cold = pair()
    first = driver.serve(prompt_of(30), 3)
    request = driver.admit(first.tokens + prompt_of(20, 1), 3)
    before = driver.checkpoints()

    def fail(*_: object) -> torch.Tensor:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(driver.runner.model, "forward", fail)
    with pytest.raises(RuntimeError, match="out of luck"):
        driver.step({request: 20})
    monkeypatch.undo()
    driver.cache.drop(request.lease, driver.now)
    driver.cache.check()
    after = driver.checkpoints()
    assert after.keys() == before.keys() and all(torch.equal(after[key], before[key]) for key in before)
    again = driver.serve(request.prompt, 3)
    assert again.lease.hit == 32
    cold.check(again)


def test_slots_and_blocks_are_reused_under_pressure_and_nothing_of_the_old_shows() -> None:
    # Room for about three requests; storage fills what is released with NaN.
    spec = SPECS["hybrid"]
    budget = 11 * 16 * spec.kv_bytes_per_token + 8 * spec.checkpoint_bytes
    driver, cold = pair(budget_bytes=budget)
    rng = np.random.default_rng(5)
    shared = prompt_of(20, 9)
    requests = []
    for name in range(16):
        prompt = shared[: int(rng.integers(0, 21))] + prompt_of(int(rng.integers(1, 40)), name)
        requests.append(driver.serve(prompt, int(rng.integers(1, 5)), int(rng.integers(5, 40))))
    assert driver.cache.stats.evictions > 10
    assert any(request.lease.hit for request in requests)
    cold.check(*requests)
    cold.check_states(driver)
    used = driver.cache.store.blocks.num_used, driver.cache.store.slots.num_used
    assert (driver.storage.blocks.num_written, driver.storage.slots.num_written) >= used


def test_after_a_flush_storage_holds_nothing() -> None:
    driver, cold = pair()
    first = driver.serve(prompt_of(40), 3)
    driver.cache.flush()
    second = driver.serve(prompt_of(2, 1), 1)
    assert driver.serve(first.prompt, 3).lease.hit == 0
    driver.cache.flush()
    last = driver.admit(prompt_of(1), 1)
    driver.step({last: 1})
    assert (driver.storage.blocks.num_written, driver.storage.slots.num_written) == (1, 1)
    cold.check(first, second, last)


@pytest.mark.parametrize("memory", ["unified", "split"])
def test_both_ways_to_share_the_budget(memory: str) -> None:
    driver, cold = pair(memory=memory, budget_bytes=40_000)
    requests = [driver.serve(prompt_of(30, n % 3), 3) for n in range(6)]
    assert [r.lease.hit for r in requests] == [0, 0, 0, 29, 29, 29]
    cold.check(*requests)
    cold.check_states(driver)
