"""first_sight: what it learns from literal prompts, and what that gives in a cache."""

from typing import Any

import numpy as np
import pytest

from hybridcache.policies.admission import PromptFacts
from hybridcache.policies.build import build_admission
from hybridcache.policies.columns import BRANCH, FINAL, INTERVAL, KIND_NAMES, MESSAGE_END, PROMPT_END
from hybridcache.policies.first_sight import KEEP, MARGIN, FirstSight
from hybridcache.policies.share_table import ShareTable
from tests.serving import KINDS, Serving, joined, text

SYSTEM_END = (0, 1)
"""The cell of the first of two messages."""


def facts(num_prompt: int = 1_000, matched: int = 0, first_key: int = 0, **more: Any) -> PromptFacts:
    """Two messages, the first of 400 tokens; a prompt's own positions get keys from ``first_key`` on."""
    prompt = PromptFacts(num_prompt, 0, matched, matched > 0, None, 16, boundaries=(400, num_prompt))
    prompt = prompt._replace(**more)
    keys = (at if at <= matched else at + first_key for at in FirstSight().candidates(prompt))
    return prompt._replace(keys=tuple(keys))


def test_candidates_are_the_hit_and_the_ends_of_messages_beyond_it() -> None:
    policy = FirstSight()
    assert policy.candidates(facts()) == [0, 400, 999]
    assert policy.candidates(facts(hit=400, matched=400)) == [400, 999]
    assert policy.candidates(facts(turn_end=990, boundaries=(400, 990))) == [0, 400, 990]
    assert policy.candidates(facts(boundaries=())) == [0, 999]
    assert FirstSight(inside_tokens=300).candidates(facts()) == [0, 300, 400, 600, 900, 999]


def test_a_position_that_is_left_counts_once_whether_or_not_it_has_a_checkpoint() -> None:
    for second in (facts(matched=400, first_key=5), facts(matched=400, hit=400)):
        policy = FirstSight()
        policy.learn(facts())
        assert policy.ends.seen[SYSTEM_END] == 1 and not policy.ends.used.any()
        policy.learn(second)
        assert policy.ends.used[SYSTEM_END] == 1
        assert policy.ends.seen[SYSTEM_END] == KEEP and policy.ends.seen.sum() == 2 * KEEP + 1
        policy.learn(facts(matched=400, hit=400, first_key=9))
        assert policy.ends.used.sum() == pytest.approx(KEEP)


def test_a_position_counts_by_what_it_would_have_saved() -> None:
    policy = FirstSight()
    policy.learn(facts())
    # Another checkpoint came to lie before it: 100 of 400 tokens.
    policy.learn(facts(hit=300, matched=400))
    assert policy.ends.used[SYSTEM_END] == 0.25


def test_what_was_evicted_beyond_is_no_fault_of_the_admission() -> None:
    policy = FirstSight()
    policy.learn(facts())
    policy.learn(facts(matched=400, gone=600))
    assert not policy.ends.used.any()
    policy.learn(facts(matched=400, gone=400))
    assert policy.ends.used[SYSTEM_END] == 1


def test_the_price_decides() -> None:
    policy = FirstSight()
    policy.ends.used[SYSTEM_END], policy.ends.seen[SYSTEM_END] = 48.0, 96.0
    policy.ends.seen[1, 0] = 1e4  # the prompt's end is never used
    share = policy.ends.shares()[SYSTEM_END]
    assert share == pytest.approx(0.5, abs=0.02)
    worth = share * 400 / MARGIN
    assert [tuple(planned) for planned in policy.plan(facts(price=worth - 1))] == [(400, MESSAGE_END)]
    assert not policy.plan(facts(price=worth + 1))


def test_hints_and_branch_points_are_kept_at_any_price() -> None:
    plan = FirstSight().plan(facts(matched=500, hints=(700,), price=1e9))
    assert [tuple(planned) for planned in plan] == [(500, BRANCH), (700, BRANCH)]


def test_no_more_than_most() -> None:
    ends = tuple(range(100, 1_001, 100))
    for most in (1, 3):
        policy = FirstSight(most=most)
        assert not policy.plan(facts(boundaries=ends)), "nothing was ever used"
        policy.ends.used[0, -1], policy.ends.seen[0, -1] = 50.0, 100.0
        plan = policy.plan(facts(boundaries=ends))
        assert len(plan) == most and {planned.kind for planned in plan} <= {MESSAGE_END, PROMPT_END}


