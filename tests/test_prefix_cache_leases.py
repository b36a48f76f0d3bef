"""Many leases at a time: chunks, aborts, preemption, failed steps, flush, and duplicates."""

import math
from collections.abc import Callable
from functools import partial

import pytest

from hybridcache.lease import Lease
from hybridcache.namespace import Namespace
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.prefix_cache import PrefixCache
from hybridcache.spec import ModelSpec
from tests.cache_driver import Driver, Request
from tests.toy_spec import ATTENTION_ONLY, HYBRID, RECURRENT_ONLY


def make(spec: ModelSpec = HYBRID, admission: str = "branch_and_final") -> Driver:
    return Driver(
        spec,
        budget_bytes=math.inf,
        eviction=build_eviction("lru"),
        admission=build_admission(admission),
    )


def lease_of(request: Request) -> Lease:
    assert request.lease is not None
    return request.lease


def hit(driver: Driver, *tokens: int, namespace: Namespace = Namespace()) -> int:  # noqa: B008
    return driver.cache.match_prefix(tokens, namespace, driver.now).hit


class TestFinish:
    def test_the_running_slot_becomes_the_checkpoint(self) -> None:
        driver = make()
        request = driver.submit(range(10))
        lease = lease_of(request)
        slot = lease.slot
        driver.step(request, list(range(10)))
        driver.finish(request)
        assert lease.node.slot == slot
        assert driver.cache.store.slots.num_used == 1

    def test_a_state_beyond_what_is_kept_is_freed(self) -> None:
        driver = make()
        request = driver.submit(range(10), max_tokens=5)
        driver.step(request, list(range(10)))
        driver.step(request, [20, 21, 22])
        driver.finish(request, keep_tokens=11)
        assert driver.cache.store.slots.num_used == 0
        found = driver.cache.match_prefix([*range(10), 20, 21, 22], Namespace(), 0.0)
        assert (found.hit, found.matched) == (0, 11)
        driver.check()
        kept = driver.submit([5, *range(10)], max_tokens=5)  # the same, kept whole
        driver.step(kept, [5, *range(10)])
        driver.finish(kept, keep_tokens=11)
        assert hit(driver, 5, *range(10), 20) == 11

    def test_at_least_zero_tokens_are_kept(self) -> None:
        driver = make()
        lease = lease_of(driver.submit(range(10)))
        with pytest.raises(ValueError, match="keep_tokens=-1"):
            driver.cache.finish(lease, -1, 0.0)
        driver.check()

    def test_an_end_comes_once(self) -> None:
        driver = make()
        for end in ("finish", "drop"):
            request = driver.submit(range(10))
            lease = lease_of(request)
            driver.step(request, list(range(10)))
            if end == "finish":
                driver.finish(request)
            else:
                driver.drop(request)
            cache = driver.cache
            calls: list[Callable[[], object]] = [
                partial(cache.finish, lease, 10, 0.0),
                partial(cache.drop, lease, 0.0),
                partial(cache.restored, lease),
                partial(cache.reserve, lease, 1, 0.0),
                partial(cache.computed, lease, [1], 0.0),
                partial(cache.emits, lease, 12, 0.0),
                partial(cache.checkpoint, lease, 0.0),
                partial(cache.checkpointed, lease, 0.0),
            ]
            for call in calls:
                with pytest.raises(ValueError, match="has ended"):
                    call()
            driver.check()


