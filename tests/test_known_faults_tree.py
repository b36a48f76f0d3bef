"""Known faults of prefix trees: splits, the usable boundary, depth, chains with a gap."""

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridcache.lease import Lease
from hybridcache.node import NO_IDS
from hybridcache.policies.build import build_admission
from hybridcache.policies.columns import Columns
from hybridcache.policies.eviction import EvictionPolicy
from hybridcache.prefix_cache import PrefixCache
from hybridcache.prefix_hash import PrefixHash, extended
from hybridcache.tokens import TokenIds
from hybridcache.tree import RadixTree
from tests.serving import BLOCK, EVICTIONS, KINDS, NAMESPACE, EveryBlock, Serving, joined, text

MEMORIES = ["unified", "split"]
RECURRENT = ["hybrid", "recurrent"]


class InnerFirst(EvictionPolicy):
    """Takes checkpoints that have something below them first, so that their KV stays."""

    name = "inner_first"

    def score(self, columns: Columns, now: float) -> NDArray[np.float64]:
        return np.where(columns.children > 0, 0.0, 1.0 + columns.accessed)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("block_size", [1, 16, 64])
@pytest.mark.parametrize("length", [96, 97])
def test_case_004_no_hit_where_the_checkpoint_is_gone(memory: str, block_size: int, length: int) -> None:
    """KV of 96 tokens without its checkpoint: the hit is the deepest position that has both, here none."""
    blocks = -(-(length + 32) // block_size) + 8
    prefix = text(length)
    for dropped in (False, True):
        serving = Serving(
            blocks=blocks + 30,
            slots=4,
            block_size=block_size,
            memory=memory,
            eviction=InnerFirst(),
            admission="final_only",
        )
        serving.serve(prefix)
        serving.serve(joined(prefix, text(32, 1)))
        if dropped:
            while serving.look(joined(prefix, text(1, 400))).hit:
                serving.serve(text(1, 500 + serving.cache.stats.requests))
        lease = serving.begin(joined(prefix, text(32, 2)))
        assert (lease.hit, lease.matched) == (0 if dropped else length, length)
        assert (lease.state_copy is None) == dropped, "nothing to restore: the state starts from zero"
        assert lease.lost.get("checkpoint_evicted", 0) == (length if dropped else 0)
        assert serving.prefill(lease, chunk=7)
        serving.end(lease)
        serving.check_idle()


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize(("shared", "hit"), [(300, 256), (256, 256), (255, 0), (511, 256), (512, 512)])
def test_case_013_never_a_checkpoint_beyond_the_common_prefix(kind: str, shared: int, hit: int) -> None:
    """Checkpoints at 256, 512, 768 and 1,000; prompts of 600 tokens that share less."""
    serving = Serving(KINDS[kind], admission=build_admission("every_n", n=256))
    session = text(1_000)
    serving.serve(session)
    assert serving.look(joined(session, text(1, 1))).hit == 1_000
    probe = joined(session[:shared], text(600 - shared, 1))
    lease = serving.serve(probe)
    assert lease.hit == hit
    serving.check_idle()


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize(
    ("block_size", "interval"), [(16, 64), (16, 48), (64, 64), (64, 16), (16, 24), (1, 64), (48, 100)]
)
def test_case_014_the_restored_checkpoint_is_the_one_at_the_hit(
    kind: str, block_size: int, interval: int
) -> None:
    """Block size and checkpoint interval set apart: a hit has the depth of the state that is restored."""
    for depth in (64, 100, 128, 192):
        serving = Serving(
            KINDS[kind], block_size=block_size, admission=build_admission("every_n", n=interval)
        )
        document = text(256)
        serving.serve(document)
        lease = serving.serve(joined(document[:depth], text(9, 1)))
        # The runner compares the state it restores with the tokens before the hit.
        assert lease.hit == depth // interval * interval
        serving.check_idle()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 15, 16, 17, 64])
