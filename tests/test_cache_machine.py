"""A state machine drives the whole cache through its leases, against a list of sequences and a fake memory.

After every rule ``check()`` recounts the cache, ``usage()`` is compared with ids collected one by one, and
every block and slot is looked at: does it hold what the cache says? What a prompt finds is never
more than the naive cache found; with an infinite budget it is exactly that.
"""

import math

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hybridcache.namespace import Namespace
from hybridcache.policies.build import ADMISSION, EVICTION, build_admission, build_eviction
from tests.cache_driver import Driver, Request, staged
from tests.naive_cache import Tokens
from tests.toy_spec import ATTENTION_ONLY, HYBRID, KV_BYTES, RECURRENT_ONLY, STATE_BYTES

MOST_RUNNING = 12
NAMESPACES = (Namespace(), Namespace(salt="a"), Namespace(adapter="a"))
PICK = st.integers(0, MOST_RUNNING - 1)
TAIL = st.lists(st.integers(0, 1) | st.sampled_from([0, 2**32 - 1]), max_size=12)
PROMPTS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 60), TAIL, st.sampled_from([0, 0, 0, 1, 2])),
    min_size=1,
    max_size=5,
)
"""Which known sequence to begin with, up to where, what follows, and the namespace."""


class CacheMachine(RuleBasedStateMachine):
    """One cache; up to twelve requests at a time."""

    driver: Driver

    @initialize(
        spec=st.sampled_from([HYBRID, HYBRID, ATTENTION_ONLY, RECURRENT_ONLY]),
        block_size=st.sampled_from([1, 3, 4, 16]),
        budget=st.none() | st.tuples(st.integers(1, 40), st.integers(1, 12)),
        kv_fraction=st.sampled_from([None, 0.3, 0.5, 0.8]),
        eviction=st.sampled_from(sorted(EVICTION)),
        admission=st.sampled_from(sorted(ADMISSION)),
        every=st.sampled_from([1, 2, 5, 16]),
        ttl_seconds=st.sampled_from([None, None, 1.0, 10.0]),
    )
    def build(
        self,
        spec: object,
        block_size: int,
        budget: tuple[int, int] | None,
        kv_fraction: float | None,
        eviction: str,
        admission: str,
        every: int,
        ttl_seconds: float | None,
    ) -> None:
        assert spec in (HYBRID, ATTENTION_ONLY, RECURRENT_ONLY)
        model = HYBRID if spec is HYBRID else ATTENTION_ONLY if spec is ATTENTION_ONLY else RECURRENT_ONLY
        if kv_fraction is not None and model is not HYBRID:
            kv_fraction = 1.0 if model is ATTENTION_ONLY else 0.0
        self.driver = Driver(
            model,
            budget_bytes=math.inf
            if budget is None
            else budget[0] * block_size * KV_BYTES + budget[1] * STATE_BYTES,
            eviction=build_eviction(eviction),
            admission=build_admission(admission, **({"n": every} if admission == "every_n" else {})),
            block_size=block_size,
            memory="unified" if kv_fraction is None else "split",
            kv_fraction=kv_fraction or 0.0,
            ttl_seconds=ttl_seconds,
        )
        self.known: list[Tokens] = [()]

    # Requests

    @precondition(lambda self: len(self.driver.running) < MOST_RUNNING)
    @rule(
        prompts=PROMPTS,
        max_tokens=st.sampled_from([1, 1, 3, 10]),
        ttl_seconds=st.sampled_from([None, None, 0.5, 30.0]),
    )
    def submit(
        self,
        prompts: list[tuple[int, int, list[int], int]],
        max_tokens: int,
        ttl_seconds: float | None,
    ) -> None:
        for base, cut, tail, namespace in prompts:
            prompt = self._prompt(base, cut, tail)
            self.known.append(prompt)
            self.driver.submit(prompt, NAMESPACES[namespace], max_tokens=max_tokens, ttl_seconds=ttl_seconds)

    @precondition(lambda self: self.driver.running)
    @rule(
        picks=st.lists(st.tuples(PICK, st.sampled_from([1, 2, 5, 100])), min_size=1, max_size=8),
        generate=st.lists(st.integers(0, 1), min_size=10, max_size=10),
        at_plan=st.sampled_from(["copy", "copy", "emit", "pass"]),
        commit=st.booleans(),
    )
    def step(self, picks: list[tuple[int, int]], generate: list[int], at_plan: str, commit: bool) -> None:
        """What is staged is committed, what is planned is staged, and the other requests compute.

        At a planned position a step ends, and the state is copied; or it emits it; or it passes it.
        """
        for pick, n in picks:
            if not self.driver.running:
                return
            request = self._pick(pick)
            if staged(request):
                self.driver.commit(request)
            elif at_plan != "pass" and self.driver.at_plan(request):
                if self.driver.checkpoint(request) and commit:
                    self.driver.commit(request)
            elif tokens := self.driver.next_tokens(request, n, at_plan == "copy", generate):
                self.driver.step(request, tokens, emit=at_plan == "emit")
                if commit and staged(request):
                    self.driver.commit(request)
            else:
                self.known.append(request.tokens)
                self.driver.finish(request)

    @precondition(lambda self: self.driver.running)
    @rule(pick=PICK)
    def restore(self, pick: int) -> None:
        self.driver.restore(self._pick(pick))

    @precondition(lambda self: self.driver.running)
    @rule(pick=PICK, keep_tokens=st.integers(0, 70))
    def abort(self, pick: int, keep_tokens: int) -> None:
        self.driver.finish(self._pick(pick), keep_tokens)

    @precondition(lambda self: self.driver.running)
    @rule(pick=PICK)
    def preempt(self, pick: int) -> None:
        self.driver.preempt(self._pick(pick))

    @precondition(lambda self: self.driver.running)
    @rule(pick=PICK)
    def drop(self, pick: int) -> None:
        self.driver.drop(self._pick(pick))

    @precondition(lambda self: self.driver.waiting)
    @rule(pick=PICK)
    def wake(self, pick: int) -> None:
        self.driver.wake(self.driver.waiting[pick % len(self.driver.waiting)])

    # Time and flush

    @rule(seconds=st.sampled_from([0.1, 0.5, 3.0]))
    def advance(self, seconds: float) -> None:
        self.driver.now += seconds

    @rule(namespace=st.sampled_from([None, *NAMESPACES]))
    def flush(self, namespace: Namespace | None) -> None:
        self.driver.flush(namespace)

    # Judging

    @rule(base=st.integers(0, 9), cut=st.integers(0, 60), tail=TAIL, namespace=st.sampled_from(NAMESPACES))
    def probe(self, base: int, cut: int, tail: list[int], namespace: Namespace) -> None:
        self.driver.probe(namespace, self._prompt(base, cut, tail))

    @invariant()
    def checked(self) -> None:
        self.driver.check()

    def teardown(self) -> None:
        """All end; then each waiting request runs alone, and a flush leaves nothing behind."""
        if not hasattr(self, "driver"):
            return
        driver = self.driver
        for request in list(driver.running):
            driver.finish(request)
        driver.check()
        for request in driver.waiting[:3]:
            driver.acquire(request)
            driver.run(request)
        driver.flush()
        driver.check()
        assert driver.cache.budget.used_bytes == 0
        assert driver.cache.store.evictor.num_policy_errors == driver.cache.stats.admission_errors == 0

    def _pick(self, pick: int) -> Request:
        return self.driver.running[pick % len(self.driver.running)]

    def _prompt(self, base: int, cut: int, tail: list[int]) -> Tokens:
        """A prompt that shares a beginning with a recent sequence; never empty."""
        known = self.known[-1 - base % len(self.known)]
        return (known[: cut % (len(known) + 1)] + tuple(tail))[:60] or (0,)


def test_machine() -> None:
    run_state_machine_as_test(
        CacheMachine, settings=_settings(max_examples=50, steps=30, shrink=False)
    )


@pytest.mark.full
def test_machine_at_length() -> None:
    run_state_machine_as_test(
        CacheMachine, settings=_settings(max_examples=600, steps=60, shrink=True)
    )


def _settings(max_examples: int, steps: int, shrink: bool) -> settings:
    return settings(
        phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if shrink else [])],
        max_examples=max_examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
