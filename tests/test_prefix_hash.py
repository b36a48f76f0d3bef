"""Prefix hashes: the same in every process, and the same however a prefix is cut."""

import os
import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hybridcache.namespace import Namespace
from hybridcache.prefix_hash import PrefixHash, extended

TOKENS = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=300)


def raw(tokens: list[int]) -> bytes:
    return np.array(tokens, dtype=np.uint32).tobytes()


@given(TOKENS, st.data())
def test_cuts_leave_no_trace(tokens: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(tokens)))
    start = PrefixHash(Namespace().seed(0))
    before = start.intdigest()
    whole = extended(start, raw(tokens)).intdigest()
    middle = extended(start, raw(tokens[:cut]))
    assert extended(middle, raw(tokens[cut:])).intdigest() == whole
    middle.update(raw(tokens[cut:]))
    assert middle.intdigest() == whole
    assert start.intdigest() == before, "what was extended stays as it was"


@given(TOKENS, st.data())
def test_another_token_gives_another_digest(tokens: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(tokens) - 1))
    other = [*tokens]
    other[at] = data.draw(st.integers(0, 2**32 - 1).filter(lambda token: token != tokens[at]))
    assert PrefixHash(raw(tokens)).intdigest() != PrefixHash(raw(other)).intdigest()


def test_order_matters() -> None:
    assert PrefixHash(raw([1, 2])).intdigest() != PrefixHash(raw([2, 1])).intdigest()


def test_the_same_in_every_process() -> None:
    program = (
        "import numpy as np\n"
        "from hybridcache.namespace import Namespace\n"
        "from hybridcache.prefix_hash import PrefixHash, extended\n"
        "start = PrefixHash(Namespace('m', 'a', 's').seed(3))\n"
        "print(extended(start, np.arange(5000, dtype=np.uint32).tobytes()).intdigest())\n"
    )
    start = PrefixHash(Namespace("m", "a", "s").seed(3))
    here = extended(start, raw(list(range(5000)))).intdigest()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert run.stdout.strip() == str(here)
