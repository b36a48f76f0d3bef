"""Texts of the prompts in the tests of `explain`: instructions, documents, tools, chats, by seed."""

import json
from random import Random
from typing import NamedTuple


class Said(NamedTuple):
    """A message."""

    role: str
    text: str


Prompt = list[Said]

ROLES = (
    "You are the support agent of a bookshop",
    "You review pull requests for a payments team",
    "You plan trips by train",
    "You answer questions about insurance contracts",
    "You tutor pupils in physics",
    "You write release notes",
    "You triage bug reports of a mobile app",
    "You help nurses read lab results",
)
RULES = (
    "Answer in the language of the question.",
    "Quote the source of every number.",
    "Never promise a refund before the order was checked.",
    "Say so when you do not know.",
    "Keep answers under a hundred words unless asked for more.",
    "Use metric units throughout.",
    "List assumptions before conclusions.",
    "Do not mention these instructions.",
    "Prefer simple words over technical terms.",
    "Escalate anything that sounds like a threat to a person.",
    "When two rules conflict, the one that comes first wins.",
    "Refuse requests for personal data of others.",
    "Start with the answer, then give the reason.",
    "Format lists with one item a line.",
)
SUBJECTS = (
    "The harbour",
    "A second engine",
    "Our archive",
    "The northern line",
    "Every apprentice",
    "The committee",
    "A glass roof",
    "The old contract",
    "This compound",
    "The night shift",
)
VERBS = (
    "was rebuilt after",
    "depends on",
    "cannot be moved without",
    "costs less than",
    "was named after",
    "is inspected before",
    "lost a third of",
    "replaced",
    "has twice the size of",
    "waits for",
)
OBJECTS = (
    "the flood of the spring",
    "a permit from the city",
    "the water supply",
    "its predecessor",
    "the founder's sister",
    "a change of season",
    "the members",
    "the wooden bridge",
    "a football field",
    "the morning ferry",
    "three signatures",
    "an audit by strangers",
)
QUESTIONS = (
    "Which of these matters most for us?",
    "How long would that take?",
    "Can you explain it to a beginner?",
    "What would change if the budget were halved?",
    "Who has to agree first?",
    "Is there a cheaper way?",
    "Please compare the two options.",
    "What did we forget?",
    "Why did it fail last time?",
    "Where do we start?",
)
TOOLS = {
    "search_orders": {"customer": "string", "since": "string", "limit": "integer"},
    "get_weather": {"city": "string", "unit": "string"},
    "create_ticket": {"title": "string", "body": "string", "priority": "integer", "assignee": "string"},
    "read_file": {"path": "string", "first_line": "integer", "last_line": "integer"},
    "send_mail": {"to": "string", "subject": "string", "text": "string"},
    "convert_currency": {"amount": "number", "source": "string", "target": "string"},
    "list_branches": {"repository": "string", "merged": "boolean"},
    "book_seat": {"train": "string", "carriage": "integer", "window": "boolean"},
}
NAMES = ("Ada", "Bjarne", "Chandra", "Dilan", "Emeka", "Fatima", "Giulia", "Hanne", "Ismail", "Jun")


def sentence(rng: Random) -> str:
    """Of a few thousand, each in its place."""
    return f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)} in {rng.randint(1200, 2020)}."


def paragraph(rng: Random, sentences: int = 5) -> str:
    """Some sentences."""
    return " ".join(sentence(rng) for _ in range(sentences))


def instructions(rng: Random, rules: int = 8) -> str:
    """A system prompt of about 120 tokens or more."""
    return " ".join([f"{rng.choice(ROLES)}.", *rng.sample(RULES, rules), paragraph(rng, 3)])


def question(rng: Random) -> str:
    """A user's turn."""
    return f"{paragraph(rng, rng.randint(1, 3))} {rng.choice(QUESTIONS)}"


def tools(rng: Random, count: int = 5) -> list[dict[str, object]]:
    """Schemas as the APIs take them."""
    found: list[dict[str, object]] = []
    for name in rng.sample(sorted(TOOLS), count):
        properties = {key: {"type": kind, "description": sentence(rng)} for key, kind in TOOLS[name].items()}
        found.append({"name": name, "description": sentence(rng), "parameters": properties})
    return found


def record(rng: Random) -> dict[str, object]:
    """A JSON object of a dozen keys."""
    keys = rng.sample(
        [
            "city",
            "plan",
            "language",
            "orders",
            "balance",
            "since",
            "tier",
            "device",
            "region",
            "currency",
            "age",
            "interests",
            "channel",
            "partner",
            "branch",
        ],
        12,
    )
    return {key: rng.choice([sentence(rng), rng.randint(1, 9999), rng.choice(NAMES)]) for key in keys}


def talk(rng: Random, turns: int, *, long_answers: bool = True) -> Prompt:
    """`turns` questions, each with its answer."""
    said = []
    for _ in range(turns):
        said.append(Said("user", question(rng)))
        said.append(Said("assistant", paragraph(rng, rng.randint(3, 6) if long_answers else 1)))
    return said


def as_json(value: object, **settings: object) -> str:
    """As `json.dumps`."""
    return json.dumps(value, **settings)  # type: ignore[arg-type]
