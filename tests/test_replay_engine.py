"""mode=engine: equal to mode=cache when nothing runs beside it, and what concurrency must keep."""

import csv
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest

from hybridcache.experiments.panel import Panel, describe, group_runs
from hybridcache.experiments.replay_cache import replay_cache
from hybridcache.experiments.replay_engine import replay_engine
from hybridcache.experiments.request_rows import COLUMNS, TIMED_COLUMNS, Columns, RequestRows
from hybridcache.experiments.run import replay
from hybridcache.experiments.run_record import collect_runs
from hybridcache.experiments.simulation import Simulation
from hybridcache.experiments.summary import TIMING_KEYS
from hybridcache.experiments.table import as_csv, as_text
from hybridcache.experiments.traces.open import open_trace
from hybridcache.experiments.traces.request import Trace, TraceRequest
from hybridcache.hardware import HardwareProfile
from hybridcache.loss import LOSS_REASONS
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.prefix_cache import PrefixCache
from hybridcache.scheduler import SchedulerConfig
from hybridcache.spec import ModelSpec
from tests.serving import joined, text, toy
from tests.simulated import config_group, profile

Values = dict[str, Any]
SPEC = ModelSpec.from_config(config_group("model", "nvidia_hybrid_7b"))
H100 = profile("h100")
INSTANT = profile("none")
SECONDS_OF_A_STEP = HardwareProfile("slow", "int8", {"int8": np.inf}, np.inf, 1.0, 1.0, 1.0, "test")


class Arrivals:
    """Requests of one token of answer each, all the same length and unlike each other."""

    name = "arrivals"
    has_outputs = True

    def __init__(self, times: list[float], *, answers: list[int] | None = None, tokens: int = 20) -> None:
        self.times = times
        self.answers = [1] * len(times) if answers is None else answers
        self.tokens = tokens
        self.num_requests = len(times)

    def __iter__(self) -> Iterator[TraceRequest]:
        for i, (arrival, answer) in enumerate(zip(self.times, self.answers, strict=True)):
            tokens = joined(text(self.tokens, i % 4_000), text(answer, 4_100))
            yield TraceRequest(arrival, i, 0, tokens, self.tokens, np.array([self.tokens]))


class Replayed(NamedTuple):
    """The columns of a replay, and what they came from."""

    columns: Columns
    cache: PrefixCache
    simulation: Simulation


def build_cache(
    gigabytes: float = 1e3,
    eviction: str = "age_density",
    admission: str = "branch_final_prompt",
    spec: ModelSpec = SPEC,
    **options: Any,
) -> PrefixCache:
    settings = {"n": options.pop("n")} if "n" in options else {}
    return PrefixCache(
        spec,
        budget_bytes=round(gigabytes * 1e9),
        eviction=build_eviction(eviction),
        admission=build_admission(admission, **settings),
        **options,
    )


def collect(names: dict[str, str], run: Callable[[RequestRows], None]) -> Columns:
    found: list[Columns] = []
    rows = RequestRows(None, found.append, names)
    run(rows)
    rows.close()
    return {name: np.concatenate([columns[name] for columns in found]) for name in names}


def through_engine(
    trace: Trace,
    cache: PrefixCache,
    hardware: HardwareProfile,
    *,
    speed: float = 1.0,
    **scheduler: Any,
) -> Replayed:
    simulation = Simulation.of(cache, hardware=hardware, scheduler=SchedulerConfig(**scheduler))
    columns = collect(
        TIMED_COLUMNS, lambda rows: replay_engine(trace, simulation, cache.spec, rows, speed=speed)
    )
    cache.check()
    assert not cache.leases and not simulation.engine.has_work
    assert cache.peak_bytes <= cache.budget.budget_bytes
    return Replayed(columns, cache, simulation)


def workload(kind: str, limit: int) -> Trace:
    return open_trace(**(config_group("trace", kind) | {"limit": limit, "seed": 0}))