class TestComputed:
    def test_nothing_is_matchable_before_it_is_computed(self) -> None:
        driver = make(ATTENTION_ONLY)
        request = driver.submit(range(12))
        assert driver.cache.reserve(lease_of(request), 12, 0.0)
        assert hit(driver, *range(12), 99) == 0
        driver.step(request, list(range(5)))
        assert hit(driver, *range(12), 99) == 5
        driver.step(request, list(range(5, 12)))
        assert hit(driver, *range(12), 99) == 12

    def test_tokens_without_blocks_are_refused(self) -> None:
        driver = make()
        lease = lease_of(driver.submit(range(12)))
        driver.cache.restored(lease)
        driver.cache.reserve(lease, 4, 0.0)
        with pytest.raises(ValueError, match="call reserve"):
            driver.cache.computed(lease, list(range(5)), 0.0)
        driver.cache.computed(lease, list(range(4)), 0.0)
        driver.cache.check()

    @pytest.mark.parametrize("tokens", [[1], [0, 2], [0, 1, 2, 3, 9, 9]])
    def test_tokens_that_are_not_the_prompts_are_refused(self, tokens: list[int]) -> None:
        driver = make()
        lease = lease_of(driver.submit(range(5)))
        driver.cache.reserve(lease, 8, 0.0)
        with pytest.raises(ValueError, match="not the prompt's"):
            driver.cache.computed(lease, tokens, 0.0)

    def test_an_answer_is_decoded_token_by_token(self) -> None:
        driver = make()
        request = driver.submit(range(3), max_tokens=9)
        driver.step(request, [0, 1, 2])
        for token in range(20, 28):
            assert driver.step(request, [token])
            driver.check()
        driver.finish(request)
        assert hit(driver, 0, 1, 2, *range(20, 28), 99) == 11


class TestAcquire:
    @pytest.mark.parametrize(
        ("tokens", "settings", "word"),
        [
            ([], {}, "empty"),
            ([-1], {}, "negative"),
            ([1], {"max_tokens": 0}, "max_tokens=0"),
            ([1], {"ttl_seconds": 0.0}, "ttl_seconds=0"),
        ],
    )
    def test_bad_requests_change_nothing(
        self, tokens: list[int], settings: dict[str, int], word: str
    ) -> None:
        driver = make()
        with pytest.raises(ValueError, match=word):
            driver.cache.acquire(tokens, Namespace(), 0.0, **settings)  # type: ignore[arg-type]
        driver.check()
        assert not driver.cache.store.tree.roots

    @pytest.mark.parametrize("settings", [{"block_size": 0}, {"ttl_seconds": -1.0}, {"memory": "both"}])
    def test_bad_caches_are_refused(self, settings: dict[str, int]) -> None:
        with pytest.raises(ValueError, match=next(iter(settings))):
            PrefixCache(
                HYBRID,
                budget_bytes=10,
                eviction=build_eviction("lru"),
                admission=build_admission("final_only"),
                **settings,  # type: ignore[arg-type]
            )


class TestDuplicates:
    @pytest.mark.parametrize("spec", [HYBRID, ATTENTION_ONLY, RECURRENT_ONLY])
    @pytest.mark.parametrize("length", [8, 10])
    def test_the_trees_blocks_win(self, spec: ModelSpec, length: int) -> None:
        """Two leases compute the same prompt; when both are done there is one copy of it."""
        driver = make(spec)
        prompt = list(range(length))
        requests = [driver.submit([*prompt, 50 + i]) for i in range(2)]
        if requests[1].wait is not None:  # not a test of waiting
            requests[1].waited.add(length)
            driver.waiting.clear()
            driver.acquire(requests[1])
        for request in requests:
            driver.step(request, prompt)
            driver.check()
        shared = driver.cache.store.blocks.blocks_for(length)
        assert driver.cache.store.blocks.num_used <= shared + 3
        for request in requests:
            driver.run(request)
            driver.check()
        assert [hit(driver, *prompt, 50 + i, 99) for i in range(2)] == [length + 1] * 2
        full = length // 4 if spec.kv_bytes_per_token else 0
        straddling = 2 if length % 4 == 0 else 3
        assert driver.cache.store.blocks.num_used <= full + straddling

    def test_the_first_checkpoint_wins(self) -> None:
        driver = make()
        requests = [driver.submit(range(4)), driver.submit([0, 1, 2])]
        lease = driver.cache.acquire(range(4), Namespace(), 0.0, waited={1, 2, 3})
        assert isinstance(lease, Lease)
        driver.cache.reserve(lease, 4, 0.0)
        driver.step(requests[0], [0, 1, 2, 3])
        driver.finish(requests[0])
        slot = driver.cache.store.slots.num_used
        driver.cache.computed(lease, range(4), 0.0)
        driver.cache.finish(lease, 4, 0.0)
        assert driver.cache.store.slots.num_used == slot - 1, "the second copy was freed"
        driver.cache.check()


