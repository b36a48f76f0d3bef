"""Copied parts, the log of prompts, JSON in other orders, prices."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest
import yaml

from hybridcache.copied import Copied, copied_parts, in_order
from hybridcache.experiments.explain_command import read_conf
from hybridcache.experiments.trace_command import CONF
from hybridcache.json_order import are_tools, difference, json_values
from hybridcache.namespace import Namespace
from hybridcache.prices import Prices
from hybridcache.prompt_log import PromptLog, PromptRecord
from hybridcache.tokens import as_token_ids


def record(tokens: list[int], salt: str = "") -> PromptRecord:
    return PromptRecord(Namespace(salt=salt), as_token_ids(tokens), [], 0, 0, {})


def test_copied_parts_of_texts_known_by_heart() -> None:
    a, b, c = list(range(10, 20)), list(range(30, 45)), list(range(50, 56))
    parts = copied_parts([1, *b, 2, 3, *a, *c], [9, *a, 8, *b, *c], 1)
    assert parts == [Copied(1, 12, 15), Copied(18, 1, 10), Copied(28, 27, 6)]
    assert in_order(parts) == [parts[0], parts[2]]  # 15 + 6 tokens weigh more than 10 + 6
    assert copied_parts([1, 2, 3], [1, 2, 3], 0) == []  # shorter than a shingle
    assert in_order([]) == []


def test_copied_parts_agree_with_the_other_text() -> None:
    rng = Random(3)
    for _ in range(50):
        other = [rng.randrange(30) for _ in range(120)]
        cuts = sorted(rng.sample(range(120), 4))
        pieces = [other[a:b] for a, b in zip([0, *cuts], [*cuts, 120], strict=True)]
        rng.shuffle(pieces)
        tokens = [token for piece in pieces for token in piece]
        parts = copied_parts(tokens, other, 0)
        for part in parts:
            assert tokens[part.start : part.stop] == other[part.source : part.source_stop]
        assert all(a.stop <= b.start for a, b in pairwise(parts))
        assert sum(part.length for part in parts) >= 0.8 * len(tokens)


def test_the_nearest_prompt_shares_most_wherever_it_stands() -> None:
    rng = np.random.default_rng(0)
    text, strangers = rng.integers(0, 4000, 300).tolist(), rng.integers(0, 4000, (50, 300)).tolist()
    log = PromptLog()
    for stranger in strangers[:25]:
        log.add(record(stranger))
    shifted, shorter = record([7, 8, *text]), record(text[:100])
    for one in (shifted, shorter, *map(record, strangers[25:])):
        log.add(one)
    assert log.nearest(as_token_ids([1, 2, 3, *text]), Namespace()) == [shifted, shorter]
    assert log.nearest(as_token_ids(text), Namespace(salt="other")) == []
    assert log.nearest(as_token_ids([1, 2, 3]), Namespace()) == []


def test_the_log_is_bounded_and_forgets_whole_prompts() -> None:
    rng = np.random.default_rng(1)
    log = PromptLog(most_prompts=10, most_tokens=1_500)
    texts = rng.integers(0, 4000, (40, 200)).tolist()
    for text in texts:
        log.add(record(text))
    assert len(log) == 7  # 1,400 tokens
    assert [one.tokens.tolist() for one in log.records] == texts[-7:]
    assert not log.nearest(as_token_ids(texts[0]), Namespace())
    assert log.nearest(as_token_ids(texts[-1]), Namespace())
    assert {number for numbers in log._by_shingle.values() for number in numbers} == set(range(33, 40))
    log.add(record(rng.integers(0, 4000, 5_000).tolist()))  # alone larger than the limit
    assert len(log) == 1


@pytest.mark.parametrize(
    ("mine", "theirs", "how"),
    [
        ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}', "keys"),
        ('x {"a": 1, "b": {"c": 1, "d": 2}} y', '{"a": 1, "b": {"d": 2, "c": 1}}', "keys"),
        ('{"a": 1, "b": 2}', '{"a": 1, "b": 2}', None),
        ('{"a": 1, "b": 2}', '{"b": 2, "a": 3}', None),
        ('[{"a": 1}, {"b": 2}]', '[{"b": 2}, {"a": 1}]', "order"),
        ('{"a": 1, "b": 2}\n{"c": 1, "d": 2}', '{"c": 1, "d": 2}\n{"a": 1, "b": 2}', "order"),
        ('[{"a": 1}, {"b": 2}, {"c": 3}]', '[{"a": 1}, {"c": 3}]', "members"),
        ('[{"a": 1}]', '[{"b": 2}]', None),
        ("no JSON { here", "[", None),
        ("[" * 5_000, "{" * 5_000, None),
    ],
)
def test_json_in_another_order(mine: str, theirs: str, how: str | None) -> None:
    assert difference(json_values(mine), json_values(theirs)) == how


def test_tools_are_told_from_records() -> None:
    schema = {"name": "f", "parameters": {"x": {"type": "string"}}}
    assert are_tools([schema, {"x": {"type": "string"}, "y": {"type": "integer"}}])
    assert not are_tools([{"name": "Ada", "city": "Rome"}])


def test_price_files_and_what_a_miss_costs() -> None:
    files = sorted(file.stem for file in (CONF / "prices").glob("*.yaml"))
    assert len(files) >= 4
    for name in files:
        prices = Prices.from_config(read_conf("prices", name))
        assert prices.name == name
        assert prices.cache_read <= prices.input <= prices.cache_write
    prices = Prices.from_config(read_conf("prices", "claude_sonnet_4"))
    assert prices.of_missed(1_000_000, 1.0) == pytest.approx(3.75 - 0.30)
    machine = Prices.from_config(read_conf("prices", "own_h100"))
    assert machine.of_missed(1_000_000, 3600.0) == pytest.approx(2.50, rel=0.01)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("input", -1, "input=-1; give a number, at least 0"),
        ("cache_read", "free", "cache_read='free'"),
        ("ttl_seconds", 0, "ttl_seconds=0; give seconds above 0"),
        ("least_tokens", 1.5, "least_tokens=1.5; give a whole number"),
        ("discount", 1, "unknown key discount; the keys are cache_read"),
        ("ttl_seconds", "5m", "ttl_seconds='5m'; give seconds above 0, or null"),
    ],
)
def test_bad_prices_name_the_key(key: str, value: object, problem: str) -> None:
    config = yaml.safe_load((CONF / "prices" / "gpt_5.yaml").read_text())
    with pytest.raises(ValueError, match=problem):
        Prices.from_config({**config, key: value})