CASES = [
    ("chat", 30, 0.3, "lru", "branch_final_prompt", {}, 2_048),
    ("chat", 20, 0.2, "hit_density", "every_n", {"n": 100}, 300),
    ("chat", 20, 0.4, "age_density", "branch_final_prompt", {"ttl_seconds": 20.0}, 2_048),
    ("agent", 45, 0.3, "age_density", "branch_and_final", {}, 300),
    ("agent", 45, 0.35, "hit_density", "branch_final_prompt", {}, 2_048),
    ("agent", 30, 0.5, "marconi", "branch_final_prompt", {}, 300),
    ("tree_search", 40, 0.3, "marconi", "branch_and_final", {}, 2_048),
    ("rag", 25, 0.8, "age_density", "branch_final_prompt", {"memory": "split"}, 300),
    ("few_shot", 40, 0.4, "gdsf", "final_only", {}, 2_048),
    ("scan", 25, 0.6, "block_lru", "branch_and_final", {}, 300),
    # Prompts of many steps before the next checkpoint.
    ("agent", 60, 0.4, "reuse_rate", "all_blocks", {"block_size": 512}, 256),
    ("edited_agent", 50, 0.4, "marconi", "branch_and_final", {"block_size": 257}, 100),
    ("edited_agent", 50, 1.0, "reuse_rate", "branch_final_prompt", {"block_size": 200}, 64),
]


@pytest.mark.parametrize(
    ("kind", "limit", "gigabytes", "eviction", "admission", "options", "step_tokens"), CASES
)
def test_alone_and_in_no_time_it_is_mode_cache(
    kind: str,
    limit: int,
    gigabytes: float,
    eviction: str,
    admission: str,
    options: Values,
    step_tokens: int,
) -> None:
    trace = workload(kind, limit)
    alone = build_cache(gigabytes, eviction, admission, **options)
    expected = collect(COLUMNS, lambda rows: replay_cache(trace, alone, SPEC, rows, step_tokens=step_tokens))
    columns, cache, _ = through_engine(
        trace,
        build_cache(gigabytes, eviction, admission, **options),
        INSTANT,
        max_num_seqs=1,
        max_num_batched_tokens=step_tokens,
    )
    for name, values in expected.items():
        assert np.array_equal(columns[name], values), (name, np.flatnonzero(columns[name] != values)[:3])
    assert cache.stats == alone.stats
    # Blocks of an answer come one by one here and all at once there: only their sum is the same.
    assert max(cache.peak_bytes, alone.peak_bytes) <= gigabytes * 1e9
    assert cache.stats.evictions > 10
    served = ~columns["refused"]
    assert not columns["e2e_seconds"][served].any()


@pytest.mark.parametrize(("kind", "gigabytes"), [("chat", 0.6), ("agent", 0.7), ("tree_search", 0.5)])
def test_together_every_request_ends_and_sums_add_up(kind: str, gigabytes: float) -> None:
    columns, cache, simulation = through_engine(
        workload(kind, 60), build_cache(gigabytes), H100, speed=40.0, max_num_seqs=16
    )
    assert columns["index"].tolist() == list(range(60))
    lost = sum(columns[f"lost_{reason}"] for reason in LOSS_REASONS)
    assert (columns["hit_tokens"] + lost == columns["prompt_tokens"]).all()
    stats = cache.stats
    assert (stats.requests, stats.hit_tokens) == (60, columns["hit_tokens"].sum())
    assert stats.matched_tokens == columns["matched_tokens"].sum()
    assert columns["evictions"].sum() == stats.evictions > 0
    assert columns["checkpoints_admitted"].sum() == stats.checkpoints_admitted
    served = ~columns["refused"]
    queue, ttft, e2e = (columns[f"{name}_seconds"][served] for name in ("queue", "ttft", "e2e"))
    assert (queue >= 0).all() and (queue < ttft).all() and (ttft <= e2e).all()
    generated = np.maximum(columns["output_tokens"], 1)[served].sum()
    assert simulation.engine.stats.generated_tokens == generated
    assert columns["preemptions"].sum() == simulation.engine.scheduler.stats.num_preemptions
    assert len(simulation.engine.scheduler.running) == 0