class TestPreemption:
    @pytest.mark.parametrize("spec", [HYBRID, ATTENTION_ONLY, RECURRENT_ONLY])
    def test_it_goes_on_where_it_stopped_and_counts_once(self, spec: ModelSpec) -> None:
        driver = make(spec)
        request = driver.submit(range(10), max_tokens=6)
        driver.step(request, list(range(10)))
        driver.step(request, [20, 21])
        driver.preempt(request)
        lease = lease_of(request)
        # Fed again are prompt and answer; the token sampled last was never computed.
        assert lease.num_prompt == 12
        assert lease.hit == (11 if spec is ATTENTION_ONLY else 0), "the state stands beyond P - 1"
        assert driver.cache.stats.requests == 1 and driver.cache.stats.input_tokens == 10
        driver.check()
        driver.run(request)
        assert hit(driver, *range(10), 20, 21, 0, 0, 0, 9) == 15

    def test_in_the_middle_of_its_prompt(self) -> None:
        driver = make()
        request = driver.submit(range(10))
        driver.step(request, list(range(6)))
        driver.preempt(request)
        assert lease_of(request).hit == 6
        driver.run(request)
        driver.check()


class TestDrop:
    def test_a_failed_step_leaves_nothing(self) -> None:
        driver = make(ATTENTION_ONLY)
        request = driver.submit(range(12), max_tokens=4)
        driver.step(request, list(range(5)))
        driver.cache.reserve(lease_of(request), 7, 0.0)
        driver.drop(request)
        assert hit(driver, *range(12), 99) == 5, "what was computed before stays"
        assert driver.cache.store.blocks.num_used == 2
        driver.check()

    def test_an_answer_that_was_not_finished_is_not_kept(self) -> None:
        driver = make(ATTENTION_ONLY)
        request = driver.submit(range(4), max_tokens=4)
        driver.step(request, [0, 1, 2, 3])
        driver.step(request, [7, 8])
        driver.drop(request)
        assert hit(driver, 0, 1, 2, 3, 7, 8, 9) == 4
        driver.check()

    @pytest.mark.parametrize("how", ["drop", "finish"])
    def test_a_staged_checkpoint_is_given_back(self, how: str) -> None:
        driver = make(admission="branch_final_prompt")
        request = driver.submit(range(10))
        driver.step(request, list(range(9)))
        assert driver.checkpoint(request)
        assert driver.cache.store.slots.num_used == 2
        if how == "drop":
            driver.drop(request)
        else:
            driver.finish(request, keep_tokens=0)
        assert driver.cache.store.slots.num_used == 0
        driver.check()


