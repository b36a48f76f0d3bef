"""Other engines' rules as baselines: SGLang's, vLLM's, Marconi's tuner, and the clairvoyant reference."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hydra import compose

from hybridcache.experiments.assisted_cache import assisted_cache
from hybridcache.experiments.best_split import Split, as_text, best, between_neighbours, find_best
from hybridcache.experiments.foresight import Foresight
from hybridcache.experiments.replay_cache import replay_cache
from hybridcache.experiments.request_rows import RequestRows
from hybridcache.experiments.run import resolved
from hybridcache.experiments.traces.open import open_trace
from hybridcache.experiments.traces.request import TraceRequest
from hybridcache.experiments.tuned_cache import TunedCache
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.policies.clairvoyant import Clairvoyant
from hybridcache.policies.columns import Columns
from hybridcache.policies.marconi_tuned import MarconiTuned
from hybridcache.prefix_cache import PrefixCache
from hybridcache.spec import ModelSpec
from tests.cache_driver import Driver
from tests.serving import KINDS, Serving, joined, text
from tests.toy_spec import HYBRID

Values = dict[str, Any]


def replayed(cache: PrefixCache, trace: list[TraceRequest]) -> list[int]:
    """Tokens hit by each request, the cache checked at the end."""
    rows = RequestRows(None)
    before, hits = 0, []
    for request in trace:
        replay_cache([request], cache, cache.spec, rows)
        hits.append(cache.stats.hit_tokens - before)
        before = cache.stats.hit_tokens
    rows.close()
    cache.check()
    return hits


def request(now: float, prompt: list[int]) -> TraceRequest:
    """One with a single output token, which is never fed: it leaves its prompt behind."""
    tokens = np.array([*prompt, 0], dtype=np.uint32)
    return TraceRequest(now, 0, 0, tokens, len(prompt), np.array([len(prompt)]))


# SGLang


def test_a_use_touches_the_states_above() -> None:
    """Three prompts part at 32; what the first goes on with is used last, and so is the branch point."""
    serving = Serving(
        KINDS["hybrid"],
        blocks=60,
        slots=9,
        memory="split",
        eviction="state_lru",
        admission="branch_and_final",
    )
    shared, paths = text(32), [text(32, seed) for seed in (1, 2, 3)]
    for path in (*paths, joined(paths[0], text(8, 9))):
        serving.serve(joined(shared, path))
        serving.now += 1.0
    store = serving.cache.store
    (root,) = store.tree.roots.values()
    (branch,) = root.children.values()
    assert store.table.accessed[branch.row] == 2.0 and store.table.path_accessed[branch.row] == 3.0
    store.refresh()
    order = [(node.stop, node.edge[-4:]) for node, _ in store.evictor.ranking(serving.now)]
    ends = [joined(path)[-1:].tobytes() for path in paths]
    assert order == [
        (64, ends[1]),
        (64, ends[2]),
        (32, shared[-1:].tobytes()),
        (64, ends[0]),
        (72, order[-1][1]),
    ]
    serving.check_idle()


def test_an_inner_state_goes_alone() -> None:
    """Prompts that grow leave states behind on one path: the shallowest goes, and no KV with it."""
    serving = Serving(
        KINDS["hybrid"], blocks=60, slots=4, memory="split", eviction="state_lru", admission="final_only"
    )
    for stop in (16, 32, 48, 64, 80):
        serving.serve(text(stop))
        serving.now += 1.0
    stats = serving.cache.stats
    assert (stats.evictions, stats.evicted_tokens) == (1, 0)
    found = [serving.look(joined(text(stop), text(1, 9))) for stop in (16, 32, 48, 64, 80)]
    assert [look.hit for look in found] == [0, 32, 48, 64, 80]
    assert [look.matched for look in found] == [16, 32, 48, 64, 80], "a tombstone"
    serving.check_idle()


def states_of(cache: PrefixCache) -> list[int]:
    """The positions that hold a checkpoint, ascending."""
    return sorted(node.stop for node in cache.store.table.nodes if node is not None and node.slot is not None)


def test_the_grid_keeps_the_last_state_of_an_answer() -> None:
    serving = Serving(KINDS["hybrid"], slots=20, admission=build_admission("grid", grid=8, every=4))
    serving.serve(text(21), text(14, 1))
    assert states_of(serving.cache) == [16, 32], "of 24, 28 and 32 the last"
    serving.check_idle()


def test_what_another_request_resumed_at_stays() -> None:
    serving = Serving(KINDS["hybrid"], slots=20, admission=build_admission("grid", grid=8, every=4))
    first = serving.begin(text(21), max_tokens=14)
    assert serving.prefill(first) and serving.decode(first, text(4, 1), 50)
    assert states_of(serving.cache) == [16, 24]
    serving.serve(joined(text(21), text(3, 1), text(3, 2)))
    assert serving.decode(first, text(9, 3), 50)
    serving.end(first)
    assert states_of(serving.cache) == [16, 24, 32]
    serving.check_idle()


@pytest.mark.parametrize("memory", ["unified", "split"])
def test_the_grid_misses_the_end_by_less_than_a_chunk(memory: str) -> None:
    serving = Serving(KINDS["hybrid"], blocks=400, slots=20, memory=memory, admission="grid")
    serving.serve(text(1_000))
    assert serving.look(joined(text(1_000), text(9, 1))).hit == 960
    serving.serve(joined(text(500), text(300, 1)))
    assert serving.look(joined(text(500), text(9, 2))).hit == 448, "the branch point, rounded down"
    serving.check_idle()


# vLLM


def test_block_ends_hit_at_block_boundaries_junctions_and_prompt_ends() -> None:
    serving = Serving(
        KINDS["hybrid"], blocks=400, slots=200, block_size=32, eviction="block_lru",
        admission=build_admission("block_ends", unit=4),
    )  # fmt: skip
    serving.serve(text(110), text(40, 5))
    assert serving.look(joined(text(100), text(9, 1))).hit == 96
    assert serving.look(joined(text(110), text(9, 1))).hit == 108, "the prompt's end"
    whole = joined(text(110), text(40, 5))
    assert serving.look(joined(whole, text(9, 1))).hit == 128, "an answer keeps its block boundaries alone"
    serving.serve(joined(text(70), text(50, 1)))
    assert serving.look(joined(text(70), text(9, 2))).hit == 68, "the junction"
    serving.check_idle()


# Bundles


@pytest.mark.parametrize(
    ("name", "eviction", "admission", "memory", "block_size"),
    [
        ("sglang", "state_lru", "grid", "split", 16),
        ("vllm", "block_lru", "block_ends", "unified", 528),
        ("marconi", "marconi_tuned", "branch_and_final", "unified", 16),
    ],
)
def test_one_setting_is_a_baseline(
    small_replay: Callable[..., Values],
    name: str,
    eviction: str,
    admission: str,
    memory: str,
    block_size: int,
) -> None:
    summary = small_replay(f"baseline={name}", "trace.limit=80", "budget_gb=2")
    config = summary["config"]
    assert (config["eviction"]["name"], config["admission"]["name"]) == (eviction, admission)
    assert (config["memory"], config["block_size"]) == (memory, block_size)
    assert 0.0 < summary["token_hit_rate"] < 1.0 and summary["evictions"]


# The best split


def test_between_neighbours() -> None:
    assert between_neighbours([0.25, 0.5, 1.0], 0.5) == [0.375, 0.75]
    assert between_neighbours([0.25, 0.5], 0.25) == [0.375]
    assert between_neighbours([0.25], 0.25) == []


@pytest.fixture
def split_values(values: Callable[..., Values]) -> Callable[..., Values]:
    return lambda *overrides: resolved(compose("best_split", ["trace.limit=60", "budget_gb=1.5", *overrides]))


def test_the_best_split(split_values: Callable[..., Values]) -> None:
    found = find_best(
        split_values("baseline=sglang", "split.fractions=[0.2,0.5,0.9]", "split.halvings=1", "split.jobs=1")
    )
    assert [split.kv_fraction for split in found][:2] == [0.2, 0.35] and len(found) in (4, 5)
    first = best(found)
    assert first.token_hit_rate == max(split.token_hit_rate for split in found) > found[-1].token_hit_rate
    assert as_text(found).count("best") == 1


def test_of_equal_splits_the_one_with_fewer_blocks() -> None:
    assert best([Split(0.2, 0.5, 0.1), Split(0.4, 0.5, 0.2), Split(0.6, 0.4, 0.3)]).kv_fraction == 0.2


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("split.fractions=[0.5,1.0]", "split.fractions=.*between 0 and 1"),
        ("split.fractions=[]", "split.fractions"),
        ("split.fractions=[a]", "split.fractions=a is not a number"),
        ("split.halvings=-1", "split.halvings=-1"),
        ("split.jobs=0", "split.jobs=0"),
        ("memory=unified", "memory=unified is unknown; choose one of split"),
        ("mode=engine", "mode=engine is unknown; choose one of cache"),
        ("eviction=marconi eviction.alpha=-1", "alpha=-1"),
    ],
)
def test_bad_settings_of_the_best_split(split_values: Callable[..., Values], setting: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        find_best(split_values(*setting.split()))


# The tuner


def tuned(**settings: Any) -> tuple[TunedCache, list[TraceRequest]]:
    """A cache of 2 GB and a chat workload that makes it evict."""
    values = compose("replay", ["trace=chat", "budget_gb=2"])
    model = resolved(values)["model"]
    trace = list(open_trace("chat", requests=160, seed=3))
    cache = assisted_cache(
        ModelSpec.from_config(model), trace, budget_bytes=1_500_000_000,
        eviction=build_eviction("marconi_tuned", **settings), admission=build_admission("branch_and_final"),
    )  # fmt: skip
    assert isinstance(cache, TunedCache)
    return cache, trace


@pytest.mark.usefixtures("values")
def test_alpha_is_the_best_of_a_replay_of_the_window() -> None:
    cache, trace = tuned(alphas=[2.0, 0.0, 0.1], window=1.0)
    policy = cache.store.evictor.policy
    alphas, first_eviction = [], None
    rows = RequestRows(None)
    for index, request in enumerate(trace):
        replay_cache([request], cache, cache.spec, rows)
        if first_eviction is None and cache.stats.evictions:
            first_eviction = index + 1
        alphas.append(policy.learnt()["alpha"])
    rows.close()
    cache.check()
    n = first_eviction
    assert n is not None
    changes = [i for i, (a, b) in enumerate(pairwise(alphas)) if a != b]
    assert all((i + 2) % n == 0 for i in changes), "tuned after each n requests"
    assert len(cache.tunings) == len(trace) // n - 1 >= 2
    for count, tuning in enumerate(cache.tunings):
        assert list(tuning.hit_tokens) == [0.0, 0.1, 2.0]
        assert tuning.hit_tokens[tuning.alpha] == max(tuning.hit_tokens.values())
        # The same window through a fresh cache, by hand.
        window = trace[count * n : (count + 2) * n]
        shadow = PrefixCache(
            cache.spec, budget_bytes=1_500_000_000, eviction=build_eviction("marconi", alpha=2.0),
            admission=build_admission("branch_and_final"),
        )  # fmt: skip
        assert sum(replayed(shadow, window)) == tuning.hit_tokens[2.0]
    assert alphas[: 2 * n - 1] == [0.0] * (2 * n - 1) and alphas[2 * n - 1] == cache.tunings[0].alpha


@pytest.mark.usefixtures("values")
def test_tuned_once() -> None:
    cache, trace = tuned(alphas=[0.0, 0.1], window=1.0, once=True)
    replayed(cache, trace)
    assert len(cache.tunings) == 1


@pytest.mark.usefixtures("values")
def test_with_one_alpha_it_is_marconi_with_that_alpha() -> None:
    for published, name in ((False, "marconi"), (True, "marconi_published")):
        cache, trace = tuned(alphas=[0.0], window=1.0, published=published)
        plain = PrefixCache(
            cache.spec, budget_bytes=1_500_000_000, eviction=build_eviction(name, alpha=0.0),
            admission=build_admission("branch_and_final"),
        )  # fmt: skip
        assert replayed(cache, trace) == replayed(plain, trace)


def test_without_replays_it_is_refused() -> None:
    with pytest.raises(ValueError, match=r"marconi_tuned.*tuned in replays only"):
        Driver(HYBRID, budget_bytes=10**6, eviction=MarconiTuned(), admission=build_admission("final_only"))


def test_published_divides_by_the_prefix() -> None:
    nodes = Columns.blank(2)
    nodes.flops_saved[:], nodes.bytes_freed[:], nodes.prefix_bytes[:] = 9.0, (90.0, 10.0), (10.0, 90.0)
    for published, victim in ((False, 0), (True, 1)):
        policy = MarconiTuned(published=published)
        policy.tuned_by_replays, policy.alpha = True, 1.0
        assert policy.score(nodes, 0.0).argmin() == victim
        policy.reset()
        assert policy.alpha == 0.0


# The clairvoyant


def test_it_takes_the_least_worth_a_second_of_waiting() -> None:
    policy = Clairvoyant()
    nodes = Columns.blank(4)
    nodes.flops_saved[:], nodes.bytes_freed[:] = (100.0, 100.0, 300.0, 900.0), (10.0, 10.0, 10.0, 10.0)
    policy.due = lambda n: np.array([20.0, 15.0, 25.0, np.inf])[:n]
    assert policy.score(nodes, 10.0).tolist() == [1.0, 2.0, 2.0, 0.0]
    assert policy.score(nodes, 30.0).max() == 30.0 * 1000, "what is due now waits a millisecond"


def test_it_keeps_what_comes_back() -> None:
    """Room for two of three prompts (96 bytes each) and one more token: recency drops A, which comes back."""
    a, b, c = ([first, *range(100, 107)] for first in (1, 2, 3))
    prompts = [a, b, c, [*a, 9], [*c, 9]]
    trace = [request(float(i), prompt) for i, prompt in enumerate(prompts)]
    hits = {}
    for name in ("lru", "clairvoyant"):
        cache = assisted_cache(
            HYBRID, trace, budget_bytes=260, block_size=4,
            eviction=build_eviction(name), admission=build_admission("final_only"),
        )  # fmt: skip
        hits[name] = replayed(cache, trace)
    assert hits["clairvoyant"] == [0, 0, 0, 8, 8]
    assert hits["lru"] == [0, 0, 0, 0, 8]


def test_foresight_knows_the_resumptions_of_an_infinite_cache() -> None:
    a = list(range(8))
    trace = [request(float(i), prompt) for i, prompt in enumerate([a, [*a, 9], [*a, 8], [5, 6, 7]])]
    admission = build_admission("branch_and_final")
    foresight = Foresight(trace, HYBRID, admission, 4)
    assert foresight.due(3).tolist() == [np.inf] * 3, "no cache yet"
    cache = PrefixCache(
        HYBRID, budget_bytes=10**6, block_size=4, eviction=build_eviction("lru"), admission=admission
    )
    foresight.cache = cache
    due = []
    for one in trace:
        replayed(cache, [one])
        table = cache.store.table
        due.append({n.stop: float(foresight.due(table.size)[n.row]) for n in table.nodes if n is not None})
    # Position 8 is resumed at by the second and the third request, and by nothing after.
    assert [times[8] for times in due] == [1.0, 2.0, np.inf, np.inf]
    assert all(time == np.inf for times in due for stop, time in times.items() if stop != 8)


def test_clairvoyant_beats_all_others_on_a_small_replay(small_replay: Callable[..., Values]) -> None:
    rates = {
        name: small_replay(f"eviction={name}", "trace.limit=120", "budget_gb=1")["token_hit_rate"]
        for name in ("clairvoyant", "lru", "reuse_rate")
    }
    assert rates["clairvoyant"] > 0.05 + max(rate for name, rate in rates.items() if name != "clairvoyant")
    infinite = small_replay("budget_gb=inf", "trace.limit=200")["token_hit_rate"]
    assert rates["clairvoyant"] < infinite
    assert (
        small_replay("eviction=clairvoyant", "trace.limit=200", "budget_gb=inf")["token_hit_rate"] == infinite
    )


def test_clairvoyant_needs_the_order_of_the_trace(small_replay: Callable[..., Values]) -> None:
    with pytest.raises(ValueError, match=r"eviction=clairvoyant.*mode=cache, not mode=engine"):
        small_replay("eviction=clairvoyant", "mode=engine", "trace.limit=5")
    with pytest.raises(ValueError, match="not mode=worker"):
        assisted_cache(
            HYBRID, [], eviction=Clairvoyant(), admission=build_admission("final_only"), mode="worker"
        )


def test_elsewhere_it_is_refused() -> None:
    with pytest.raises(ValueError, match=r"clairvoyant.*only a replay"):
        Driver(HYBRID, budget_bytes=10**6, eviction=Clairvoyant(), admission=build_admission("final_only"))


def test_the_tuner_sees_the_same_in_mode_engine(small_replay: Callable[..., Values]) -> None:
    settings = ("eviction=marconi_tuned", "eviction.window=1", "trace.limit=40", "budget_gb=0.7")
    cache = small_replay(*settings)
    engine = small_replay(*settings, "mode=engine", "hardware=none", "max_running=1")
    assert engine["token_hit_rate"] == cache["token_hit_rate"] > 0.0 and cache["evictions"] > 20