@pytest.mark.parametrize("answer", [1, 2, 20])
def test_case_026_at_least_one_token_is_computed(kind: str, length: int, answer: int) -> None:
    """The same prompt three times, then the prompt and its answer; hits end before the last token."""
    serving = Serving(KINDS[kind])
    prompt, output = text(length), text(answer, 1)
    hits = [serving.serve(prompt, output).hit for _ in range(3)]
    assert hits == [0, length - 1, length - 1]
    full = joined(prompt, output)
    # The answer's last token was never computed: nothing there to be had.
    assert serving.serve(full).hit == length + answer - 1
    assert serving.serve(full).hit == length + answer - 1
    serving.check_idle()


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("admission", ["branch_and_final", "branch_final_prompt"])
@pytest.mark.parametrize("answer", [1, 20])
@pytest.mark.parametrize("suffix", [40, 400, 1_300])
def test_case_027_a_split_leaves_the_checkpoint_at_its_depth(
    kind: str, admission: str, answer: int, suffix: int
) -> None:
    """P, P again, P again, P + s1, P + s2: P's third time hits below its end, s2 all of P."""
    serving = Serving(KINDS[kind], admission=admission)
    prompt = text(200)
    hits = [serving.serve(prompt, text(answer, 1)).hit for _ in range(3)]
    assert hits[0] == 0
    assert hits[2] == 199
    serving.serve(joined(prompt, text(suffix, 2)))
    serving.check_idle()
    assert serving.serve(joined(prompt, text(suffix, 3))).hit == 200
    serving.check_idle()


