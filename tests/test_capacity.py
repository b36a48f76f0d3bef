"""The capacity planner: its sample, its curve beside full replays, its answers."""

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra

from hybridcache.experiments.bounds import replay_bounds
from hybridcache.experiments.capacity import as_text, curve_rows, gpu_rows, make_plan
from hybridcache.experiments.capacity_curve import Curve, Plan, Policies, estimate_curve
from hybridcache.experiments.capacity_figure import draw_curve
from hybridcache.experiments.capacity_settings import CapacitySettings
from hybridcache.experiments.replay_settings import UNBOUNDED_BYTES
from hybridcache.experiments.run import resolved
from hybridcache.experiments.trace_command import model_of
from hybridcache.experiments.trace_sample import sample_trace
from hybridcache.experiments.traces.open import open_trace
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.prefix_cache import PrefixCache
from hybridcache.spec import ModelSpec

Values = dict[str, Any]


@pytest.fixture
def capacity() -> Iterator[Callable[..., Values]]:
    """Calling it with overrides gives a resolved configuration of the planner."""
    GlobalHydra.instance().clear()
    with initialize_config_module("hybridcache.conf", version_base="1.3"):
        yield lambda *overrides: resolved(compose("capacity", list(overrides)))


def test_all_sessions_give_the_replays_themselves(capacity: Callable[..., Values]) -> None:
    values = capacity(
        "trace.limit=150", "capacity.group=1", "capacity.budgets_gb=[0.6,1,4]", "capacity.check=true"
    )
    plan = make_plan(values)
    assert plan.checked is not None
    assert plan.curve.rates == pytest.approx(plan.checked.rates)
    assert (plan.rate, plan.num_sampled) == (1.0, plan.num_sessions)
    bounds = replay_bounds(values)
    assert plan.curve.bound == pytest.approx(bounds.hybrid_token_hit_rate)
    text = as_text(
        plan,
        0.5,
        gpu_rows(plan.curve, ModelSpec.from_config(values["model"]), CapacitySettings.from_config(values)),
    )
    assert "largest error 0.0 points" in text
    assert "50% of the bound" in text
    assert len(curve_rows(plan)) == 4
    assert draw_curve(plan, 0.5).axes[0].get_xlabel().startswith("cache budget")


@pytest.mark.full
@pytest.mark.parametrize(
    ("workload", "budgets"),
    [
        (("chat", "requests=30000", "sessions_per_second=12.5"), "[25,50,100,200,400]"),
        (("few_shot", "requests=12000"), "[5,20]"),
        (("rag", "requests=16000"), "[6,15,60]"),
    ],
)
def test_a_sample_is_within_two_points_at_large_scale(
    capacity: Callable[..., Values], workload: tuple[str, ...], budgets: str
) -> None:
    kind, *sizes = workload
    trace = [f"trace={kind}", *(f"trace.{size}" for size in sizes)]
    plan = make_plan(capacity(*trace, "capacity.check=true", f"capacity.budgets_gb={budgets}"))
    assert plan.checked is not None
    assert plan.num_sampled < plan.num_sessions / 10
    errors = [a - b for a, b in zip(plan.curve.rates, plan.checked.rates, strict=True)]
    assert max(map(abs, errors)) <= 0.02, errors


def test_common_texts_hit_as_in_a_cache_of_the_whole_size(capacity: Callable[..., Values]) -> None:
    plan = make_plan(
        capacity(
            "trace=few_shot",
            "trace.requests=1600",
            "trace.tasks=6",
            "capacity.group=4",
            "capacity.budgets_gb=[1,2]",
            "capacity.check=true",
        )
    )
    assert plan.checked is not None
    assert plan.rate == pytest.approx(0.25, rel=0.05)
    # A quarter of the requests alone would hit 3 points less: each text is new once in fewer requests.
    assert plan.curve.rates == pytest.approx(plan.checked.rates, abs=0.01)


class _Recorded(PrefixCache):
    """Writes down its budget, and when its first request came."""

    made: list[tuple[float, float]]
    lengths: list[int]

    def acquire(self, tokens: Any, namespace: Any, now: float, **settings: Any) -> Any:
        if not self.stats.requests:
            self.made.append((self.budget.budget_bytes, now))
            self.lengths.clear()
        self.lengths.append(len(tokens))
        return super().acquire(tokens, namespace, now, **settings)


