"""Faults of other caches at the level of storage and runner; the numbers are those of known_faults."""

import numpy as np
import pytest
import torch

from hybridcache.spec import ModelSpec
from tests.step_driver import Cold, Driver, Request, prompt_of
from tests.toy_hybrid import FOUR, ONE, SPECS, TWO, VOCAB, WIDTH, AnyLayer, ToyModel, attention

BLOCK = 4
"""Tokens."""


def pair(spec: ModelSpec = SPECS["hybrid"], **settings: object) -> tuple[Driver, Cold]:
    driver = Driver(spec, ToyModel(spec), block_size=BLOCK, **settings)  # type: ignore[arg-type]
    return driver, Cold(spec, lambda: ToyModel(spec), BLOCK)


def test_case_7_short_chunks_after_a_checkpoint_do_not_change_it() -> None:
    driver, cold = pair()
    known = driver.serve(prompt_of(20), 1)
    stored = driver.checkpoints()
    assert {len(tokens) for tokens in stored} == {19, 20}
    a, b = prompt_of(2, 1)
    requests = []
    for suffix in ([a], [b], [a, b], [b, a, a], [a, *prompt_of(12, 2)]):
        request = driver.serve([*known.prompt, *suffix])
        assert request.lease.hit >= 20
        requests.append(request)
        now = driver.checkpoints()
        assert all(torch.equal(now[tokens], state) for tokens, state in stored.items())
        # The request's own state, after 1, 2, 3 and 13 tokens, is there as well.
        assert torch.equal(now[tuple(request.prompt)], cold.state(request.prompt))
    cold.check(*requests)


def test_case_9_decoding_does_not_change_a_checkpoint() -> None:
    driver, cold = pair()
    first = driver.admit(prompt_of(20), 21)
    driver.step({first: 20})
    stored = driver.checkpoints()
    for _ in range(20):
        driver.step({first: 1})
    now = driver.checkpoints()
    assert stored and all(torch.equal(now[tokens], state) for tokens, state in stored.items())
    driver.finish(first)
    again = driver.serve(first.prompt, 21)
    assert again.lease.hit == 19 and again.answer == first.answer
    # Two requests resume the same checkpoint in the same step.
    pairs = [driver.admit(first.prompt + prompt_of(2, seed), 15) for seed in (1, 2)]
    assert [request.lease.state_copy and request.lease.state_copy.src_slot for request in pairs] == [
        pairs[0].lease.state_copy and pairs[0].lease.state_copy.src_slot
    ] * 2
    while len(pairs[0].answer) < 15:
        driver.step({request: len(request.tokens) - request.lease.num_computed for request in pairs})
    now = driver.checkpoints()
    assert all(torch.equal(now[tokens], state) for tokens, state in stored.items())
    cold.check(first, again, *pairs)


def test_case_9_fifty_resumptions_leave_a_checkpoint_as_it_was() -> None:
    driver, cold = pair(admission="final_only")
    base = driver.serve(prompt_of(16), 3)
    (stored,) = driver.checkpoints().items()
    requests = []
    for seed in range(50):
        request = driver.serve([*stored[0], *prompt_of(1 + seed % 4, seed)], 2)
        assert request.lease.hit == len(stored[0])
        requests.append(request)
    assert torch.equal(driver.checkpoints()[stored[0]], stored[1])
    cold.check(base, *requests[::16])


def test_case_13_no_checkpoint_beyond_the_common_prefix_is_restored() -> None:
    # The case at an eighth of its size: 1,000 tokens, checkpoints every 256, prompts of 600.
    driver, cold = pair(admission="every_n", n=32)
    session = driver.serve(prompt_of(125))
    assert {len(tokens) for tokens in driver.checkpoints()} == {32, 64, 96, 125}
    hits, requests = [], []
    for seed, shared in enumerate((37, 32, 31, 63, 64), 1):
        request = driver.admit(session.prompt[:shared] + prompt_of(75 - shared, seed))
        hits.append(request.lease.hit)
        driver.run(request, 1, 40)
        requests.append(request)
    assert hits == [32, 32, 0, 32, 64]
    cold.check(*requests)


@pytest.mark.parametrize("content", ["nan", "huge"])
@pytest.mark.parametrize("length", [1, 3, 40])
def test_case_17_a_recycled_slot_shows_nothing_of_its_last_owner(content: str, length: int) -> None:
    spec = SPECS["recurrent"]
    driver, cold = pair(spec, budget_bytes=2 * spec.checkpoint_bytes, admission="final_only")
    first = driver.admit(prompt_of(30), 1)
    driver.step({first: 30})
    slot = first.lease.slot
    driver.finish(first, keep=0)
    if content == "huge":
        for views in driver.storage.states():
            for view in views.values():
                view.fill_(1e4)
    second = driver.admit(prompt_of(length, 1), 3)
    assert second.lease.slot == slot and second.lease.hit == 0
    driver.run(second, 3)
    assert not any(np.isnan(row).any() for row in second.logits.values())
    cold.check(second)
    cold.check_states(driver)


def test_case_50_no_state_is_not_a_slot() -> None:
    driver, cold = pair()
    # Slot 0 belongs to the first request, which is in the middle of its prompt.
    first = driver.admit(prompt_of(30), 3)
    assert first.lease.slot == 0
    driver.step({first: 11})
    held = driver.storage.slots.memory[0].clone()
    others = [driver.admit(prompt_of(length, length), 3) for length in (1, 5, 12)]
    assert all(request.lease.state_copy is None and request.lease.slot != 0 for request in others)
    for request in others:
        driver.step({request: len(request.prompt)})
    assert torch.equal(driver.storage.slots.memory[0], held)
    requests: list[Request] = [first, *others]
    while any(len(request.answer) < 3 for request in requests):
        driver.step({r: len(r.tokens) - r.lease.num_computed for r in requests if len(r.answer) < 3})
    cold.check(*requests)


LAYOUTS: dict[str, tuple[AnyLayer, ...]] = {
    "one tensor": (ONE, attention()),
    "two tensors": (TWO, attention()),
    "four tensors": (FOUR, attention(), ONE, ONE),
    "no attention": (FOUR, TWO, ONE),
    "no recurrence": (attention(), attention("bfloat16")),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_case_95_checkpoints_carry_whatever_a_layer_declares(layout: str) -> None:
    spec = ModelSpec(layout, LAYOUTS[layout], WIDTH, VOCAB)
    driver, cold = pair(spec)
    declared = [tensor for layer in spec.layers for tensor in layer.state_tensors]
    assert driver.storage.slots.bytes_per_id == sum(tensor.num_bytes for tensor in declared)
    first = driver.serve(prompt_of(18), 3)
    second = driver.serve(first.tokens + prompt_of(4, 1), 3)
    assert second.lease.hit == 20
    cold.check(first, second)
    assert bool(cold.check_states(driver)) == bool(declared)