class TestPlan:
    def test_a_position_passed_is_skipped(self) -> None:
        driver = make(admission="all_blocks")
        request = driver.submit(range(10))
        driver.step(request, list(range(10)))
        assert driver.cache.stats.checkpoints_skipped == 2
        assert lease_of(request).planned == [12]
        driver.finish(request)
        assert hit(driver, *range(9), 99) == 0 and hit(driver, *range(10), 99) == 10

    def test_a_step_may_emit_states_on_its_way(self) -> None:
        driver = make(admission="all_blocks")
        request = driver.submit(range(10))
        driver.step(request, list(range(10)), emit=True)
        assert hit(driver, *range(9), 99) == 0, "not before it is told that they are written"
        with pytest.raises(ValueError, match="are being written: call checkpointed first"):
            driver.cache.checkpoint(lease_of(request), 0.0)
        driver.commit(request)
        assert hit(driver, *range(9), 99) == 8 and hit(driver, *range(7), 99) == 4
        driver.finish(request)
        driver.check()

    def test_only_where_one_is_planned(self) -> None:
        driver = make()
        request = driver.submit(range(10))
        driver.step(request, list(range(4)))
        with pytest.raises(ValueError, match="no checkpoint is planned at 4"):
            driver.cache.checkpoint(lease_of(request), 0.0)

    def test_a_prompt_end_that_was_superseded_goes_first(self) -> None:
        driver = make(admission="branch_final_prompt")
        driver.serve(range(10), max_tokens=4)
        driver.serve([*range(50, 60)], max_tokens=4)
        cache = driver.cache
        driver.serve([*range(10), 0, 0, 0, 7], max_tokens=4)  # resumes at the final checkpoint of the first
        table = cache.store.table
        depths = [int(table.depth[row]) for row in range(table.size) if table.first_out[row]]
        assert depths == [9], "the first prompt's end, and not the second's"

    def test_a_prompt_end_that_was_used_stays(self) -> None:
        driver = make(admission="branch_final_prompt")
        driver.serve(range(10), max_tokens=4)
        driver.serve(range(10), max_tokens=4)
        assert driver.serve([*range(10), 0, 0, 0, 7], max_tokens=4).hit == 13
        assert not driver.cache.store.table.first_out.any()


class TestFlush:
    @pytest.mark.parametrize("spec", [HYBRID, ATTENTION_ONLY, RECURRENT_ONLY])
    def test_nothing_is_left_but_what_leases_hold(self, spec: ModelSpec) -> None:
        driver = make(spec)
        driver.serve(range(10))
        driver.serve([*range(10), 20, 21])
        driver.serve([*range(10), 30, 31])
        request = driver.submit([*range(10), 40, 41])
        assert lease_of(request).hit == 10
        driver.flush()
        driver.check()
        assert hit(driver, *range(10), 99) == 0
        driver.run(request)
        driver.check()
        assert hit(driver, *range(10), 40, 41, 99) == 0, "a lease of an older epoch inserts nothing"
        assert driver.cache.budget.used_bytes == 0
        driver.serve(range(10))
        assert driver.serve([*range(10), 40]).hit == 10

    def test_before_the_state_was_copied(self) -> None:
        driver = make()
        driver.serve(range(10))
        request = driver.submit([*range(10), 40])
        driver.flush()
        driver.check()
        driver.restore(request)
        driver.check()
        assert driver.cache.store.slots.num_used == 1, "the source went when its pin ended"
        driver.run(request)
        assert driver.cache.budget.used_bytes == 0

    def test_one_namespace_and_no_other(self) -> None:
        driver = make()
        other = Namespace(salt="a")
        for name in (Namespace(), other):
            driver.serve(range(10), name)
        driver.flush(other)
        assert hit(driver, *range(10), 99) == 10
        assert hit(driver, *range(10), 99, namespace=other) == 0
        driver.flush(Namespace(salt="never seen"))
        driver.check()

    def test_old_and_new_epochs_run_side_by_side(self) -> None:
        driver = make()
        old = driver.submit(range(10), max_tokens=3)
        driver.step(old, list(range(5)))
        driver.flush()
        new = driver.submit(range(10), max_tokens=3)
        assert new.wait is None and lease_of(new).hit == 0
        driver.step(new, list(range(7)))
        driver.run(old)
        driver.check()
        assert driver.cache.match_prefix(range(10), Namespace(), 0.0).matched == 7
        driver.run(new)
        assert hit(driver, *range(10), 0, 0, 99) == 12

    def test_a_checkpoint_staged_before_the_flush_is_freed(self) -> None:
        driver = make(admission="branch_final_prompt")
        request = driver.submit(range(10))
        driver.step(request, list(range(9)))
        assert driver.checkpoint(request)
        driver.flush()
        driver.commit(request)
        driver.check()
        assert driver.cache.store.slots.num_used == 1
        driver.run(request)
        assert driver.cache.budget.used_bytes == 0
