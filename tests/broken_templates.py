"""Prompt templates that break prefixes, several of each kind, written before the rules that find them.

A case is a pair: a prompt that was sent, and one that should have shared more with it. Of each kind's forms
half are held back by seed: the rules were tuned on the others alone.
"""

import hashlib
from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random
from typing import NamedTuple
from uuid import UUID

from tests.prompt_texts import (
    NAMES,
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

SPLIT_SEED = 20261130
Pair = tuple[Prompt, Prompt]
Variant = Callable[[Random], Pair]


class Case(NamedTuple):
    """One broken template."""

    kind: str
    variant: str
    earlier: Prompt
    later: Prompt


def field(make: Callable[[Random], str], layout: Callable[[str, str], str]) -> Variant:
    """A field in the instructions that is made anew for each request, under another question."""

    def variant(rng: Random) -> Pair:
        text = instructions(rng)
        sent = [[Said("system", layout(make(rng), text)), Said("user", question(rng))] for _ in range(2)]
        return sent[0], sent[1]

    return variant


def first(name: str) -> Callable[[str, str], str]:
    return lambda value, text: f"{name}{value}\n{text}"


def middle(name: str) -> Callable[[str, str], str]:
    def layout(value: str, text: str) -> str:
        start, stop, rest = text.partition(". ")
        return f"{start}{stop}{name}{value}. {rest}"

    return layout


def moment(rng: Random) -> datetime:
    return datetime(2026, 1, 1) + timedelta(seconds=rng.randrange(300 * 86_400))


def date_of(form: str) -> Callable[[Random], str]:
    return lambda rng: moment(rng).strftime(form)


def hexes(rng: Random, digits: int) -> str:
    return f"{rng.getrandbits(4 * digits):0{digits}x}"


def same(change: Callable[[Random, str], tuple[str, str]]) -> Variant:
    """One text in two versions as the system prompt, each under a question of its own."""

    def variant(rng: Random) -> Pair:
        before, after = change(rng, instructions(rng, 5))
        return (
            [Said("system", before), Said("user", question(rng))],
            [Said("system", after), Said("user", question(rng))],
        )

    return variant


def keys(indent: int | None, where: str) -> Variant:
    def change(rng: Random, text: str) -> tuple[str, str]:
        items = list(record(rng).items())
        shuffled = rng.sample(items, len(items))
        forms = [as_json(dict(order), indent=indent) for order in (items, shuffled)]
        return (f"{text}\n{where}\n{forms[0]}", f"{text}\n{where}\n{forms[1]}")

    return same(change)


def nested_keys(rng: Random, text: str) -> tuple[str, str]:
    people = {name: record(rng) for name in rng.sample(NAMES, 3)}
    turned = {name: dict(rng.sample(list(facts.items()), len(facts))) for name, facts in people.items()}
    return (f"{text} Customers: {as_json(people)}", f"{text} Customers: {as_json(turned)}")


def schema_keys(rng: Random, text: str) -> tuple[str, str]:
    listed = tools(rng, 4)
    turned = [dict(rng.sample(list(tool.items()), 3)) for tool in listed]
    turned[0] = dict(reversed(listed[0].items()))
    return f"{as_json(listed)}\n{text}", f"{as_json(turned)}\n{text}"


def tool_list(form: Callable[[list[dict[str, object]]], str], change: str) -> Variant:
    def changed(rng: Random, text: str) -> tuple[str, str]:
        listed = tools(rng, 6)
        kept = listed[:-1]
        other = [*kept[1:], kept[0]] if change == "rotated" else rng.sample(kept, len(kept))
        if change == "shuffled" and other == kept:
            other.reverse()
        if change == "added":
            kept, other = listed[:-1], [listed[-1], *listed[:-1]]
        elif change == "removed":
            kept, other = listed, [*listed[:1], *listed[2:]]
        return f"{form(kept)}\n{text}", f"{form(other)}\n{text}"

    return same(changed)


def json_lines(listed: list[dict[str, object]]) -> str:
    return "\n".join(as_json(tool) for tool in listed)


def json_array(listed: list[dict[str, object]]) -> str:
    return "Tools: " + as_json(listed)


def json_indented(listed: list[dict[str, object]]) -> str:
    return "# Tools\n" + as_json(listed, indent=2)


def markdown(listed: list[dict[str, object]]) -> str:
    return "\n".join(
        f"## {tool['name']}\n{tool['description']}\n{as_json(tool['parameters'])}" for tool in listed
    )


def documents(form: Callable[[int, str], str], role: str, keep: int = 5, count: int = 5) -> Variant:
    """The same passages, or most of them, in another order before a question."""

    def variant(rng: Random) -> Pair:
        text = instructions(rng, 4)
        found = [paragraph(rng, 6) for _ in range(count)]
        other = rng.sample(found[:keep], keep) + [paragraph(rng, 6) for _ in range(count - keep)]
        if other[0] == found[0]:
            other.append(other.pop(0))
        pair = []
        for order in (found, other):
            body = "\n\n".join(form(i, passage) for i, passage in enumerate(order, 1))
            if role == "system":
                pair.append([Said("system", f"{text}\n\n{body}"), Said("user", question(rng))])
            else:
                pair.append([Said("system", text), Said("user", f"{body}\n\nQuestion: {question(rng)}")])
        return pair[0], pair[1]

    return variant


def history(change: Callable[[Random, Prompt], Prompt], turns: int = 6, **how: bool) -> Variant:
    """A conversation whose past is rewritten when it goes on."""

    def variant(rng: Random) -> Pair:
        said = talk(rng, turns, **how)
        system = Said("system", instructions(rng, 5))
        asked, following = Said("user", question(rng)), Said("user", question(rng))
        answer = Said("assistant", paragraph(rng, 4))
        return [system, *said, asked], [system, *change(rng, said), asked, answer, following]

    return variant


def summary(form: Callable[[str], list[Said]], drop: int) -> Variant:
    return history(lambda rng, said: [*form(paragraph(rng, 4)), *said[drop:]])


def summary_in_system(rng: Random) -> Pair:
    earlier, later = history(lambda rng, said: said[8:])(rng)
    system = Said("system", f"{later[0].text}\n\nWhat happened so far: {paragraph(rng, 4)}")
    return earlier, [system, *later[1:]]


def dropped(count: int) -> Variant:
    return history(lambda _, said: said[count:])


def agent(change: Callable[[Random, str], str], steps: int = 6) -> Variant:
    """An agent whose old observations are changed."""

    def variant(rng: Random) -> Pair:
        loop = []
        for step in range(steps):
            loop.append(Said("assistant", f"I will look at part {step}. {sentence(rng)}"))
            loop.append(Said("tool", f"Output of step {step}:\n{paragraph(rng, 10)}"))
        head = [Said("system", instructions(rng, 5)), Said("user", question(rng))]
        turned = [
            said._replace(text=change(rng, said.text)) if said.role == "tool" and i < steps else said
            for i, said in enumerate(loop)
        ]
        return [*head, *loop], [*head, *turned, Said("assistant", sentence(rng)), Said("tool", sentence(rng))]

    return variant


def edited_turn(rng: Random) -> Pair:
    def reworded(rng: Random, said: Prompt) -> Prompt:
        return [said[0], said[1]._replace(text=paragraph(rng, 5)), *said[2:]]

    return history(reworded)(rng)


def reasoning(opening: str, closing: str) -> Variant:
    def variant(rng: Random) -> Pair:
        system, said = Said("system", instructions(rng, 5)), talk(rng, 3)
        thought = [
            s._replace(text=f"{opening}{paragraph(rng, 6)}{closing}\n{s.text}")
            if s.role == "assistant"
            else s
            for s in said
        ]
        asked, following = Said("user", question(rng)), Said("user", question(rng))
        return [system, *thought, asked], [system, *said, asked, Said("assistant", sentence(rng)), following]

    return variant


def indented(rng: Random, text: str) -> tuple[str, str]:
    facts = record(rng)
    return f"{text}\n{as_json(facts)}\n{text[::-1]}", f"{text}\n{as_json(facts, indent=2)}\n{text[::-1]}"


def person(rng: Random) -> str:
    return f"{rng.choice(NAMES)} {rng.choice(NAMES)}son-{rng.choice(NAMES)}"


BROKEN: dict[str, dict[str, Variant]] = {
    "timestamp": {
        "iso": field(date_of("%Y-%m-%dT%H:%M:%SZ"), first("Current time: ")),
        "spoken": field(date_of("%A, %d %B %Y, %I:%M %p"), first("It is ")),
        "log": field(date_of("[%Y/%m/%d %H:%M:%S]"), first("")),
        "clock": field(date_of("%H:%M:%S"), middle("The clock says ")),
        "german": field(date_of("%d.%m.%Y %H:%M"), middle("Stand: ")),
        "epoch": field(lambda rng: str(int(moment(rng).timestamp())), first("now=")),
        "mail": field(date_of("%a, %d %b %Y %H:%M:%S +0000"), first("Date: ")),
        "american": field(date_of("%m/%d/%Y %I:%M %p"), middle("Today is ")),
        "millis": field(lambda rng: f"{int(moment(rng).timestamp() * 1000)}", first("timestamp: ")),
        "month": field(date_of("%B %d, %Y at %H:%M"), first("Today's date: ")),
    },
    "random_id": {
        "uuid": field(lambda rng: str(UUID(int=rng.getrandbits(128))), first("Request ")),
        "hex": field(lambda rng: hexes(rng, 32), middle("trace_id=")),
        "short": field(lambda rng: hexes(rng, 12), first("session: ")),
        "prefixed": field(lambda rng: f"req_{hexes(rng, 16)}", first("[") ),
        "upper": field(lambda rng: f"{hexes(rng, 8).upper()}-{hexes(rng, 8).upper()}", middle("Ref ")),
        "base36": field(
            lambda rng: "".join(rng.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(20)),
            first("nonce: "),
        ),
        "mixed": field(
            lambda rng: "".join(rng.choice("ABCdefGHIjklMNOpqrSTUvwxYZ0123456789") for _ in range(24)),
            middle("conversation "),
        ),
        "url": field(lambda rng: f"https://example.org/s/{hexes(rng, 20)}", first("Permalink: ")),
    },
    "counter": {
        "budget": field(lambda rng: str(rng.randint(1000, 99_999)), first("Tokens left: ")),
        "turn": field(lambda rng: f"{rng.randint(1, 99)} of 100", first("Turn ")),
        "percent": field(lambda rng: f"{rng.randint(1, 99)}%", middle("Battery at ")),
        "queue": field(lambda rng: f"{rng.randint(1, 9999):,}", middle("Open tickets: ")),
        "price": field(lambda rng: f"{rng.uniform(1, 900):.2f}", first("Balance in EUR: ")),
        "attempt": field(lambda rng: f"#{rng.randint(100, 999)}", first("Attempt ")),
    },
    "user_variable": {
        "name": field(person, first("You are talking to ")),
        "city": field(lambda rng: f"{rng.choice(NAMES)}ville, {rng.choice(NAMES)}shire", first("Location: ")),
        "mail": field(lambda rng: f"{rng.choice(NAMES)}.{rng.choice(NAMES)}@a.d".lower(), middle("Account ")),
        "tags": field(lambda rng: ", ".join(rng.sample(NAMES, 4)), middle("Friends: ")),
        "place": field(lambda rng: " ".join(rng.sample(NAMES, 3)), middle("The customer's shop is called ")),
        "line": field(lambda rng: f"{person(rng)}, {person(rng)}", first("On duty: ")),
    },
    "whitespace": {
        "indent": same(indented),
        "newline": same(lambda _, text: (text.replace(". ", ".\n", 1), text.replace(". ", ".\n\n", 1))),
        "spaces": same(lambda _, text: (text.replace(". ", ".  ", 1), text)),
        "crlf": same(lambda _, text: (text.replace(". ", ".\n"), text.replace(". ", ".\r\n"))),
        "lead": same(lambda _, text: (text, f"\n{text}")),
        "tabs": same(lambda _, text: (text.replace(". ", ".\n    "), text.replace(". ", ".\n\t"))),
    },
    "reordered_keys": {
        "line": keys(None, "Profile:"),
        "indented": keys(2, "Customer record:"),
        "wide": keys(4, "```json"),
        "nested": same(nested_keys),
        "schema": same(schema_keys),
        "tagged": keys(None, "<context>"),
    },
    "reordered_tools": {
        "array": tool_list(json_array, "shuffled"),
        "lines": tool_list(json_lines, "shuffled"),
        "indented": tool_list(json_indented, "rotated"),
        "markdown": tool_list(markdown, "shuffled"),
        "rotated": tool_list(json_array, "rotated"),
        "rotated_lines": tool_list(json_lines, "rotated"),
    },
    "changed_tools": {
        "added": tool_list(json_array, "added"),
        "added_line": tool_list(json_lines, "added"),
        "removed": tool_list(json_array, "removed"),
        "removed_indented": tool_list(json_indented, "removed"),
        "added_indented": tool_list(json_indented, "added"),
        "removed_markdown": tool_list(json_lines, "removed"),
    },
    "shuffled_documents": {
        "numbered": documents(lambda i, text: f"[{i}] {text}", "user"),
        "tags": documents(lambda i, text: f"<doc>{text}</doc>", "system"),
        "bare": documents(lambda i, text: text, "user"),
        "headed": documents(lambda i, text: f"### Passage\n{text}", "system"),
        "some": documents(lambda i, text: f"Document {i}: {text}", "user", keep=4),
        "quoted": documents(lambda i, text: f"> {text}", "system", keep=4, count=6),
    },
    "truncated_history": {
        "one": dropped(2),
        "two": dropped(4),
        "half": dropped(6),
        "most": dropped(8),
        "three_messages": dropped(3),
        "five_messages": dropped(5),
    },
    "summarised_history": {
        "system": summary(lambda text: [Said("system", f"Summary of the conversation so far: {text}")], 8),
        "user": summary(lambda text: [Said("user", f"(earlier: {text})")], 6),
        "pair": summary(lambda text: [Said("user", "Recap, please."), Said("assistant", text)], 8),
        "short": summary(lambda text: [Said("assistant", text[:150])], 8),
        "in_system": summary_in_system,
        "tagged": summary(lambda text: [Said("user", f"<memory>\n{text}\n</memory>")], 10),
    },
    "edited_history": {
        "collapsed": agent(lambda _, text: "[output removed]"),
        "cut": agent(lambda _, text: text[:60] + " ..."),
        "placeholder": agent(lambda _, text: "Old tool result cleared to save space."),
        "reworded": edited_turn,
        "first_line": agent(lambda _, text: text.split("\n")[0]),
        "digest": agent(lambda rng, _: f"Result: {sentence(rng)}"),
    },
    "removed_reasoning": {
        "think": reasoning("<think>", "</think>"),
        "thinking": reasoning("<thinking>\n", "\n</thinking>"),
        "reasoning": reasoning("<reasoning>", "</reasoning>"),
        "channel": reasoning("<|channel|>analysis<|message|>", "<|end|>"),
        "lines": reasoning("<think>\n\n", "\n\n</think>\n"),
        "scratch": reasoning("<scratchpad>", "</scratchpad>"),
    },
}  # fmt: skip


def held_back(kind: str) -> set[str]:
    """Names of the variants of `kind` that the rules were not tuned on: half of them, rounded down."""
    names = sorted(
        BROKEN[kind], key=lambda name: hashlib.sha256(f"{SPLIT_SEED} {kind} {name}".encode()).digest()
    )
    return set(names[: len(names) // 2])


def cases(*, held: bool, seeds: int) -> list[Case]:
    """`seeds` cases of each variant of one half."""
    found = []
    for kind, variants in BROKEN.items():
        back = held_back(kind)
        for name, variant in variants.items():
            if (name in back) == held:
                for seed in range(seeds):
                    found.append(Case(kind, name, *variant(Random(f"{kind} {name} {seed}"))))
    return found