def test_a_tight_budget_preempts_and_everything_still_ends() -> None:
    answers = [int(n) for n in np.random.default_rng(0).integers(1, 300, 40)]
    trace = Arrivals([0.01 * i for i in range(40)], answers=answers, tokens=100)
    columns, cache, simulation = through_engine(
        trace, build_cache(2e-6, spec=toy(), eviction="lru"), SECONDS_OF_A_STEP, max_num_seqs=16
    )
    assert columns["preemptions"].sum() > 5
    assert simulation.engine.stats.generated_tokens == sum(answers)
    assert simulation.engine.stats.failed_steps == 0
    assert cache.peak_bytes <= 2_000


def test_what_never_fits_is_refused_and_counted() -> None:
    trace = Arrivals([0.0, 1.0, 2.0, 3.0], answers=[1, 500, 1, 0], tokens=300)
    columns, cache, simulation = through_engine(trace, build_cache(5e-7, spec=toy()), SECONDS_OF_A_STEP)
    assert columns["refused"].tolist() == [False, True, False, False]
    assert columns["lost_too_large"].tolist() == [0, 300, 0, 0]
    assert np.isnan(columns["ttft_seconds"]).tolist() == [False, True, False, False]
    assert (cache.stats.requests, cache.stats.requests_refused) == (4, 1)
    assert simulation.engine.stats.finished == 3


def test_idle_time_is_skipped_and_later_arrivals_are_not_shifted() -> None:
    trace = Arrivals([0.0, 1_000.0, 1_000.5], answers=[3, 2, 2])
    columns, _, simulation = through_engine(trace, build_cache(), SECONDS_OF_A_STEP)
    assert columns["ttft_seconds"].tolist() == [1.0, 1.0, 1.5]
    assert columns["queue_seconds"].tolist() == [0.0, 0.0, 0.5]
    assert columns["e2e_seconds"].tolist() == [3.0, 2.0, 2.5]
    assert simulation.clock.now() == 1_003.0
    assert simulation.runner.busy_seconds == 6.0


@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
def test_case_119_requests_are_sent_at_their_time_over_the_speed(speed: float) -> None:
    times = [0.0, 3.0, 3.0, 100.0]
    columns, _, simulation = through_engine(Arrivals(times), build_cache(), INSTANT, speed=speed)
    assert columns["arrival_seconds"].tolist() == [time / speed for time in times]
    assert simulation.clock.now() == 100.0 / speed
    lone, _, _ = through_engine(Arrivals([0.0]), build_cache(), INSTANT, speed=speed)
    assert lone["arrival_seconds"].tolist() == [0.0]


def test_case_123_a_slow_step_shifts_no_later_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("the time of a simulation is virtual"))
    cache = build_cache(1e-3, spec=toy(), eviction="lru", admission="final_only")
    tick = HardwareProfile("tick", "int8", {"int8": np.inf}, np.inf, 1.0, 1.0, 1e-4, "test")
    simulation = Simulation.of(cache, hardware=tick, scheduler=SchedulerConfig())
    latency = simulation.runner.latency
    seconds, steps = latency.seconds, 0

    class Slow:
        spec = latency.spec

        def seconds(self, step: Any) -> float:
            nonlocal steps
            steps += 1
            return seconds(step) + (1.0 if steps == 500 else 0.0)

    monkeypatch.setattr(simulation.runner, "latency", Slow())
    trace = Arrivals([0.001 * i for i in range(3_000)])
    columns = collect(TIMED_COLUMNS, lambda rows: replay_engine(trace, simulation, toy(), rows))
    assert columns["arrival_seconds"].tolist() == trace.times
    late = columns["queue_seconds"]
    assert late[:499].max() < 1e-3
    assert 0.99 < late.max() < 1.01
    assert late[-500:].max() < 1e-3, "it catches up: nothing later is late"
    assert 2.999 < simulation.clock.now() < 3.01