def test_a_share_leans_on_its_row_and_on_all() -> None:
    table = ShareTable(2, 2)
    assert table.shares() == pytest.approx(np.zeros((2, 2)))
    table.used[0, 0], table.seen[0, 0] = 96.0, 96.0
    shares = table.shares()
    assert shares[0, 0] > shares[0, 1] > 0.9 and shares[1, 0] == shares[1, 1] == pytest.approx(0.96)
    table.fade(0.5)
    assert (table.used[0, 0], table.seen[0, 0]) == (48.0, 48.0)


def served(serving: Serving, task: int, question: int) -> int:
    """Ask one of a task's questions; the tokens hit."""
    prompt = joined(text(400, task), text(100, 100 + 10 * task + question))
    return serving.serve(prompt, text(20, 200 + 10 * task + question), boundaries=(400, 500)).hit


@pytest.mark.parametrize(("admission", "second"), [("first_sight", 400), ("branch_and_final", 0)])
def test_the_second_question_of_a_new_task_hits_what_they_share(admission: str, second: int) -> None:
    serving = Serving(KINDS["hybrid"], admission=admission)
    for task in range(6):
        for question in range(3):
            hit = served(serving, task, question)
    assert hit == 400
    assert [served(serving, 7, question) for question in range(3)] == [0, second, 400]
    serving.check_idle()


def test_where_nothing_is_shared_it_takes_hardly_any() -> None:
    """Room for nine of twenty chats: bytes cost something, for each is gone on with later."""
    serving = Serving(KINDS["hybrid"], blocks=300, slots=18, admission="first_sight")
    taken = []
    for turn in range(12):
        for chat in range(20):
            prompt = joined(text(400, chat), text(100 + 10 * turn, 100 + chat))
            serving.serve(prompt, text(20, 200 + chat), boundaries=(400, len(prompt)))
            serving.now += 1.0
        by_reason = serving.cache.stats.admitted_by_reason
        taken.append(by_reason["message_end"] + by_reason["prompt_end"])
    assert serving.cache.stats.evictions > 100
    assert taken[-1] <= 3
    serving.check_idle()


def test_a_preempted_request_teaches_nothing_twice() -> None:
    policy = FirstSight()
    serving = Serving(KINDS["hybrid"], admission=policy)
    lease = serving.begin(text(500), boundaries=(400, 500))
    serving.cache.finish(lease, 0, 0.0)
    seen = policy.ends.seen.copy()
    lease = serving.begin(text(500), boundaries=(400, 500), first=False)
    assert (policy.ends.seen == seen).all() and seen.sum() == 2
    serving.cache.finish(lease, 0, 0.0)


def test_positions_inside_a_message_are_learnt_from_where_prompts_leave_it() -> None:
    """One message of 1,000 tokens, left at about 600 by the next prompt and at 600 + 150 by the one after."""
    policy = build_admission("first_sight", inside_tokens=100, most=1)
    serving = Serving(KINDS["hybrid"], admission=policy)
    for session in range(8):
        serving.serve(text(1_000, session), text(20, 100 + session))
        edited = joined(text(630, session), text(400, 200 + session))
        hit = serving.serve(edited, text(20, 300 + session)).hit
    assert hit == 600
    assert serving.cache.stats.admitted_by_reason["interval"] >= 4
    serving.check_idle()


def test_of_interior_checkpoints_the_one_that_covers_least_goes_first() -> None:
    """A path is left at 100, 116 and 600: the checkpoint at 116 saves 16 tokens over the one before."""
    serving = Serving(KINDS["hybrid"], eviction="age_density", admission="branch_and_final")
    path = text(1_000)
    for cut, name in ((100, 1), (116, 2), (600, 3)):
        serving.serve(path, text(5, 9))
        serving.serve(joined(path[:cut], text(50, name)), text(5, 10 + name))
    store = serving.cache.store
    store.refresh()
    inner = [node.stop for node, _ in store.evictor.ranking(0.0) if node.children]
    assert inner[0] == 116 and set(inner) >= {100, 116, 600}
    assert {KIND_NAMES[kind] for kind in store.table.kind[: store.table.size]} >= {KIND_NAMES[FINAL]}
    assert INTERVAL not in store.table.kind[: store.table.size]
