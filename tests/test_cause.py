"""Causes of broken prefixes: on templates the rules were tuned on, on those held back, on good prompts."""

import json
from collections import Counter
from random import Random

import pytest

from hybridcache.cause import REMEDIES, Kind, find_cause
from hybridcache.divergence import Divergence
from hybridcache.namespace import Namespace
from hybridcache.prompt_log import PromptLog, PromptRecord
from hybridcache.tokens import as_token_ids
from tests.broken_templates import BROKEN, Case, cases, held_back
from tests.explained import cause_of, chat, decode
from tests.good_prompts import streams
from tests.prompt_texts import Said, instructions, question, talk, tools


def found(case: Case) -> str | None:
    """The kind that is named, with other traffic in between."""
    log = PromptLog()
    for stream in streams(2, seed=len(case.variant)):
        for prompt in stream:
            log.add(chat(prompt))
    log.add(chat(case.earlier))
    cause = cause_of(chat(case.later), log)
    return None if cause is None else str(cause.kind)


@pytest.mark.parametrize("kind", BROKEN)
def test_templates_that_the_rules_were_tuned_on(kind: str) -> None:
    mine = [case for case in cases(held=False, seeds=1) if case.kind == kind]
    assert len(mine) >= 3
    assert {case.variant: found(case) for case in mine} == {case.variant: kind for case in mine}


def test_templates_that_were_held_back() -> None:
    mine = cases(held=True, seeds=1)
    assert all(len(held_back(kind)) >= 2 for kind in BROKEN)
    right = Counter(case.kind for case in mine if found(case) == case.kind)
    wrong = Counter(case.kind for case in mine) - right
    # One of 126 (three seeds) was not named when they were looked at for the first time.
    assert wrong.total() <= 1, wrong


def test_false_alarms_on_two_hundred_good_prompts() -> None:
    log = PromptLog()
    alarms, count = [], 0
    for stream in streams(50, seed=11):
        for prompt in stream:
            record = chat(prompt)
            alarms.append(cause_of(record, log))
            log.add(record)
            count += 1
    assert count == 200
    assert sum(cause is not None for cause in alarms) <= 2, alarms


def test_each_kind_has_a_remedy() -> None:
    assert set(REMEDIES) == set(Kind)
    assert set(BROKEN) | {"retokenised"} == {str(kind) for kind in Kind}


def test_what_is_shown_and_counted() -> None:
    text = instructions(Random(5))
    log = PromptLog()
    log.add(chat([Said("system", f"Now: 2026-01-02 03:04:05. {text}"), Said("user", "A?")]))
    record = chat([Said("system", f"Now: 2026-07-28 13:14:15. {text}"), Said("user", "B?")])
    cause = cause_of(record, log)
    assert cause is not None
    assert "2026-01-02" in cause.before
    assert "2026-07-28" in cause.after
    # All of the instructions, and neither the date nor the question.
    assert len(record.tokens) - 40 < cause.avoidable_tokens < len(record.tokens) - 12


def kind_of(before: str, after: str) -> Kind | None:
    """What tells two system prompts apart."""
    log = PromptLog()
    log.add(chat([Said("system", before), Said("user", "How long does it take?")]))
    cause = cause_of(chat([Said("system", after), Said("user", "Where is the office?")]), log)
    return None if cause is None else cause.kind


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("It is 3 November 2025.", "It is 4 November 2025.", Kind.TIMESTAMP),
        ("It is November 3, 2025.", "It is November 14, 2025.", Kind.TIMESTAMP),
        ("It is the 4th of March.", "It is the 5th of March.", Kind.TIMESTAMP),
        ("This is the plan of May.", "This is the plan of June.", Kind.TIMESTAMP),
        ("Clients may call.", "Clients must call.", Kind.USER_VARIABLE),
        ("Call 7 of 30.", "Call 8 of 30.", Kind.COUNTER),
    ],
)
def test_a_date_is_told_by_what_stands_around_it(before: str, after: str, kind: Kind) -> None:
    text = instructions(Random(5))
    assert kind_of(f"{before} {text}", f"{after} {text}") == kind


@pytest.mark.parametrize("wrapped", [False, True])
def test_tools_that_come_while_others_go(wrapped: bool) -> None:
    first, *rest = tools(Random(3), 5)
    other = {**first, "name": "another", "description": "Does something else entirely."}
    now = {**first, "description": f"It is 10:15 now. {first['description']}"}
    later = {**first, "description": f"It is 11:47 now. {first['description']}"}

    def listed(tool: dict[str, object]) -> str:
        schemas = [tool, *rest]
        found = [{"type": "function", "function": one} for one in schemas] if wrapped else schemas
        return f"{json.dumps(found)} {instructions(Random(5))}"

    assert kind_of(listed(first), listed(other)) == Kind.CHANGED_TOOLS
    assert kind_of(listed(now), listed(later)) == Kind.TIMESTAMP


def test_the_same_text_in_other_tokens() -> None:
    record = chat([Said("system", instructions(Random(6))), Said("user", question(Random(7)))])
    tokens = record.tokens.tolist()
    # The same characters, spelled out byte by byte from the tenth token on.
    spelled = [chat([Said("user", character)]).tokens[1] for character in decode(tokens[10:60])]
    other = PromptRecord(
        Namespace(), as_token_ids([*tokens[:10], *spelled, *tokens[60:]]), [], 0, 0, {"new": 1}
    )
    assert decode(other.tokens.tolist()) == decode(tokens)
    cause = find_cause(Divergence(other, record, decode))
    assert cause is not None
    assert cause.kind == Kind.RETOKENISED


@pytest.mark.parametrize("dropped", [2, 6])
def test_without_text_and_messages_a_dropped_history_is_found(dropped: int) -> None:
    rng = Random(dropped)
    system, said = Said("system", instructions(rng)), talk(rng, 8)
    before, after = (
        PromptRecord(Namespace(), chat(prompt).tokens, [], 0, 0, {"new": 1})
        for prompt in ([system, *said], [system, *said[dropped:], Said("user", question(rng))])
    )
    cause = find_cause(Divergence(after, before, None))
    assert cause is not None
    assert cause.kind == Kind.TRUNCATED_HISTORY
    assert cause.before.split()[0].isdigit()  # token ids stand for text


def test_salts_do_not_see_each_other() -> None:
    text = instructions(Random(5))
    before, after = ([Said("system", f"{clock} {text}"), Said("user", "A?")] for clock in ("10:11", "12:13"))
    log = PromptLog()
    log.add(chat(before, salt="a"))
    assert cause_of(chat(after, salt="b"), log) is None
    assert cause_of(chat(after, salt="a"), log) is not None