def test_the_summary_repeats_and_says_how_long_things_took(
    values: Callable[..., Values], tmp_path: Path
) -> None:
    config = values("mode=engine", "trace.limit=40", "speed=20", "budget_gb=0.5", "max_running=8")
    first, second = (replay(config, tmp_path / name) for name in ("a", "b"))
    assert {key: first[key] for key in first if key not in TIMING_KEYS} == {
        key: second[key] for key in second if key not in TIMING_KEYS
    }
    for name in ("ttft_seconds", "e2e_seconds", "queue_seconds"):
        figures = [first[name][key] for key in ("p50", "p95", "p99")]
        assert figures == sorted(figures) and figures[0] >= 0
        assert first[name]["mean"] >= 0
    assert 0 < first["busy_fraction"] <= 1
    rate = first["output_tokens"] / first["simulated_seconds"]
    assert first["output_tokens_per_second"] == pytest.approx(rate)
    assert first["computed_tokens"] >= first["input_tokens"] - first["hit_tokens"]
    table = pq.read_table(tmp_path / "a" / "requests.parquet")
    assert table.column_names == list(TIMED_COLUMNS)
    assert table["ttft_seconds"].to_numpy().mean() == pytest.approx(first["ttft_seconds"]["mean"])


def test_faster_hardware_serves_sooner_and_hits_help(values: Callable[..., Values], tmp_path: Path) -> None:
    def ttft(name: str, *settings: str) -> float:
        config = values("mode=engine", "trace=agent", "trace.limit=25", "speed=5", *settings)
        mean: float = replay(config, tmp_path / name)["ttft_seconds"]["mean"]
        return mean

    h100 = ttft("h100", "hardware=h100", "budget_gb=50")
    assert ttft("a100", "hardware=a100", "budget_gb=50") > 1.5 * h100
    assert ttft("none", "hardware=none", "budget_gb=50") == 0
    assert ttft("tight", "hardware=h100", "budget_gb=0.6") > h100


def test_settings_of_the_engine_are_ignored_aloud(values: Callable[..., Values], tmp_path: Path) -> None:
    config = values("trace.limit=3", "max_running=3", "hardware=a100", "speed=2")
    with pytest.warns(UserWarning, match="needs mode=engine") as caught:
        replay(config, tmp_path / "run")
    said = [str(warning.message) for warning in caught]
    for text_ in ("max_running=3", "hardware=a100", "speed=2"):
        assert any(line.startswith(f"{text_} is ignored") for line in said), said


def test_reports_tell_devices_apart_and_show_times(values: Callable[..., Values], tmp_path: Path) -> None:
    for name in ("h100", "a100"):
        replay(values("mode=engine", "trace.limit=8", f"hardware={name}"), tmp_path / name)
    runs, problems = collect_runs([tmp_path])
    comparisons, warnings = group_runs(runs)
    assert not problems and not warnings and len(comparisons) == 2
    for cells in comparisons:
        title, setting = describe(cells, comparisons)
        device = cells[0].runs[0].config["hardware"]["name"]
        assert f"hardware={device}" in title and f"hardware={device}" in setting
        panel = Panel(title, setting, tuple(cells), None, False)
        seconds = f"{cells[0].runs[0].summary['ttft_seconds']['p50']:.3g}"
        assert "time to first token, median, s\n" in as_text(panel) and seconds in as_text(panel)
        header, row = csv.reader(as_csv([panel]).splitlines())
        assert float(row[header.index("ttft_seconds.p50")]) == cells[0].mean("ttft_seconds.p50")


def test_one_configuration_alone_and_in_no_time_is_mode_cache(
    values: Callable[..., Values], tmp_path: Path
) -> None:
    shared = ("trace=agent", "trace.limit=60", "budget_gb=0.7", "max_num_batched_tokens=512")
    cached = replay(values(*shared, "mode=cache"), tmp_path / "cache")
    engine = replay(values(*shared, "mode=engine", "max_running=1", "hardware=none"), tmp_path / "engine")
    same = cached.keys() - {"config", *TIMING_KEYS}
    assert {key: cached[key] for key in same} == {key: engine[key] for key in same}
    assert cached["evictions"] > 10
