"""Real models served through PrefixCache, storage and runner: a hit equals a cold run to the bit."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from hybridcache.kernels.dispatch import build_ops
from hybridcache.models.load import LoadedModel, load_model
from tests.hybrid_runs import quick_for
from tests.step_driver import Cold, Driver, Request, mixed, prompt_of

VOCAB = 4_096
Loaded = Callable[..., LoadedModel]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pair(loaded: LoadedModel, **settings: object) -> tuple[Driver, Cold]:
    """A driver with room for 80 blocks and 60 slots, and the cold runs it is compared with."""
    spec = loaded.spec
    budget = 80 * 16 * spec.kv_bytes_per_token + 60 * spec.checkpoint_bytes
    driver = Driver(spec, loaded.model, budget_bytes=budget, **settings)  # type: ignore[arg-type]
    return driver, Cold(spec, lambda: loaded.model, budget_bytes=1 << 26)


def text(length: int, seed: int = 0) -> list[int]:
    return prompt_of(length, seed, VOCAB)


@quick_for("bamba", "jamba", "llama", "qwen3_next")
def test_turns_branches_and_repeats_equal_cold_runs(loaded: Loaded, family: str) -> None:
    driver, cold = pair(loaded(family))
    first = driver.serve(text(70), 4)
    second = driver.serve(first.tokens + text(30, 1), 4, 23)
    again = driver.serve(first.prompt, 4)
    branch = driver.serve(first.prompt[:37] + text(40, 2), 3, 29)
    sibling = driver.serve(first.prompt[:37] + text(29, 3), 3)
    hits = [request.lease.hit for request in (first, second, again, branch, sibling)]
    recurrent = family != "llama"
    assert hits == [0, 73, 69, 0 if recurrent else 37, 37]
    assert again.answer == first.answer
    cold.check(first, second, again, branch, sibling)
    assert cold.check_states(driver) == (9 if recurrent else 0)


@quick_for("bamba")
def test_eight_requests_in_one_batch_equal_solo_runs(loaded: Loaded, family: str) -> None:
    driver, cold = pair(loaded(family))
    requests = mixed(driver)
    cold.check(*requests)
    cold.check_states(driver)


def test_checkpoints_in_the_middle_of_a_pass_equal_those_at_its_end(loaded: Loaded) -> None:
    found = []
    for emits in (True, False):
        driver, cold = pair(loaded("bamba"), admission="every_n", n=16)
        driver.run(driver.admit(text(90), 20), 20, emits=emits)
        assert cold.check_states(driver) == 7
        found.append(driver.checkpoints())
    assert all(torch.equal(state, found[1][tokens]) for tokens, state in found[0].items())


def test_preemption_and_a_failed_step_change_no_answer(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, cold = pair(loaded("bamba"))
    request = driver.admit(text(60), 8)
    driver.step({request: 41})
    driver.finish(request, keep=41)
    back = driver.admit(request.prompt, 8, first=False)
    assert back.lease.hit == 41
    driver.step({back: 19})
    driver.step({back: 1})
    forward = type(driver.runner.model).forward

    def fails(*args: object) -> torch.Tensor:
        forward(*args)  # type: ignore[arg-type]
        raise RuntimeError("after the last layer")

    with monkeypatch.context() as patch:
        patch.setattr(type(driver.runner.model), "forward", fails)
        with pytest.raises(RuntimeError, match="after the last layer"):
            driver.step({back: 1})
    driver.cache.drop(back.lease, driver.now)
    last = driver.admit(back.tokens, 6, first=False)
    assert last.lease.hit == 59
    driver.run(last, 6)
    cold.check(back, last)
    cold.check_states(driver)
    whole, _ = pair(loaded("bamba"))
    assert whole.serve(text(60), 8).answer == back.answer + last.answer


def test_fifty_resumptions_leave_a_checkpoint_as_it_was(loaded: Loaded) -> None:
    driver, cold = pair(loaded("bamba"), admission="final_only")
    base = driver.serve(text(40), 3)
    ((tokens, stored),) = driver.checkpoints().items()
    requests = [driver.serve([*tokens, *text(1 + seed % 4, seed)], 3) for seed in range(50)]
    assert {request.lease.hit for request in requests} == {len(tokens)}
    assert torch.equal(driver.checkpoints()[tokens], stored)
    cold.check(base, *requests[::12])


@quick_for("bamba")
def test_case_22_several_tokens_after_a_cached_prefix(loaded: Loaded, family: str) -> None:
    driver, cold = pair(loaded(family), admission="final_only")
    for count in (1, 2, 3, 4, 17, 64):
        prompt = text(100) + text(count, count)
        at_once, state = resumed(driver, prompt, None)
        one_by_one, same_state = resumed(driver, prompt, 1)
        assert at_once.logits.keys() == one_by_one.logits.keys()
        assert all(np.array_equal(row, one_by_one.logits[at]) for at, row in at_once.logits.items())
        if state is None or same_state is None:
            assert state is same_state and family == "llama"
        else:
            assert torch.equal(state, same_state) and torch.equal(state, cold.state(prompt))
        cold.check(at_once)


def resumed(driver: Driver, prompt: list[int], chunk: int | None) -> tuple[Request, torch.Tensor | None]:
    """A request that goes on from 100 cached tokens, and the state that it leaves, if the model has one."""
    driver.cache.flush()
    driver.serve(text(100))
    request = driver.admit(prompt)
    assert request.lease.hit == 100
    driver.run(request, 1, chunk)
    return request, driver.checkpoints().get(tuple(prompt))


@quick_for("bamba")
def test_case_23_cuts_beside_the_chunks_of_a_scan(loaded: Loaded, family: str) -> None:
    prompt = text(130)
    for cut in (1, 3, 63, 64, 65, 100, 127):
        driver, cold = pair(loaded(family))
        request = driver.admit(prompt)
        driver.step({request: cut})
        driver.run(request, 1)
        cold.check(request)
        cold.check_states(driver)
    driver, cold = pair(loaded(family))
    packed = [driver.admit(text(length, length)) for length in (50, 64, 77)]
    driver.step({request: len(request.prompt) for request in packed})
    cold.check(*packed)


@quick_for("bamba", "qwen3_next")
def test_case_34_company_and_padding_reach_neither_answers_nor_checkpoints(
    loaded: Loaded, family: str
) -> None:
    driver, cold = pair(loaded(family))
    requests = [driver.admit(text(length, length), 4) for length in (5, 37, 200)]
    driver.step({request: len(request.prompt) for request in requests})
    for _ in range(3):
        driver.step(dict.fromkeys(requests, 1))
    for request in requests:
        driver.finish(request)
    cold.check(*requests)
    assert cold.check_states(driver) == (0 if family == "llama" else 6)


@pytest.mark.parametrize(("ssm_dtype", "bound"), [("float32", 0.0), ("bfloat16", 0.125)])
def test_case_71_twenty_turns_of_restoring_and_saving(
    checkpoint: Callable[[str], Path], tmp_path: Path, ssm_dtype: str, bound: float
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint("bamba"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "mamba_ssm_cache_dtype": ssm_dtype}))
    loaded = load_model(folder, ops=build_ops("cpu"), dtype="bfloat16")
    driver, cold = pair(loaded, admission="final_only")
    views = [view for layer in driver.storage.states() for view in layer.values()]
    assert {view.dtype for view in views} == {torch.bfloat16, getattr(torch, ssm_dtype)}
    assert driver.cache.store.slots.bytes_per_id == loaded.spec.checkpoint_bytes
    tokens: list[int] = []
    for turn in range(20):
        request = driver.serve(tokens + text(3 + turn % 4, turn), 2)
        assert request.lease.hit == max(len(tokens) - 1, 0)
        tokens = request.tokens
    difference = np.abs(request.logits[len(tokens) - 2] - cold.logits(tokens)[-2]).max()
    assert difference <= bound, difference