@pytest.mark.parametrize("group", [1, 8])
def test_policies_go_on_learning_from_replay_to_replay_of_a_sample(group: int) -> None:
    spec = model_of("nvidia_hybrid_7b")
    sample = sample_trace(open_trace("agent", requests=400, sessions_per_second=2.0), spec, group)
    policies: list[Policies] = []
    caches: list[tuple[float, float]] = []

    def make_policies() -> Policies:
        policies.append(Policies(build_eviction("reuse_rate"), build_admission("branch_and_final")))
        return policies[-1]

    def make_cache(budget_bytes: float, found: Policies) -> PrefixCache:
        assert found is policies[-1]
        cache = _Recorded(spec, budget_bytes=budget_bytes, eviction=found[0], admission=found[1])
        cache.made, cache.lengths = caches, []
        return cache

    curve = estimate_curve(sample, spec, make_policies, make_cache, [4e9, 16e9, 64e9])
    assert list(curve.budgets) == [4e9, 16e9, 64e9]
    assert curve.rates == sorted(curve.rates)
    budgets = [budget for budget, _ in caches]
    starts = [start for _, start in caches]
    if sample.whole:
        assert budgets == [UNBOUNDED_BYTES, 64e9, 4e9, 16e9]
        assert len(policies) == 1 + len(budgets)
        assert starts == [sample.requests[0].arrival] * 4
    else:
        assert len(policies) == 1
        assert starts == sorted(starts), "the clock of what they know goes on"
        assert len(set(starts)) == len(starts)
        own = [budget for budget in budgets[1:] if budget not in (4e9, 16e9, 64e9)]
        assert all(small < large for small, large in zip(own, (64e9, 4e9, 16e9), strict=True))


def test_what_common_texts_leave_of_their_room_is_not_for_the_rest() -> None:
    spec = model_of("nvidia_hybrid_7b")
    sample = sample_trace(open_trace("rag", requests=600, documents=20), spec, 3)
    assert sample.common.max() > sample.common.min() > 0
    replays: list[_Recorded] = []

    def make_cache(budget_bytes: float, policies: Policies) -> PrefixCache:
        cache = _Recorded(spec, budget_bytes=budget_bytes, eviction=policies[0], admission=policies[1])
        cache.made, cache.lengths = [], []
        replays.append(cache)
        return cache

    def make_policies() -> Policies:
        return Policies(build_eviction("lru"), build_admission("branch_and_final"))

    estimate_curve(sample, spec, make_policies, make_cache, [2e9])
    prompts = [request.num_prompt for request in sample.requests]
    endless, scaled, as_large, own_only = replays
    assert endless.lengths == scaled.lengths == as_large.lengths == prompts
    assert own_only.lengths == [p - c for p, c in zip(prompts, sample.common.tolist(), strict=True)]
    assert own_only.budget.budget_bytes < scaled.budget.budget_bytes < as_large.budget.budget_bytes == 2e9


def test_budgets_between_two_that_hit_alike_need_no_replay() -> None:
    spec = model_of("nvidia_hybrid_7b")
    sample = sample_trace(open_trace("few_shot", requests=400), spec, 4)
    made: list[float] = []

    def make_cache(budget_bytes: float, policies: Policies) -> PrefixCache:
        made.append(budget_bytes)
        return PrefixCache(spec, budget_bytes=budget_bytes, eviction=policies[0], admission=policies[1])

    def make_policies() -> Policies:
        return Policies(build_eviction("lru"), build_admission("branch_and_final"))

    curve = estimate_curve(sample, spec, make_policies, make_cache, [50e9, 100e9, 200e9, 400e9])
    assert len(made) == 3
    assert curve.rates == pytest.approx([curve.bound] * 4)
    made.clear()
    estimate_curve(sample, spec, make_policies, make_cache, [400e9])
    assert len(made) == 2, "one budget, one replay, beside the infinite one"
    made.clear()
    steep = estimate_curve(sample, spec, make_policies, make_cache, [0.5e9, 1e9, 2e9, 400e9])
    assert len(made) >= 5
    assert steep.rates[0] < steep.rates[2] <= steep.rates[3]


def test_answers_lie_between_budgets() -> None:
    curve = Curve([1e9, 4e9, 16e9], [0.2, 0.6, 0.5], 0.8, 64e9)
    assert curve.budget_for(0.4) == pytest.approx(2e9)
    assert curve.budget_for(0.1) == 1e9
    assert curve.budget_for(0.6) == pytest.approx(4e9)
    assert curve.budget_for(0.7) is None
    assert curve.rate_at(2e9) == pytest.approx(0.4)
    assert curve.rate_at(32e9) == pytest.approx(
        0.7
    )  # from 0.6, which more memory does not worsen, to the bound
    assert curve.rate_at(1e12) == 0.8


