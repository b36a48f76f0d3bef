"""Namespaces are compared whole, and their keys are canonical."""

from itertools import combinations

from hybridcache.namespace import Namespace

ALL = [
    Namespace(),
    Namespace(model="a"),
    Namespace(adapter="a"),
    Namespace(salt="a"),
    Namespace("a", "b", "c"),
    Namespace("ab", "", "c"),
    Namespace("", "ab", "c"),
    Namespace("a", "bc", ""),
    Namespace(salt="\x00"),
    Namespace(salt="ä"),
]


def test_different_namespaces_have_different_keys_and_seeds() -> None:
    for one, other in combinations(ALL, 2):
        assert one != other
        assert one.key() != other.key()
        assert one.seed(0) != other.seed(0)


def test_epochs_have_different_seeds() -> None:
    assert len({Namespace("a").seed(epoch) for epoch in range(100)}) == 100


def test_keys_are_the_same_everywhere() -> None:
    assert Namespace("m", "a", "s").key() == Namespace("m", "a", "s").key()
    assert (
        Namespace("m", "a", "s").key().hex()
        == "ef4afbaeec350a7db14596d58b11590e584023e50fa02ef7e2ad65a59621b318"
    )
