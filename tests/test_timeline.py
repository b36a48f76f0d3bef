"""timeline.parquet: what a cache held over a replay, and what checkpoints of each kind returned."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridcache.experiments import timeline as timeline_module
from hybridcache.experiments.replay_cache import replay_cache
from hybridcache.experiments.replay_settings import ReplaySettings
from hybridcache.experiments.request_rows import RequestRows
from hybridcache.experiments.run import build_parts, replay
from hybridcache.experiments.timeline import COLUMNS, LEARNT, Timeline, read_timeline
from hybridcache.experiments.timeline_figure import (
    KIND_LOOKS,
    WINDOWS,
    Course,
    draw_bytes,
    draw_learnt,
    learnt_names,
    returns,
)
from hybridcache.policies.build import build_admission
from hybridcache.policies.columns import KIND_NAMES, Columns
from hybridcache.policies.lru import Lru
from hybridcache.prefix_cache import PrefixCache

Values = dict[str, Any]
Samples = dict[str, NDArray[np.float64]]


def sampled(values: Values, folder: Path) -> tuple[Values, Samples]:
    return replay(values, folder), read_timeline(folder / "timeline.parquet")


@pytest.mark.parametrize("mode", ["cache", "engine"])
def test_sums_end_at_the_summary(mode: str, values: Callable[..., Values], tmp_path: Path) -> None:
    settings = ("admission=branch_final_prompt", f"mode={mode}", "trace.limit=60")
    summary, samples = sampled(values(*settings), tmp_path)
    assert list(samples)[: len(COLUMNS)] == list(COLUMNS)
    assert list(samples)[len(COLUMNS) :] == learnt_names(samples)
    last = {name: column[-1] for name, column in samples.items()}
    assert last["requests"] == summary["requests"] == 60
    for name in ("input_tokens", "hit_tokens", "flops_saved"):
        assert last[name] == pytest.approx(summary[name])
    # Whoever hits in a hybrid model resumes at a checkpoint of one kind.
    assert summary["hit_tokens"] > 0
    assert sum(last[f"{kind}_hits"] for kind in KIND_NAMES) == round(summary["request_hit_rate"] * 60)
    assert sum(last[f"{kind}_flops_saved"] for kind in KIND_NAMES) == pytest.approx(summary["flops_saved"])
    assert sum(last[f"{kind}_admitted"] for kind in KIND_NAMES) == summary["checkpoints_admitted"]
    held = samples["kv_bytes"] + samples["running_state_bytes"]
    held = held + sum(samples[f"{kind}_bytes"] for kind in KIND_NAMES)
    assert held.max() <= summary["peak_bytes"] <= summary["budget_bytes"]
    assert not samples["requests"][0] and not held[0]
    assert samples["final_bytes"][-1] > 0 and samples["prompt_end_bytes"].max() > 0
    assert last["running_state_bytes"] == 0
    assert samples["running_state_bytes"].any() == (mode == "engine")


def test_kinds_are_told_apart(values: Callable[..., Values], tmp_path: Path) -> None:
    settings = ("trace=few_shot", "trace.limit=60", "budget_gb=8")
    _, few = sampled(values(*settings), tmp_path / "a")
    assert few["branch_hits"][-1] > 0 == few["final_hits"][-1]
    _, every = sampled(values(*settings, "admission=every_n", "admission.n=256"), tmp_path / "b")
    assert every["interval_hits"][-1] > 0 == every["branch_bytes"].max()
    assert every["interval_flops_saved"][-1] == every["flops_saved"][-1]


def test_a_longer_trace_has_no_more_samples(
    values: Callable[..., Values], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, whole = sampled(values(), tmp_path / "a")
    assert whole["requests"].tolist() == list(range(121))
    monkeypatch.setattr(timeline_module, "MOST_SAMPLES", 50)
    _, thin = sampled(values(), tmp_path / "b")
    assert thin["requests"].tolist() == [*range(0, 120, 3), 120]
    for name, column in thin.items():
        assert column.tolist() == whole[name][::3].tolist(), name


def test_without_recurrent_layers_there_are_no_checkpoints(
    values: Callable[..., Values], tmp_path: Path
) -> None:
    pattern = "model.pattern=[{repeat:4,layers:[attention,mlp]}]"
    summary, samples = sampled(values(pattern, "trace.limit=60"), tmp_path)
    assert summary["hit_tokens"] > 0
    assert not any(samples[f"{kind}_{what}"].any() for kind in KIND_NAMES for what in ("bytes", "hits"))
    assert samples["kv_bytes"].any()


def test_returns_are_flops_for_bytes_and_time() -> None:
    seconds = np.array([0.0, 60.0, 600.0, 720.0])
    samples = {
        "seconds": seconds,
        "final_bytes": np.full(4, 2e9),
        "final_flops_saved": seconds * 1e15,
        "branch_bytes": np.zeros(4),
        "branch_flops_saved": np.zeros(4),
    }
    middles, rates = returns(samples, "final")
    assert middles == pytest.approx(60 * np.arange(0.5, WINDOWS))
    assert rates == pytest.approx(np.full(WINDOWS, 30.0))  # 60 PFLOP a minute for 2 GB
    assert np.isnan(returns(samples, "branch")[1]).all()


def test_the_picture_shows_what_was_held(values: Callable[..., Values], tmp_path: Path) -> None:
    _, samples = sampled(values("admission=branch_final_prompt"), tmp_path)
    courses = [Course("one", "lru", 1.0, samples), Course("two", "lru", float("inf"), samples)]
    figure = draw_bytes(courses, {}, "title")
    assert len(figure.axes) == 6
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    kinds = ("final", "branch", "prompt_end", "follow_up")
    assert names == ["KV", *(f"{kind} checkpoints" for kind in kinds), "budget"]
    hatches = [area.get_hatch() for area in figure.axes[0].collections]
    assert len(set(hatches)) == len(hatches) == 5
    corners = [np.asarray(area.get_paths()[0].vertices) for area in figure.axes[0].collections]
    top = max(float(points[:, 1].max()) for points in corners)
    held = samples["kv_bytes"] + sum(samples[f"{kind}_bytes"] for kind in KIND_NAMES)
    assert top == pytest.approx(held.max() / 1e9)
    assert not figure.axes[3].lines  # no line for a budget that is infinite


class Count(Lru):
    """Has learnt how often it was asked."""

    name = "count"

    def __init__(self) -> None:
        self.scored = 0

    def score(self, columns: Columns, now: float) -> NDArray[np.float64]:
        self.scored += 1
        return super().score(columns, now)

    def learnt(self) -> dict[str, float]:
        return {"scored": self.scored, **({"late": 7.0} if self.scored > 1 else {})}


def test_what_a_policy_has_learnt_is_sampled(values: Callable[..., Values], tmp_path: Path) -> None:
    settings = ReplaySettings.from_config(values())
    spec, _, trace = build_parts(settings)
    policy = Count()
    cache = PrefixCache(
        spec, budget_bytes=1e9, eviction=policy, admission=build_admission("branch_and_final")
    )
    timeline = Timeline(cache, trace.num_requests)
    replay_cache(trace, cache, spec, RequestRows(None, on_row=timeline.after))
    timeline.write(tmp_path / "t.parquet")
    samples = read_timeline(tmp_path / "t.parquet")
    scored = samples[LEARNT + "scored"]
    assert (scored[0], scored[-1]) == (1, policy.scored) and policy.scored > 10
    assert (np.diff(scored) >= 0).all()
    late = samples[LEARNT + "late"]
    assert np.isnan(late[0]) and late[-1] == 7.0
    drawn = {"labels": {"count": "times"}, "scales": {"count": 2}}
    figure = draw_learnt([Course(name, "count", 1.0, samples) for name in "abc"], drawn, "title")
    lines = {line.get_label(): np.asarray(line.get_ydata()) for line in figure.axes[2].lines}
    assert lines.keys() == {"scored", "late"}
    assert lines["scored"].tolist() == (2 * scored).tolist()
    assert [axes.get_ylabel() for axes in figure.axes] == ["times", "", "times"]


def test_each_kind_of_checkpoint_has_looks_of_its_own() -> None:
    assert set(KIND_LOOKS) == set(KIND_NAMES)
    for looks in zip(*KIND_LOOKS.values(), strict=True):
        assert len(set(looks)) == len(KIND_NAMES)
