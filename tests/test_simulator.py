"""The simulated runner, its clock, and engine faults that others have had."""

import numpy as np
import pytest

from hybridcache.hardware import HardwareProfile
from hybridcache.latency import LatencyModel
from hybridcache.lease import BlockCopy, StateCopy, StateEmit
from hybridcache.namespace import Namespace
from hybridcache.prefix_cache import RequestTooLarge
from hybridcache.sampling_params import SamplingParams
from hybridcache.simulator import SimRunner, VirtualClock
from hybridcache.step import ScheduledSequence, StepBatch
from tests.serving import BLOCK, NAMESPACE, STATE, joined, text, toy
from tests.simulated import Simulated, all_ended

SECOND = HardwareProfile("second", "int8", {"int8": np.inf}, np.inf, 1.0, 1.0, 1.0, "a second a step")


def runner(budget_bytes: int = 10_000) -> SimRunner:
    return SimRunner(LatencyModel(toy(), SECOND), VirtualClock(), budget_bytes=budget_bytes)


def sequence(
    count: int, start: int = 0, slot: int | None = 0, blocks: tuple[int, ...] = (0, 1, 2), kv_start: int = 0
) -> ScheduledSequence:
    return ScheduledSequence(np.ones(count, dtype=np.uint32), start, slot, np.array(blocks), kv_start)


def test_the_clock_never_runs_backwards() -> None:
    clock = VirtualClock(5.0)
    clock.advance(0.0)
    clock.advance(1.5)
    clock.advance_to(6.5)
    for wrong in (-1e-9, float("nan")):
        with pytest.raises(ValueError, match="backwards"):
            clock.advance(wrong)
    for wrong in (6.4, float("nan")):
        with pytest.raises(ValueError, match="backwards"):
            clock.advance_to(wrong)
    assert clock.now() == 6.5


def test_a_step_takes_its_modelled_time_and_gives_no_logits() -> None:
    simulated = runner()
    result = simulated.execute(StepBatch([sequence(20), sequence(1, 0, 1, (3,))]))
    assert all(0 <= token < simulated.latency.spec.vocab_size for token in result.tokens.tolist())
    assert result.logits_of(1).shape == (0, 0)
    assert simulated.clock.now() == simulated.busy_seconds == 1.0
    simulated.execute(StepBatch([sequence(5, 20)]))
    assert simulated.clock.now() == 2.0


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (StepBatch([sequence(1, 21)]), "goes on from 21 tokens; slot 0 holds the state behind 20"),
        (StepBatch([sequence(1, 20, 4)]), "slot 4 holds the state behind 0"),
        (StepBatch([sequence(1, 20, None)]), "has slot None"),
        (StepBatch([sequence(40, 0, 2, (0, 1))]), "2 blocks for 40 tokens; 3 are needed"),
        (StepBatch([sequence(1, 20, 0, (0, 7, 8))]), r"reads the blocks \[7\], which nobody wrote"),
        (StepBatch([sequence(1, 20, 0, (0, 625))]), "blocks 0 to 625: there are 625"),
        (StepBatch([sequence(1, 0, 156, (9,))]), "slots 156 to 156: there are 156"),
        (StepBatch([sequence(1, 20), sequence(1, 20)]), "write one block"),
        (StepBatch([sequence(1, 20), sequence(9, 0, 0, (5,))]), "write one slot"),
        (StepBatch(state_copies=[StateCopy(5, 1)]), "of no state"),
        (StepBatch(state_copies=[StateCopy(0, 0)]), "onto itself"),
        (StepBatch(block_copies=[BlockCopy(7, 8, 3)]), "nobody wrote"),
        (StepBatch(block_copies=[BlockCopy(0, 8, 17)]), "of no tokens"),
        (StepBatch([sequence(1, 20)], freed_blocks=np.array([0])), r"reads the blocks \[0\]"),
        (StepBatch([sequence(1, 20)], freed_slots=np.array([0])), "holds the state behind 0"),
    ],
)
def test_what_a_step_reads_must_be_there(step: StepBatch, says: str) -> None:
    simulated = runner()
    simulated.execute(StepBatch([sequence(20)]))
    with pytest.raises(ValueError, match=says):
        simulated.execute(step)
    assert simulated.clock.now() == 1.0


def test_copies_and_emitted_states_stand_where_they_were_taken() -> None:
    simulated = runner()
    whole = ScheduledSequence(
        np.ones(40, dtype=np.uint32), 0, 0, np.arange(3), emits=[StateEmit(17, 1), StateEmit(40, 2)]
    )
    simulated.execute(StepBatch([whole]))
    resumed = StepBatch([sequence(3, 17, 3, (0, 4), kv_start=20)], [StateCopy(1, 3)], [BlockCopy(1, 4, 4)])
    simulated.execute(resumed)
    simulated.copy([StateCopy(2, 5)])
    simulated.execute(StepBatch([sequence(1, 40, 5, (0, 1, 2))]))
    with pytest.raises(ValueError, match="behind 41"):
        simulated.execute(StepBatch([sequence(1, 40, 5, (0, 1, 2))]))


