"""Each admission policy's plan, as literals."""

from typing import Any

import pytest

from hybridcache.policies.admission import PromptFacts
from hybridcache.policies.build import ADMISSION, build_admission
from hybridcache.policies.columns import BRANCH, INTERVAL, PROMPT_END

Plan = list[tuple[int, int]]


def prompt(
    num_prompt: int = 40,
    hit: int = 0,
    matched: int = 0,
    leaves_path: bool = False,
    turn_end: int | None = None,
) -> PromptFacts:
    return PromptFacts(num_prompt, hit, matched, leaves_path, turn_end, block_size=16)


COLD = prompt()
BRANCHING = prompt(hit=10, matched=25, leaves_path=True)
AT_THE_HIT = prompt(hit=25, matched=25, leaves_path=True)
GOING_ON = prompt(hit=10, matched=25)
KNOWN = prompt(hit=10, matched=40, leaves_path=True)
ALL_BUT_ONE = prompt(hit=39, matched=40, leaves_path=True)


@pytest.mark.parametrize(
    ("name", "settings", "facts", "plan"),
    [
        ("final_only", {}, BRANCHING, []),
        ("branch_and_final", {}, COLD, []),
        ("branch_and_final", {}, BRANCHING, [(25, BRANCH)]),
        ("branch_and_final", {}, AT_THE_HIT, []),
        ("branch_and_final", {}, GOING_ON, []),
        ("branch_and_final", {}, KNOWN, [(39, BRANCH)]),
        ("branch_and_final", {}, ALL_BUT_ONE, []),
        ("branch_final_prompt", {}, COLD, [(39, PROMPT_END)]),
        ("branch_final_prompt", {}, BRANCHING, [(25, BRANCH), (39, PROMPT_END)]),
        ("branch_final_prompt", {}, prompt(turn_end=30), [(30, PROMPT_END)]),
        ("branch_final_prompt", {}, prompt(turn_end=40), [(39, PROMPT_END)]),
        ("branch_final_prompt", {}, prompt(hit=35, matched=35, turn_end=30), []),
        ("branch_final_prompt", {}, ALL_BUT_ONE, []),
        ("branch_final_prompt", {}, prompt(num_prompt=1), []),
        ("all_blocks", {}, COLD, [(16, INTERVAL), (32, INTERVAL)]),
        ("all_blocks", {}, prompt(hit=16, matched=20), [(32, INTERVAL)]),
        ("all_blocks", {}, prompt(num_prompt=32), [(16, INTERVAL), (32, INTERVAL)]),
        ("every_n", {"n": 15}, COLD, [(15, INTERVAL), (30, INTERVAL)]),
        ("every_n", {"n": 15}, prompt(hit=29), [(30, INTERVAL)]),
        ("every_n", {"n": 15}, prompt(hit=30), []),
        ("every_n", {}, COLD, []),
        ("first_sight", {}, COLD, []),
        ("first_sight", {}, BRANCHING, [(25, BRANCH)]),
        ("first_sight", {}, KNOWN, [(39, BRANCH)]),
        # On the grid: the end of the known path, whether the prompt leaves it or not, and the prompt's end.
        ("grid", {}, COLD, []),
        ("grid", {}, prompt(num_prompt=200), [(192, PROMPT_END)]),
        ("grid", {}, prompt(num_prompt=200, matched=150), [(128, BRANCH), (192, PROMPT_END)]),
        ("grid", {}, prompt(num_prompt=200, hit=128, matched=150), [(192, PROMPT_END)]),
        ("grid", {}, prompt(num_prompt=200, hit=192, matched=199), []),
        ("grid", {}, prompt(num_prompt=192), [(192, PROMPT_END)]),
        ("grid", {"grid": 16}, BRANCHING, [(16, BRANCH), (32, PROMPT_END)]),
        # Blocks of 16 tokens, and in units of 4 the junction and the end.
        ("block_ends", {"unit": 4}, COLD, [(16, INTERVAL), (32, INTERVAL), (36, PROMPT_END)]),
        (
            "block_ends",
            {"unit": 4},
            BRANCHING,
            [(16, INTERVAL), (32, INTERVAL), (24, BRANCH), (36, PROMPT_END)],
        ),
        ("block_ends", {"boundaries": "last"}, BRANCHING, [(32, INTERVAL), (16, BRANCH), (32, PROMPT_END)]),
        ("block_ends", {"boundaries": "last"}, prompt(hit=32), []),
        ("block_ends", {"unit": 4}, prompt(hit=36, matched=38), []),
        ("block_ends", {}, GOING_ON, [(16, INTERVAL), (32, INTERVAL), (32, PROMPT_END)]),
    ],
)
def test_plans(name: str, settings: dict[str, Any], facts: PromptFacts, plan: Plan) -> None:
    policy = build_admission(name, **settings)
    facts = facts._replace(keys=tuple(policy.candidates(facts)))
    assert [tuple(planned) for planned in policy.plan(facts)] == plan


@pytest.mark.parametrize(
    ("name", "settings", "after"),
    [
        ("all_blocks", {}, {40: 48, 48: 64}),
        ("every_n", {"n": 15}, {40: 45, 45: 60, 44: 45}),
        ("final_only", {}, {40: None}),
        ("branch_and_final", {}, {40: None}),
        ("branch_final_prompt", {}, {40: None}),
        ("first_sight", {}, {40: None}),
        ("grid", {}, {40: 256, 256: 512, 511: 512}),
        ("block_ends", {}, {40: 48, 48: 64}),
    ],
)
def test_generated_positions(name: str, settings: dict[str, Any], after: dict[int, int | None]) -> None:
    policy = build_admission(name, **settings)
    assert {position: policy.next_generated(position, 16) for position in after} == after


@pytest.mark.parametrize("name", sorted(ADMISSION))
def test_which_keep_the_end(name: str) -> None:
    policy = build_admission(name)
    assert policy.final == (name not in ("grid", "block_ends")) and policy.name == name
    assert policy.latest_only == (name == "grid")


@pytest.mark.parametrize(
    ("name", "settings", "word"),
    [
        ("every_m", {}, "every_m.*choose one of"),
        ("every_n", {"n": 0}, "n=0"),
        ("every_n", {"n": 1.5}, "n=1.5"),
        ("every_n", {"m": 5}, "m.*5"),
        ("final_only", {"n": 5}, "does not take"),
        ("first_sight", {"most": 0}, "most=0"),
        ("first_sight", {"inside_tokens": 0}, "inside_tokens=0"),
        ("first_sight", {"most": 1.5}, "most=1.5"),
        ("grid", {"grid": 0}, "grid=0"),
        ("grid", {"every": 0}, "every=0"),
        ("grid", {"grid": 2.5}, "grid=2.5"),
        ("block_ends", {"unit": 0}, "unit=0"),
        ("block_ends", {"unit": 1.5}, "unit=1.5"),
        ("block_ends", {"boundaries": "some"}, "boundaries='some': choose all or last"),
    ],
)
def test_bad_settings_are_refused(name: str, settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        build_admission(name, **settings)