def test_devices_hold_the_weights_first(capacity: Callable[..., Values]) -> None:
    values = capacity("+capacity.gpus.small=10", "+capacity.gpus.large=100")
    curve = Curve([1e9, 100e9], [0.2, 0.8], 0.8, 200e9)
    rows = gpu_rows(curve, ModelSpec.from_config(values["model"]), CapacitySettings.from_config(values))
    by_device = {(row["gpu"], row["count"]): row for row in rows}
    assert by_device["small", 1]["free_bytes"] < 0
    assert by_device["small", 1]["token_hit_rate"] is None
    one, two = by_device["large", 1], by_device["large", 2]
    assert two["free_bytes"] - one["free_bytes"] == pytest.approx(90e9)
    assert one["token_hit_rate"] < two["token_hit_rate"] == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("capacity.group=0", "capacity.group=0: give a whole number, 1 or more"),
        ("capacity.budgets_gb=[1,-1]", "capacity.budgets_gb=.*give positive numbers"),
        ("capacity.budgets_gb=[]", "capacity.budgets_gb=.*give positive numbers"),
        ("capacity.budgets_gb=0", "capacity.budgets_gb=0: give positive numbers"),
        ("capacity.target=1.5", "capacity.target=1.5: give a part of the bound"),
        ("capacity.reserve=1", "capacity.reserve=1.0: give a part of the memory"),
        ("capacity.weight_bytes=0", "capacity.weight_bytes=0: give a positive number"),
        ("+capacity.gpus.mine=-3", "capacity.gpus.mine=-3: give a positive number"),
        ("capacity.check=1", "capacity.check=1: give true or false"),
    ],
)
def test_bad_settings(capacity: Callable[..., Values], override: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make_plan(capacity("trace.limit=5", override))


def test_settings_are_checked_before_anything_is_replayed(
    capacity: Callable[..., Values], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridcache.experiments.capacity.sample_trace", None)
    with pytest.raises(ValueError, match=r"capacity\.reserve"):
        make_plan(capacity("capacity.reserve=2"))
    with pytest.raises(TypeError), pytest.warns(UserWarning, match="mode=engine is ignored"):
        make_plan(capacity("mode=engine"))


def test_answers_say_what_is_not_known(capacity: Callable[..., Values]) -> None:
    def said(curve: Curve, target: float) -> str:
        return as_text(Plan("t", "m", curve, 1.0, 9, 9, 1.0, None), target, [])

    curve = Curve([1e9, 4e9], [0.2, 0.6], 0.8, 64e9)
    assert "90% of the bound (72.0% hits) takes more than the largest budget here, and at most 64 GB" in said(
        curve, 0.9
    )
    assert "takes at most 1 GB, the smallest budget here" in said(curve, 0.2)
    assert "99.5% of the bound" in said(curve, 0.995)
    nothing = make_plan(capacity("trace.limit=1", "capacity.budgets_gb=1"))
    assert list(nothing.curve.budgets) == [1e9], "a single number is a list of one"
    assert "nothing in this trace is used again" in as_text(nothing, 0.8, [])
    assert not any("takes" in text.get_text() for text in draw_curve(nothing, 0.8).axes[0].texts)


def test_budgets_beyond_all_that_is_stored_do_not_bend_the_curve() -> None:
    curve = Curve([1e9, 100e9], [0.2, 0.8], 0.8, 4e9)
    assert curve.rate_at(2e9) == pytest.approx(0.5)
    assert curve.rate_at(50e9) == 0.8


def test_the_command_writes_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hybridcache.experiments import capacity as planner

    arguments = ["capacity", "trace.limit=80", "capacity.budgets_gb=[1,4]", f"hydra.run.dir={tmp_path}"]
    monkeypatch.setattr("sys.argv", arguments)
    GlobalHydra.instance().clear()
    planner.main()
    assert (tmp_path / "capacity.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((tmp_path / "capacity.csv").open()))
    assert [float(row["budget_gb"]) for row in rows] == [1, 4]
    found = json.loads((tmp_path / "capacity.json").read_text())
    assert found["curve"]["rates"][0] == float(rows[0]["token_hit_rate"])
    assert found["config"]["trace"]["kind"] == "chat"
    GlobalHydra.instance().clear()
    with pytest.raises(SystemExit, match="2"):
        planner.main()
    assert "capacity.json is there already; choose another hydra.run.dir" in capsys.readouterr().err
