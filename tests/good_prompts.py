"""Traffic in which nothing is broken: prompts that share what they can, in the order they are sent."""

from collections.abc import Callable, Iterator
from random import Random

from tests.prompt_texts import (
    Prompt,
    Said,
    as_json,
    instructions,
    paragraph,
    question,
    record,
    sentence,
    talk,
    tools,
)


def next_turns(rng: Random) -> list[Prompt]:
    said = [Said("system", instructions(rng)), *talk(rng, 4)]
    return [[*said[: 2 * turn], Said("user", question(rng))][: 2 * turn] for turn in range(1, 5)]


def other_questions(rng: Random) -> list[Prompt]:
    system = Said("system", instructions(rng))
    return [[system, Said("user", question(rng))] for _ in range(4)]


def sums(rng: Random) -> list[Prompt]:
    system = Said("system", instructions(rng, 6))
    asked = [
        f"How much is {rng.randint(10, 99)} times {rng.randint(10, 99)}? Show each step." for _ in range(4)
    ]
    return [[system, Said("user", text)] for text in asked]


def form(rng: Random) -> list[Prompt]:
    """A question between a fixed head and a short fixed end."""
    head, end = instructions(rng), "Answer with one word."
    return [[Said("user", f"{head}\n\nText: {paragraph(rng, 4)}\n\n{end}")] for _ in range(4)]


def few_shot(rng: Random) -> list[Prompt]:
    shots = "\n".join(f"Input: {sentence(rng)}\nOutput: {rng.choice(['yes', 'no'])}" for _ in range(8))
    return [[Said("user", f"{shots}\nInput: {sentence(rng)}\nOutput:")] for _ in range(4)]


def other_documents(rng: Random) -> list[Prompt]:
    system = Said("system", instructions(rng, 5))
    found = ["\n\n".join(paragraph(rng, 6) for _ in range(3)) for _ in range(4)]
    return [[system, Said("user", f"{body}\n\nQuestion: {question(rng)}")] for body in found]


def growing_documents(rng: Random) -> list[Prompt]:
    found = [paragraph(rng, 6) for _ in range(5)]
    return [[Said("user", "\n\n".join(found[:count])), Said("user", question(rng))] for count in range(2, 6)]


def other_agents(rng: Random) -> list[Prompt]:
    return [[Said("system", instructions(rng)), Said("user", question(rng))] for _ in range(4)]


def agent_steps(rng: Random) -> list[Prompt]:
    said = [Said("system", f"{as_json(tools(rng))}\n{instructions(rng)}"), Said("user", question(rng))]
    sent = [list(said)]
    for step in range(3):
        output = f"2026-11-30T03:{step:02d}:{rng.randint(10, 59)}Z ok\n{paragraph(rng, 5)}"
        said += [Said("assistant", sentence(rng)), Said("tool", output)]
        sent.append(list(said))
    return sent


def dated_questions(rng: Random) -> list[Prompt]:
    """The date comes last, where it does no harm."""
    system = Said("system", instructions(rng))
    days = [f"It is {rng.randint(1, 28)} March {rng.randint(2020, 2029)}." for _ in range(4)]
    return [[system, Said("user", f"{question(rng)} {day}")] for day in days]


def records_last(rng: Random) -> list[Prompt]:
    system = Said("system", instructions(rng))
    return [[system, Said("user", f"Describe this customer: {as_json(record(rng))}")] for _ in range(4)]


def same_again(rng: Random) -> list[Prompt]:
    prompt = [Said("system", instructions(rng)), Said("user", question(rng))]
    return [prompt, prompt, prompt, prompt]


def reworded_last_question(rng: Random) -> list[Prompt]:
    said = [Said("system", instructions(rng)), *talk(rng, 2)]
    text = question(rng)
    return [
        [*said, Said("user", ending)]
        for ending in (text, f"{text} Be brief.", f"Again: {text}", question(rng))
    ]


def branches(rng: Random) -> list[Prompt]:
    """Several ways on from one point of a conversation."""
    said = [Said("system", instructions(rng)), *talk(rng, 2)]
    return [[*said, Said("user", question(rng)), *talk(rng, 1)[1:]] for _ in range(4)]


def names_last(rng: Random) -> list[Prompt]:
    system = Said("system", instructions(rng))
    return [[system, Said("user", f"{question(rng)} Regards, {sentence(rng).split()[0]}")] for _ in range(4)]


GOOD: tuple[Callable[[Random], list[Prompt]], ...] = (
    next_turns, other_questions, sums, form, few_shot, other_documents, growing_documents, other_agents,
    agent_steps, dated_questions, records_last, same_again, reworded_last_question, branches, names_last,
)  # fmt: skip


def streams(count: int, *, seed: int) -> Iterator[list[Prompt]]:
    """`count` streams of four prompts, every kind in its turn."""
    for number in range(count):
        yield GOOD[number % len(GOOD)](Random(f"good {seed} {number}"))
