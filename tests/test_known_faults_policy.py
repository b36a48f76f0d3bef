"""Known faults of policies: scores the right way round, failures, which positions get a checkpoint."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridcache.policies.admission import PromptFacts
from hybridcache.policies.build import EVICTION, build_admission, build_eviction
from hybridcache.policies.columns import FINAL, Columns, Facts
from hybridcache.policies.eviction import EvictionPolicy
from hybridcache.policies.lru import Lru
from tests.serving import ADMISSIONS, EVICTIONS, KINDS, NAMESPACE, Serving, joined, text, toy

RECURRENT = ["hybrid", "recurrent"]
MEMORIES = ["unified", "split"]
BY_HITS = ["lfu", "gdsf"]
BY_FLOPS = ["marconi", "age_density", "gdsf", "hit_density", "reuse_rate"]
BY_RECENCY = [
    "lru", "block_lru", "state_lru", "lfu", "marconi", "marconi_published", "age_density", "hit_density",
    "reuse_rate",
]  # fmt: skip


def columns(**facts: list[Any]) -> Columns:
    """Three nodes that differ only in ``facts``."""
    whole = {"hits", "children", "kind", "depth"}
    default = {
        "accessed": 100.0, "path_accessed": 100.0, "hits": 1, "children": 0, "kind": FINAL,
        "flops_saved": 1e6, "bytes_freed": 1e3, "prefix_bytes": 1e4, "depth": 50, "clock": 0.0,
    }  # fmt: skip
    arrays: dict[str, Any] = {
        name: np.array(facts.get(name, [value] * 3), dtype=np.int64 if name in whole else np.float64)
        for name, value in default.items()
    }
    return Columns(**arrays)


def order(policy: EvictionPolicy, nodes: Columns) -> list[int]:
    """The nodes from the first to go to the last."""
    return [int(node) for node in np.argsort(policy.score(nodes, 200.0), kind="stable")]


def test_case_063_every_policy_is_asked() -> None:
    """A new policy must be told here which of the good inputs it takes."""
    assert {*BY_HITS, *BY_FLOPS, *BY_RECENCY} == set(EVICTION)


@pytest.mark.parametrize("eviction", BY_HITS)
def test_case_063_the_least_used_goes(eviction: str) -> None:
    """A hit 100 times, B 10, C once: C goes first."""
    assert order(build_eviction(eviction), columns(hits=[100, 10, 1])) == [2, 1, 0]


@pytest.mark.parametrize("eviction", BY_FLOPS)
def test_case_063_the_cheapest_to_recompute_goes(eviction: str) -> None:
    """Same hits, different FLOPs saved per byte: by more FLOPs, and by fewer bytes."""
    policy = build_eviction(eviction)
    assert order(policy, columns(flops_saved=[3e6, 1e6, 2e6])) == [1, 2, 0]
    assert order(policy, columns(bytes_freed=[2e3, 3e3, 1e3])) == [1, 0, 2]


@pytest.mark.parametrize("eviction", BY_RECENCY)
def test_case_063_the_oldest_goes(eviction: str) -> None:
    """Same hits and FLOPs, different recency."""
    nodes = columns(accessed=[150.0, 10.0, 90.0], path_accessed=[150.0, 10.0, 90.0])
    assert order(build_eviction(eviction), nodes) == [1, 2, 0]


def test_case_063_the_clock_of_gdsf_favours_the_newer() -> None:
    """After evictions a new node starts from a higher clock than an old one of equal worth."""
    assert order(build_eviction("gdsf"), columns(clock=[5.0, 1.0, 3.0])) == [1, 2, 0]


def test_case_063_hit_density_learns_the_right_way_round() -> None:
    """A class that is hit and a class that is evicted: the first is worth more."""
    policy = build_eviction("hit_density")
    for i in range(1_000):
        policy.on_hit(Facts(float(i), 2, 0, FINAL, 1e6, 1e3, 0.0, 100), i + 5.0)
        policy.on_evict(Facts(float(i), 0, 0, FINAL, 1e6, 1e3, 0.0, 100), i + 20.0)
    scores = policy.score(columns(hits=[2, 0, 0], accessed=[199.0] * 3), 200.0)
    assert scores[0] > scores[1] > -1


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_case_063_the_score_rises_with_each_good_input(eviction: str) -> None:
    """Random pairs of nodes: one at least as good in every way never goes before the other."""
    policy = build_eviction(eviction)
    rng = np.random.default_rng(63)
    for _ in range(300):
        hits, flops, size = rng.integers(0, 4), rng.uniform(1e5, 1e8), rng.uniform(1e2, 1e5)
        accessed = rng.uniform(0.0, 200.0)
        better = (hits + rng.integers(0, 3), flops * rng.uniform(1, 3), size / rng.uniform(1, 3))
        later = rng.uniform(accessed, 200.0)
        nodes = columns(
            hits=[hits, better[0], better[0]],
            flops_saved=[flops, better[1], better[1]],
            bytes_freed=[size, better[2], better[2]],
            accessed=[accessed, later, later],
            path_accessed=[accessed, later, later],
        )
        scores = policy.score(nodes, 200.0)
        assert scores[0] <= scores[1] == scores[2]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eviction", EVICTIONS)
def test_case_063_the_cache_takes_the_lowest_score(kind: str, eviction: str) -> None:
    """Three entries of one size through the cache itself: the one used least and longest ago goes."""
    serving = Serving(
        KINDS[kind], blocks=0 if kind == "recurrent" else 8, slots=5, memory="split", eviction=eviction,
        admission="final_only",
    )  # fmt: skip
    stats = serving.cache.stats
    for i in range(3):
        serving.serve(text(32, i))
        serving.now += 5.0
    for i, times in ((2, 1), (1, 3), (0, 6)):
        for _ in range(times):
            serving.end(serving.begin(joined(text(32, i), text(1, 9))), keep=0)
            serving.now += 5.0
    while not stats.evictions:
        serving.serve(text(16, 50 + stats.requests))
    kept = [serving.look(joined(text(32, i), text(1, 9))).matched for i in range(3)]
    if eviction in ("lru", "block_lru", "lfu", "gdsf"):
        assert kept[0] == kept[1] == 32
        assert kept[2] < 32 or stats.evictions == 1
    assert kept[0] == 32, "the entry used most and last is the last to go"


@pytest.mark.parametrize("eviction", EVICTIONS)
@pytest.mark.parametrize(("tenants", "memory"), [(1, "split"), (4, "unified")])
def test_case_069_every_policy_frees_space_and_survives_a_failure(
    eviction: str, tenants: int, memory: str
) -> None:
    """Filled past the mark twice; then every score fails: logged, counted, and eviction goes on."""
    policy = build_eviction(eviction)
    serving = Serving(blocks=24, slots=6, eviction=policy, memory=memory)
    stats = serving.cache.stats

    def fill(requests: int) -> None:
        before = stats.evictions
        for i in range(requests):
            serving.serve(text(40, stats.requests), namespace=NAMESPACE._replace(salt=str(i % tenants)))
            serving.now += 1.0
        assert stats.evictions >= before + requests // 2
        serving.check_idle()

    fill(16)
    fill(16)

    def fail(*_: object) -> NDArray[np.float64]:
        raise ZeroDivisionError("injected")

    for name in ("score", "on_hit", "on_evict"):
        setattr(policy, name, fail)
    fill(6)
    assert serving.cache.store.evictor.num_policy_errors >= 3
    serving.serve(text(40, 7))
    assert serving.serve(joined(text(40, 7), text(1, 8))).hit == 40


@pytest.mark.parametrize("scores", [np.zeros(2), np.full(3, np.nan), np.zeros((3, 2))])
def test_case_069_an_unusable_policy_is_refused_at_start(scores: NDArray[np.float64]) -> None:
    """One that cannot score new nodes never gets a cache."""

    class Broken(Lru):
        def score(self, columns: Columns, now: float) -> NDArray[np.float64]:
            return scores

    with pytest.raises(ValueError, match="cannot score new nodes"):
        Serving(eviction=Broken())
    with pytest.raises(ValueError, match="unknown; choose one of"):
        build_eviction("mru")


@pytest.mark.parametrize(("kind", "memory"), [("hybrid", "unified"), ("recurrent", "split")])
@pytest.mark.parametrize("eviction", EVICTIONS)
def test_case_060_one_document_cannot_take_the_state_pool(kind: str, memory: str, eviction: str) -> None:
    """16 slots, ten short prefixes, then 8,000 tokens in steps of 64 with a checkpoint wanted each."""
    blocks = 0 if kind == "recurrent" else 600
    serving = Serving(
        KINDS[kind], blocks=blocks, slots=16, memory="split", eviction=eviction,
        admission=build_admission("every_n", n=64),
    )  # fmt: skip
    if memory == "unified":
        serving = Serving(
            toy(0 if kind == "recurrent" else 1, 40_000), blocks=blocks, slots=16, eviction=eviction,
            admission=build_admission("every_n", n=64),
        )  # fmt: skip
    for i in range(10):
        serving.serve(text(40, i))
        serving.now += 1.0
    document = text(8_000, 99)
    lease = serving.begin(document)
    assert serving.prefill(lease, chunk=64)
    held = [node.stop for node in lease.interval_nodes if node.slot is not None]
    assert 1 <= len(held) <= 4
    assert held[-1] == 8_000 // 64 * 64
    serving.end(lease)
    serving.check_idle()
    assert [serving.look(joined(text(40, i), text(1, 98))).hit for i in range(10)] == [40] * 10
    assert serving.look(joined(document, text(1, 98))).hit == 8_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("admission", sorted({*ADMISSIONS} - {"final_only"}))
def test_case_061_a_checkpoint_lands_where_prompts_part(kind: str, admission: str) -> None:
    """1,500 shared and 700 own tokens: from the third request on, the shared part is hit."""
    policy = build_admission(admission, **({"n": 528} if admission == "every_n" else {}))
    serving = Serving(KINDS[kind], admission=policy)
    leases = [serving.serve(joined(text(1_500), text(700, 1 + i))) for i in range(8)]
    deepest = {"every_n": 1_056, "all_blocks": 1_488}.get(admission, 1_500)
    if kind == "attention":
        deepest = 1_500
    assert [lease.hit for lease in leases[2:]] == [deepest] * 6
    assert leases[1].matched == 1_500
    assert leases[1].lost.get("no_checkpoint", 0) == 1_500 - leases[1].hit
    if kind != "attention" and admission.startswith("branch"):
        assert leases[1].hit == 0
    serving.check_idle()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("admission", ADMISSIONS)
def test_case_072_short_prompts_hit_from_the_second_turn(kind: str, admission: str) -> None:
    """A chat of 30 tokens that grows by 20 a turn: no smallest size, whatever the policy."""
    serving = Serving(KINDS[kind], admission=admission)
    history = text(30)
    for turn in range(15):
        answer = text(5, 100 + turn)
        lease = serving.serve(history, answer)
        assert len(history) - lease.hit <= (30 if turn == 0 else 1 + 15)
        history = joined(history, answer, text(15, 200 + turn))
    serving.check_idle()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eviction", ["lru", "age_density"])
def test_case_073_thinking_that_the_next_turn_drops(kind: str, eviction: str) -> None:
    """Ten turns, each answer behind 500 tokens of thinking that the next prompt omits."""
    serving = Serving(KINDS[kind], eviction=eviction)
    history = text(60)
    before = 0
    for turn in range(10):
        thinking, answer = text(500, 100 + turn), text(20, 200 + turn)
        lease = serving.serve(history, joined(thinking, answer), turn_end=len(history))
        assert lease.hit >= before - 1
        before = len(history)
        history = joined(history, answer, text(20, 300 + turn))
        serving.now += 10.0
    serving.check_idle()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eviction", ["lru", "block_lru", "lfu"])
def test_case_073_dropped_thinking_is_the_first_to_go(kind: str, eviction: str) -> None:
    """Room for the chat and two turns of thinking, not for ten: the chat still hits in every turn."""
    blocks = 0 if kind == "recurrent" else 2 * 33 + 40
    serving = Serving(KINDS[kind], blocks=blocks, slots=14, eviction=eviction, memory="split")
    history = text(60)
    before = 0
    for turn in range(10):
        thinking, answer = text(500, 100 + turn), text(20, 200 + turn)
        lease = serving.serve(history, joined(thinking, answer), turn_end=len(history))
        assert lease.hit >= before - 1
        before = len(history)
        history = joined(history, answer, text(20, 300 + turn))
        serving.now += 10.0
    serving.check_idle()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("admission", ADMISSIONS)
@pytest.mark.parametrize("block_size", [7, 16, 64])
def test_case_098_no_combination_is_a_silent_no_op(
    kind: str, memory: str, admission: str, block_size: int
) -> None:
    """1,700 tokens sent again hit by the third time, a longer one at once; ``final_only`` says no to one."""
    serving = Serving(
        KINDS[kind], blocks=0 if kind == "recurrent" else 3_600 // block_size, slots=24, memory=memory,
        admission=admission, block_size=block_size,
    )  # fmt: skip
    prompt = text(1_700)
    hits = [serving.serve(prompt).hit for _ in range(3)]
    assert hits[0] == 0
    if kind == "attention":
        assert hits[1:] == [1_699, 1_699]
    elif admission == "final_only":
        # Documented: it keeps the ends of requests only, so a prompt sent again finds none before its end.
        assert hits[1:] == [0, 0]
    else:
        assert hits[2] >= 850
    assert serving.serve(joined(prompt, text(9, 1))).hit == 1_700
    serving.check_idle()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block_size", [16, 64])
@pytest.mark.parametrize("interval", [48, 64])
def test_case_108_the_smallest_cacheable_prefix(kind: str, block_size: int, interval: int) -> None:
    """Shared prefixes of 1, B - 1, B, B + 1, C - 1, C and C + 1 tokens, four requests each."""
    edges = [1, block_size - 1, block_size, block_size + 1, interval - 1, interval, interval + 1]
    for shared in sorted(set(edges)):
        for admission in (build_admission("branch_and_final"), build_admission("every_n", n=interval)):
            serving = Serving(KINDS[kind], block_size=block_size, admission=admission)
            leases = [serving.serve(joined(text(shared), text(100, 1 + i))) for i in range(4)]
            branch = kind == "attention" or admission.name == "branch_and_final"
            usable = shared if branch else shared // interval * interval
            assert [lease.hit for lease in leases[2:]] == [usable] * 2
            assert leases[3].lost.get("no_checkpoint", 0) == shared - usable, "and a counter says why"


def test_case_108_a_block_size_has_no_say_in_the_plan() -> None:
    """A branch point is a token, not a block boundary; intervals are counted in tokens."""
    for block_size in (1, 16, 64):
        facts = PromptFacts(200, 0, 37, True, None, block_size)
        assert [p.position for p in build_admission("branch_and_final").plan(facts)] == [37]
        assert [p.position for p in build_admission("every_n", n=50).plan(facts)] == [50, 100, 150, 200]