def test_endless_budgets_need_no_endless_memory() -> None:
    simulated = runner(2**63 - 1)
    simulated.execute(StepBatch([sequence(4, 0, 70_000, (90_000,))]))
    simulated.execute(StepBatch([sequence(4, 4, 70_000, (90_000,))]))


# Faults of other engines (shared/cases of the project's sources), here with the whole engine.


@pytest.mark.parametrize("siblings", [2, 8])
def test_case_6_siblings_of_one_step_compute_their_prefix_once(siblings: int) -> None:
    served = Simulated()
    shared = text(64)
    requests = [served.submit(joined(shared, text(20, 1 + i))) for i in range(siblings)]
    assert served.cache.match_prefix(shared, NAMESPACE, 0.0).matched == 0
    served.engine.step()
    assert len(served.cache.leases) == 1, "the others wait"
    served.run()
    assert all_ended(requests)
    computed = served.engine.stats.computed_tokens
    assert computed == 64 + siblings * (20 + 5 - 1)
    assert [request.hit for request in requests] == [0, *[64] * (siblings - 1)]
    assert served.engine.scheduler.stats.num_waits == siblings - 1


def test_requests_without_a_script_are_answered_alike_hit_or_cold() -> None:
    served, alone = Simulated(max_num_batched_tokens=32, max_num_seqs=8), Simulated()
    prompts = [joined(text(64), text(20, 1 + i)) for i in range(4)]
    requests = [served.submit(prompt, script=None, max_tokens=9) for prompt in prompts]
    served.run()
    for prompt, request in zip(prompts, requests, strict=True):
        other = alone.serve(prompt, script=None, max_tokens=9)
        assert other.output == request.output
        assert len(other.output) == 9
    assert requests[1].hit == 64
    sampled = served.submit(prompts[0], script=None, max_tokens=9, params=SamplingParams(temperature=1.0))
    served.run()
    assert "no logits" in str(sampled.error)


@pytest.mark.parametrize("more", [0, 3])
def test_case_6_a_sibling_is_seen_when_the_steps_tokens_are_used_up(more: int) -> None:
    """The leader passes the branch point in a step that has no token left for the others."""
    served = Simulated(max_num_batched_tokens=32, max_num_seqs=8)
    shared = text(64)
    leader = served.submit(joined(shared, text(80, 1)))
    served.step()
    siblings = [served.submit(joined(shared, text(20, 2 + i))) for i in range(1 + more)]
    served.step()
    assert leader.lease is not None and leader.lease.num_computed == 64
    served.run()
    assert all_ended([leader, *siblings])
    assert [sibling.hit for sibling in siblings] == [64] * len(siblings)
    assert served.engine.scheduler.stats.num_waits == len(siblings)


def test_who_may_not_start_marks_nothing() -> None:
    """With no place among the running, a sibling changes nothing: alone, a request is served as ever."""
    served = Simulated(max_num_batched_tokens=32, max_num_seqs=1)
    shared = text(64)
    requests = [served.submit(joined(shared, text(80, 1))), served.submit(joined(shared, text(20, 2)))]
    served.run()
    assert all_ended(requests)
    assert served.engine.scheduler.stats.num_waits == 0


def test_case_6_the_leader_may_go_at_any_step() -> None:
    for steps in range(8):
        served = Simulated(max_num_seqs=8, max_num_batched_tokens=16)
        requests = [served.submit(joined(text(64), text(20, 1 + i))) for i in range(4)]
        served.step(steps)
        served.engine.abort(requests[0].id)
        served.run()
        assert all_ended(requests[1:]), steps
        assert [request.num_preemptions for request in requests] == [0] * 4


def test_case_15_a_request_withdrawn_leaves_no_key_beyond_what_was_computed() -> None:
    # 13 blocks and two states. L has 32 of 80 tokens done when Q, which goes first, needs a ninth block.
    budget = 13 * BLOCK + 2 * STATE
    served = Simulated(budget_bytes=budget, admission="final_only", max_num_seqs=2, max_num_batched_tokens=17)
    high = served.submit(text(126, 1), priority=0)
    served.step(8)
    low = served.submit(text(80), priority=1)
    served.step(2)
    assert low.lease is not None and low.lease.num_computed == 32
    assert high.lease is not None and high.lease.num_computed == 128
    served.step()
    assert low.num_preemptions == 1
    assert low.lease is None
    assert served.cache.match_prefix(low.prompt, NAMESPACE, served.clock.now()).matched <= 32
    served.run()
    assert all_ended([low, high])


