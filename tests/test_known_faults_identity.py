"""Known faults of identity: salts, adapters, models, token ids, keys that leave the process, two caches."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hybridcache.lease import Lease, Wait
from hybridcache.namespace import Namespace
from hybridcache.node import NO_IDS
from hybridcache.prefix_hash import PrefixHash
from hybridcache.spec import ModelSpec
from hybridcache.tokens import as_token_ids
from hybridcache.tree import RadixTree
from tests.serving import KINDS, Serving, ToyLayer, joined, text

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("field", ["salt", "adapter", "model"])
def test_case_024_054_the_salt_the_adapter_and_the_model_reach_every_key(kind: str, field: str) -> None:
    """One prompt of 300 tokens for none, 'a', 'b', 'a' again; the control without a salt hits."""
    serving = Serving(KINDS[kind])
    prompt, longer = text(300), joined(text(300), text(9, 1))
    base = Namespace("m")
    spaces = [base, base._replace(**{field: "a"}), base._replace(**{field: "b"})]
    for space in spaces:
        assert serving.look(longer, space) == (0, 0)
        lease = serving.serve(prompt, namespace=space)
        assert (lease.hit, lease.lost) == (0, {"new": 300})
    assert serving.serve(longer, namespace=spaces[1]).hit == 300
    assert serving.serve(longer, namespace=spaces[0]).hit == 300
    serving.check_idle()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("field", ["salt", "adapter", "model"])
def test_case_024_054_nor_do_waits_and_the_ghost_cross(kind: str, field: str) -> None:
    """Nobody waits for another tenant's request, and no loss says what another tenant had cached."""
    serving = Serving(KINDS[kind], blocks=12, slots=4)
    mine, other = Namespace("m", "x", "x"), Namespace("m", "x", "x")._replace(**{field: "y"})
    first = serving.begin(text(100), mine)
    alone = serving.acquire(text(100), other)
    assert isinstance(alone, Lease)
    serving.cache.drop(alone, 0.0)
    wait = serving.acquire(text(100), mine)
    assert isinstance(wait, Wait), "the control: one's own sibling"
    assert serving.prefill(first)
    serving.end(first)
    serving.cache.drop(serving.begin(text(1, 9), other), 0.0)
    for i in range(8):
        serving.now += 1.0
        serving.serve(text(180, 1 + i), namespace=mine)
    assert serving.look(text(100), mine) == (0, 0)
    theirs, ours = serving.begin(text(100), other), serving.begin(text(100), mine)
    assert theirs.lost == {"new": 100}
    assert "kv_evicted" in ours.lost, "the control: one's own eviction is known"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Namespace("m", "", "ab"), Namespace("m", "a", "b")),
        (Namespace("m", "a", ""), Namespace("m", "", "a")),
        (Namespace("ma", "", ""), Namespace("m", "a", "")),
        (Namespace("m", "", ""), Namespace("m", "", " ")),
        (Namespace("m", "", "a"), Namespace("m", "", "a ")),
        (Namespace("m", "", "a" * 10_000), Namespace("m", "", "a" * 10_001)),
        (Namespace("m", "a\0b", ""), Namespace("m", "a", "b")),
        (Namespace("m", "", "\u00e9"), Namespace("m", "", "e\u0301")),
    ],
)
def test_case_045_no_two_names_join_to_one_key(one: Namespace, other: Namespace) -> None:
    """'ab' + 'c' and 'a' + 'bc': fields are kept apart in the key, and in the tree."""
    assert one.key() != other.key()
    assert one.seed(0) != other.seed(0)
    assert one.seed(0) != one.seed(1)
    serving = Serving()
    serving.serve(text(50), namespace=one)
    assert serving.look(joined(text(50), text(1, 1)), other) == (0, 0)
    assert serving.look(joined(text(50), text(1, 1)), one).hit == 50


def test_case_053_other_weights_are_another_model() -> None:
    """The fingerprint follows every number of the geometry, and nothing crosses it."""
    specs = [
        ModelSpec("toy", (ToyLayer(kv=kv), ToyLayer(state=(64,), dtype=dtype)), d_model=8, vocab_size=16)
        for kv in (1, 2)
        for dtype in ("int8", "float32")
    ]
    assert len({spec.fingerprint for spec in specs}) == 4
    serving = Serving(specs[0])
    spaces = [Namespace(spec.fingerprint) for spec in specs]
    assert [serving.serve(text(50), namespace=space).hit for space in spaces] == [0] * 4
    assert [serving.serve(text(50), namespace=space).hit for space in spaces] == [49] * 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [0, 15, 16, 39])
