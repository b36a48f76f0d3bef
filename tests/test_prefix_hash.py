"""Prefix hashes: the same in every process, and the same however a prefix is cut."""

import os
import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hybridcache.namespace import Namespace
from hybridcache.prefix_hash import PrefixHash

TOKENS = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50)


def raw(tokens: list[int]) -> bytes:
    return np.array(tokens, dtype=np.uint32).tobytes()


@given(TOKENS, st.data())
def test_extending_equals_running(tokens: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(tokens)))
    start = data.draw(st.sampled_from([0, 7, 4090]))
    hash_ = PrefixHash()
    digest = (11, 2**64 - 1)
    running = hash_.running(digest, raw(tokens), start)
    assert running.shape == (2, len(tokens) + 1)
    middle = hash_.extend(digest, raw(tokens[:cut]), start)
    assert middle == tuple(running[:, cut].tolist())
    assert hash_.extend(middle, raw(tokens[cut:]), start + cut) == tuple(running[:, -1].tolist())


@given(TOKENS, st.data())
def test_another_token_gives_another_digest(tokens: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(tokens) - 1))
    other = [*tokens]
    other[at] = data.draw(st.integers(0, 2**32 - 1).filter(lambda token: token != tokens[at]))
    hash_ = PrefixHash()
    assert hash_.extend((0, 0), raw(tokens), 0) != hash_.extend((0, 0), raw(other), 0)


def test_order_matters() -> None:
    hash_ = PrefixHash()
    assert hash_.extend((0, 0), raw([1, 2]), 0) != hash_.extend((0, 0), raw([2, 1]), 0)


def test_weights_do_not_depend_on_what_was_asked_first() -> None:
    tokens = raw(list(range(10_000)))
    fresh, grown = PrefixHash(), PrefixHash()
    grown.extend((0, 0), raw([5]), 4096)
    grown.extend((0, 0), raw([5]), 100_000)
    assert fresh.extend((0, 0), tokens, 0) == grown.extend((0, 0), tokens, 0)


def test_the_same_in_every_process() -> None:
    program = (
        "import numpy as np\n"
        "from hybridcache.namespace import Namespace\n"
        "from hybridcache.prefix_hash import PrefixHash\n"
        "start = Namespace('m', 'a', 's').digest(3)\n"
        "print(PrefixHash().extend(start, np.arange(5000, dtype=np.uint32).tobytes(), 0))\n"
    )
    here = PrefixHash().extend(Namespace("m", "a", "s").digest(3), raw(list(range(5000))), 0)
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert run.stdout.strip() == str(here)