@pytest.mark.parametrize("memory", ["unified", "split"])
def test_case_33_what_can_never_fit_is_refused_at_submission(memory: str) -> None:
    budget = 64 * BLOCK + STATE if memory == "unified" else 2 * 64 * BLOCK
    served = Simulated(budget_bytes=budget, memory=memory)
    for prompt, answer in ((1_000, 200), (1_100, 1), (1_024, 2)):
        with pytest.raises(RequestTooLarge, match=f"{prompt} prompt tokens and max_tokens={answer} need"):
            served.submit(text(prompt), text(answer, 1))
    assert not served.engine.has_work
    stats = served.cache.stats
    assert (stats.requests, stats.requests_refused, stats.input_tokens) == (3, 3, 3_124)
    request = served.serve(text(1_000), answer=text(25, 1))
    assert all_ended([request]) and request.num_preemptions == 0
    small = Simulated(toy(state=5_000), budget_bytes=4_000)
    with pytest.raises(RequestTooLarge, match="a state of 5000 bytes"):
        small.submit(text(10))
    assert small.cache.usage().free == 4_000


def test_case_43_prompts_progress_beside_many_decodes() -> None:
    # Interval 64, 80 tokens a step, of which 30 decodes leave 50.
    served = Simulated(
        admission="every_n", admission_settings={"n": 64}, max_num_seqs=64, max_num_batched_tokens=80
    )
    decodes = [served.submit(text(2, 100 + i), text(300, 200 + i)) for i in range(30)]
    served.step(2)
    assert len(served.engine.scheduler.running) == 30
    late = served.submit(text(500))
    for step in range(10):
        before = 0 if late.lease is None else late.lease.num_computed
        served.step()
        assert late.lease is not None
        assert late.lease.num_computed - before == min(50, 500 - before), step
    assert late.output
    assert served.cache.match_prefix(text(500), NAMESPACE, served.clock.now()).hit == 448
    served.run()
    assert all_ended([*decodes, late])


def preempted(waiting: int) -> tuple[Simulated, list[int]]:
    """A request with a hit of 64 loses its place; meanwhile a longer prefix of its prompt becomes cached."""
    served = Simulated(budget_bytes=40 * BLOCK + 6 * STATE, max_num_seqs=3)
    served.serve(text(65))
    history = [served.cache.stats.hit_tokens]
    request = served.submit(joined(text(64), text(136, 1)), text(200, 2), priority=1)
    others = [served.submit(text(150, 10 + i), text(170, 20 + i)) for i in range(waiting)]
    while served.engine.has_work:
        served.step()
        history.append(served.cache.stats.hit_tokens)
    assert request.num_preemptions > 0
    assert all_ended([request, *others])
    assert request.hit == 64 == served.cache.stats.hit_tokens
    assert request.hit + sum(request.lost.values()) == 200
    return served, history


def test_case_86_a_preempted_request_counts_once() -> None:
    served, history = preempted(2)
    assert history == sorted(history)
    stats = served.cache.stats
    assert stats.requests == 4 and stats.requests_refused == 0
    assert stats.input_tokens == 65 + 200 + 2 * 150
    assert served.engine.stats.finished == 4
    assert served.engine.scheduler.stats.num_preemptions > 0


def test_case_94_a_request_that_waits_for_room_counts_once() -> None:
    served = Simulated(budget_bytes=544)
    served.serve(text(129), answer=text(1, 3))
    full = served.submit(text(180, 1), text(60, 2))
    served.step()
    late = served.submit(joined(text(128), text(50, 4)))
    steps = 0
    while late.admitted_at is None:
        served.step()
        steps += 1
        assert served.cache.stats.requests == (2 if late.admitted_at is None else 3)
    assert steps > 50
    served.run()
    assert all_ended([full, late])
    stats = served.cache.stats
    assert late.hit == 128 and late.hit + sum(late.lost.values()) == 178
    assert stats.hit_tokens == late.hit + full.hit
    assert stats.matched_tokens == late.matched + full.matched
    assert stats.input_tokens == 129 + 180 + 178


def test_namespaces_do_not_wait_for_each_other() -> None:
    served = Simulated()
    requests = [served.submit(text(64), namespace=Namespace("toy", salt=salt)) for salt in ("a", "b", "a")]
    served.run()
    assert all_ended(requests)
    assert [request.hit for request in requests] == [0, 0, 63]
    assert served.engine.scheduler.stats.num_waits == 1


def test_the_longest_hit_goes_first_but_nobody_starves() -> None:
    served = Simulated(order="longest_hit", max_num_seqs=1, max_wait_seconds=0.1)
    served.serve(text(64))
    cold = served.submit(text(64, 1))
    warm = [served.submit(joined(text(64), text(16, 2 + i))) for i in range(30)]
    served.run()
    assert all_ended([cold, *warm])
    assert cold.admitted_at is not None
    earlier = [request for request in warm if (request.admitted_at or 0) < cold.admitted_at]
    assert 10 < len(earlier) < 30
    assert cold.admitted_at - cold.arrival < 0.12