def test_case_056_token_ids_are_whole(kind: str, place: int) -> None:
    """Prompts that differ in one token by 256, 65,536 and 2^31; the lowest and the highest id."""
    serving = Serving(KINDS[kind])
    prompt = np.full(40, 7, dtype=np.uint32)
    serving.serve(prompt)
    for other in (7 + 256, 7 + 65_536, 7 + 2**31, 0, 2**32 - 1):
        changed = prompt.copy()
        changed[place] = other
        assert serving.look(joined(changed, text(1))).matched == place
        lease = serving.serve(changed)
        assert lease.matched == place
        assert serving.look(joined(changed, text(1, 1))).hit == 40
        serving.check_idle()
    assert serving.look(joined(prompt, text(1))).hit == 40


def test_case_056_short_prompts_and_digests() -> None:
    """[1, 23] and [12, 3]; nothing and [0]; the ghost's hashes take every bit of an id."""
    serving = Serving()
    serving.serve(as_token_ids([1, 23]))
    assert serving.look(as_token_ids([12, 3, 1])).matched == 0
    assert serving.look(as_token_ids([1, 23, 1])).hit == 2
    serving.serve(as_token_ids([0]))
    assert serving.look(as_token_ids([])) == (0, 0)
    ids = [0, 7, 7 + 256, 7 + 65_536, 7 + 2**31, 2**32 - 1]
    digests = {PrefixHash(as_token_ids([1, i]).tobytes()).intdigest() for i in ids}
    assert len(digests) == len(ids)


@pytest.mark.parametrize("tokens", [[-1], [2**32], [1.5], [[1, 2]], ["7"]])
def test_case_056_what_is_no_token_id_is_refused(tokens: list[object]) -> None:
    """Never wrapped around, never cut off."""
    with pytest.raises(ValueError, match="token id"):
        as_token_ids(tokens)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="token id"):
        Serving().cache.acquire(tokens, Namespace(), 0.0)  # type: ignore[arg-type]


def test_case_102_keys_are_the_same_in_every_process() -> None:
    """Namespace key, fingerprint and prefix hash under two PYTHONHASHSEEDs; and against fixed values."""
    code = (
        "import json, numpy as np\n"
        "from hybridcache.namespace import Namespace\n"
        "from hybridcache.prefix_hash import PrefixHash\n"
        "from hybridcache.spec import ModelSpec\n"
        "from hybridcache.attention_layer import Attention\n"
        "space = Namespace('m', 'adapter', 'salt')\n"
        "spec = ModelSpec('m', (Attention(8, 2, 1, 4),), 8, 16)\n"
        "tokens = np.arange(5000, dtype=np.uint32).tobytes()\n"
        "digest = PrefixHash(space.seed(0) + tokens).intdigest()\n"
        "print(json.dumps([space.key().hex(), spec.fingerprint, digest]))\n"
    )
    said = []
    for seed in ("0", "12345"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        said.append(json.loads(done.stdout))
    assert said[0] == said[1]
    key, fingerprint, digest = said[0]
    assert key == Namespace("m", "adapter", "salt").key().hex()
    assert len(key) == len(fingerprint) == 64
    assert 0 < digest < 2**128


@pytest.mark.parametrize("eviction", ["lru", "gdsf", "hit_density"])
def test_case_064_caches_of_one_process_share_nothing(eviction: str) -> None:
    """Two with different settings run in turn, one goes, a third is made: each equals one that ran alone."""

    def run(budget: int, others: list[Serving]) -> tuple[object, list[int]]:
        serving = Serving(blocks=budget, slots=6, eviction=eviction)
        hits = []
        for i in range(30):
            prompt = joined(text(30, i % 4), text(10 + i % 5, 100 + i % 3))
            hits.append(serving.serve(prompt, text(3, 9)).hit)
            serving.now += 1.0
            for other in others:
                other.serve(text(20 + i, i % 3), text(5, 8))
                other.now += 2.0
        serving.check_idle()
        stats = serving.cache.stats
        return [getattr(stats, name) for name in stats.__slots__], hits

    alone = {budget: run(budget, []) for budget in (30, 50)}
    assert alone[30] != alone[50]
    assert any(alone[30][1])
    neighbour = Serving(blocks=12, slots=4, eviction=eviction)
    assert run(30, [neighbour]) == alone[30]
    del neighbour
    assert run(50, []) == alone[50]
    assert run(30, [Serving(KINDS["attention"], eviction=eviction)]) == alone[30]


def test_case_056_edges_start_with_whole_ids() -> None:
    """Children are told apart by all bits of their first token."""
    tree = RadixTree(0, recurrent=False)
    root = tree.root(Namespace())
    for first in (7, 7 + 256, 7 + 65_536, 7 + 2**31):
        tree.append(root, as_token_ids([first, 1]).tobytes(), NO_IDS)
    assert sorted(root.children) == [7, 7 + 256, 7 + 65_536, 7 + 2**31]