@pytest.mark.parametrize("block_size", [0, 1, 4, 16])
def test_case_027_the_tree_itself(block_size: int) -> None:
    """A split at every position: the checkpoint, its pins and its expiry stay at their own depth."""
    for at in range(1, 40):
        tree = RadixTree(block_size, recurrent=True)
        root = tree.root(NAMESPACE)
        blocks = np.arange(-(-40 // block_size)) if block_size else NO_IDS
        node = tree.append(root, text(40).tobytes(), blocks)
        node.slot, node.slot_pins, node.pins, node.expires_at, node.slot_expires_at = 3, 1, 1, 50.0, 40.0
        upper, shared = tree.split(node, at)
        assert (upper.start, upper.stop, node.start, node.stop) == (0, at, at, 40)
        assert (upper.slot, upper.pins, upper.slot_pins, upper.expires_at) == (None, 0, 0, 50.0)
        assert (node.slot, node.pins, node.slot_pins, node.expires_at) == (3, 1, 1, 50.0)
        assert node.slot_expires_at == 40.0
        assert (shared is not None) == bool(block_size and at % block_size)
        assert tree.match(root, joined(text(40), text(1, 1)).tobytes(), 0.0).hit == 40
        assert tree.match(root, joined(text(at), text(1, 1)).tobytes(), 0.0).hit == 0


@pytest.mark.parametrize(
    ("kind", "ttl_seconds"), [("hybrid", 60.0), ("hybrid", None), ("attention", None), ("recurrent", None)]
)
def test_case_037_deep_paths_need_no_recursion(kind: str, ttl_seconds: float | None) -> None:
    """Up to 6,250 nested nodes: insert, match, split, pin, expire, audit, evict from the end, flush."""
    serving = Serving(KINDS[kind], admission="all_blocks", ttl_seconds=ttl_seconds)
    cache = serving.cache
    size = 100_000 if kind == "hybrid" and ttl_seconds is None else 20_000
    document = text(size)
    grow(cache, document, 16)
    if kind != "attention":
        assert cache.store.table.num_nodes == size // 16
    known = cache.match_prefix(joined(document, text(1, 1)), NAMESPACE, 1.0)
    assert known == (size, size)
    branch = cache.acquire(joined(document[:10_007], text(9, 1)), NAMESPACE, 1.0)
    assert isinstance(branch, Lease) and branch.hit == (10_007 if kind == "attention" else 10_000)
    cache.finish(branch, 0, 1.0)
    cache.check()
    deepest = max(filter(None, cache.store.table.nodes), key=lambda node: node.stop)
    whole = extended(PrefixHash(NAMESPACE.seed(0)), document.tobytes())
    assert cache.store.tree.prefix_hash(deepest).intdigest() == whole.intdigest()
    if ttl_seconds is None:
        cache.flush()
    else:
        late = cache.acquire(text(5, 2), NAMESPACE, 2.0 + ttl_seconds)
        assert isinstance(late, Lease)
        cache.drop(late, 2.0 + ttl_seconds)
    assert cache.store.table.num_nodes == cache.usage().budget - cache.usage().free == 0
    cache.check()


@pytest.mark.parametrize("eviction", ["lru", "block_lru", "hit_density"])
def test_case_037_evicting_a_deep_path(eviction: str) -> None:
    """1,100 nested nodes go one by one when their bytes are wanted."""
    serving = Serving(
        blocks=1_100, slots=1_102, eviction=eviction, admission=EveryBlock(), memory="split", block_size=4
    )
    cache = serving.cache
    grow(cache, text(4_400), 4)
    assert cache.store.table.num_nodes == 1_100
    lease = cache.acquire(text(4_400, 1), NAMESPACE, 1.0)
    assert isinstance(lease, Lease) and cache.reserve(lease, 4_400, 1.0)
    assert serving.look(text(4_400)).matched == 0
    cache.drop(lease, 1.0)
    cache.check()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eviction", EVICTIONS)
@pytest.mark.parametrize("edge", [16, 13])
def test_case_058_the_hit_ends_at_the_first_gap(kind: str, eviction: str, edge: int) -> None:
    """A chain of three parts loses one thing after another: what is claimed is there, token by token."""
    admission = EveryBlock() if edge == BLOCK else "branch_and_final"
    serving = Serving(KINDS[kind], eviction=eviction, admission=admission)
    cache, chain = serving.cache, text(3 * edge)
    for parts in (1, 2, 3):
        serving.serve(chain[: parts * edge])
        serving.now += 1.0
    for parts in (1, 2):
        serving.serve(joined(chain[: parts * edge - 2], text(9, parts)))
        serving.now += 1.0
    serving.check_idle()
    shrinking = []
    while cache.usage().evictable:
        cache.store.refresh()
        victim = cache.store.evictor.next(serving.now, False, False)
        assert victim is not None
        cache._reclaimer.evict(victim, serving.now)
        serving.check_idle()
        known = serving.look(chain)
        shrinking.append(known.hit)
        # The runner compares all KV before the hit, and the state there, with the prompt's tokens.
        lease = serving.begin(chain)
        assert lease.hit == known.hit
        assert cache.reserve(lease, 3 * edge - lease.hit, serving.now)
        serving.forward(lease, chain[lease.hit :])
        cache.drop(lease, serving.now)
    assert shrinking[-1] == 0
    assert len(set(shrinking)) >= 2
    assert shrinking == sorted(shrinking, reverse=True)


def test_case_058_the_middle_checkpoint_alone() -> None:
    """Checkpoints at 16, 32, 48 of which the middle one goes: the first or the last serves."""
    for kind in RECURRENT:
        serving = Serving(KINDS[kind], admission=EveryBlock())
        serving.serve(text(48))
        store = serving.cache.store
        (middle,) = [node for node in store.table.nodes if node is not None and node.stop == 32]
        serving.cache._reclaimer.evict(middle, 0.0)
        serving.check_idle()
        for length, hit in ((17, 16), (33, 16), (40, 16), (48, 16)):
            assert serving.look(text(length)).hit == hit
        assert serving.serve(joined(text(48), text(1, 1))).hit == 48
        serving.check_idle()


def grow(cache: PrefixCache, document: TokenIds, step: int) -> None:
    """One request that computes ``document`` in steps, with every checkpoint its plan has."""
    lease = cache.acquire(document, NAMESPACE, 0.0)
    assert isinstance(lease, Lease)
    for start in range(0, len(document), step):
        assert cache.reserve(lease, step, 0.0)
        cache.computed(lease, document[start : start + step], 0.0)
        if lease.planned and lease.planned[0] == lease.num_computed:
            cache.checkpoint(lease, 0.0)
            cache.checkpointed(lease, 0.0)
    cache.finish(lease, len(document), 0.0)
