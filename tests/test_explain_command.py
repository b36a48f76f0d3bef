"""`hybridcache explain` on logs of requests and on traces, and `Worker.explain`."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from hybridcache.cli import main
from hybridcache.experiments.traces.open import open_trace
from hybridcache.worker import SamplingParams
from tests.broken_templates import BROKEN
from tests.prompt_texts import Prompt, Said, instructions, question, talk, tools
from tests.worker_setup import MakeWorker, make_worker

__all__ = ["make_worker"]


def log_of(path: Path, prompts: list[Prompt], **fields: object) -> str:
    rows = [
        {"messages": [{"role": said.role, "content": said.text} for said in prompt], **fields}
        for prompt in prompts
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def clocks(count: int) -> list[Prompt]:
    """One template with a time of day at its top, long enough for providers' caches."""
    rng = Random(1)
    text = " ".join(instructions(rng) for _ in range(8))
    return [
        [Said("system", f"It is {9 + i}:{10 + i} now.\n{text}"), Said("user", question(rng))]
        for i in range(count)
    ]


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main(["explain", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_log_is_explained_by_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = Random(2)
    system, said = Said("system", "Be brief. " + instructions(rng)), talk(rng, 4)
    good = [[system, *said[: 2 * turn + 1]] for turn in range(4)]
    prompts = [prompt for pair in zip(clocks(4), good, strict=True) for prompt in pair]
    path = log_of(tmp_path / "log.jsonl", prompts)
    found = explained(capsys, path, "--prices", "claude_sonnet_4")
    assert found["requests"] == 8
    assert found["cached_tokens"] + sum(found["lost_tokens"].values()) == found["prompt_tokens"]
    broken, fine = found["templates"]
    assert (broken["requests"], fine["requests"]) == (4, 4)
    (cause,) = [cause for cause in broken["causes"] if cause["kind"] == "timestamp"]
    assert cause["requests"] == 3
    assert cause["avoidable_tokens"] > 3 * 1_000
    assert cause["money"] == pytest.approx(cause["avoidable_tokens"] * (3.75 - 0.30) / 1e6)
    assert cause["seconds"] > 0
    assert not [cause for cause in fine["causes"] if cause["kind"] not in ("no_checkpoint", "expired")]
    assert main(["explain", path, "--prices", "claude_sonnet_4"]) == 0
    text = capsys.readouterr().out
    assert "move the date or time to the end" in text
    assert "USD at claude_sonnet_4's prices" in text


def test_the_last_prompt_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    earlier, later = BROKEN["summarised_history"]["system"](Random(3))
    path = log_of(tmp_path / "log.jsonl", [earlier, later])
    found = explained(capsys, path, "--last")
    assert found["cause"]["kind"] == "summarised_history"
    assert 0 < found["avoidable_tokens"] < found["num_prompt_tokens"]
    assert "|" in found["text"]
    assert main(["explain", path, "--last"]) == 0
    assert "cause: summarised_history" in capsys.readouterr().out


def test_expiry_under_a_price_file_is_the_caches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = clocks(1)[0][0].text
    # The second one goes on otherwise, so that the cache remembers nothing of it.
    for name, ends in (("same", "aa"), ("other", "ab")):
        rows = [{"prompt": f"{text} {end}", "timestamp": 400 * i} for i, end in enumerate(ends)]
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        (template,) = explained(capsys, str(path), "--prices", "claude_sonnet_4")["templates"]
        assert [cause["kind"] for cause in template["causes"]] == ["expired"]
        assert template["causes"][0]["avoidable_tokens"] > 1_000
        assert main(["explain", str(path), "--prices", "claude_sonnet_4"]) == 0
        printed = capsys.readouterr().out
        assert "at claude_sonnet_4's prices (which cache no prompt shorter than 1,024 tokens)" in printed
        assert main(["explain", str(path), "--prices", "claude_sonnet_4", "--last"]) == 0
        assert "expired" in capsys.readouterr().out
        (kept,) = explained(capsys, str(path), "--prices", "claude_sonnet_4_hour")["templates"]
        assert not {cause["kind"] for cause in kept["causes"]} & {"expired", "forgotten"}


def test_a_trace_without_texts_shows_token_ids(capsys: pytest.CaptureFixture[str]) -> None:
    found = explained(capsys, "rag", "limit=60", "documents=6", "popularity_exponent=0")
    causes = {cause["kind"]: cause for template in found["templates"] for cause in template["causes"]}
    assert causes["shuffled_documents"]["requests"] > 10  # the generator puts documents in random order
    assert causes["shuffled_documents"]["before"].split()[0].isdigit()
    found = explained(capsys, "agent", "limit=60")
    causes = {cause["kind"]: cause for template in found["templates"] for cause in template["causes"]}
    assert set(causes) <= {"no_checkpoint"}
    found = explained(capsys, "agent", "limit=60", "--budget-gb", "1")
    causes = {cause["kind"]: cause for template in found["templates"] for cause in template["causes"]}
    assert causes.keys() & {"kv_evicted", "checkpoint_evicted"}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"text": "x"}, "field 'messages': missing"),
        ({"messages": []}, "field 'messages': must be a list with a message or more"),
        ({"messages": [{"role": "dog", "content": "x"}]}, "field 'messages': has .*the roles are system"),
        ({"prompt": ""}, "field 'prompt': must be a text"),
        ({"prompt": "x", "output": 3}, "field 'output': must be a text"),
        ({"prompt": "x", "timestamp": -9}, "field 'timestamp': is -9 s, after a row of 0 s"),
        ({"prompt": "x", "session": []}, "field 'session': must be a text or a whole number"),
    ],
)
def test_rows_of_a_log_are_checked(row: dict[str, object], problem: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"prompt": "first", "timestamp": 0}) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(ValueError, match=rf"log.jsonl, row 2, {problem}"):
        open_trace("prompts", path=str(path))


def test_rows_of_a_log_become_requests(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    rows: list[dict[str, object]] = [
        {"messages": [{"role": "user", "content": "one"}], "output": "two", "session": "a", "timestamp": 5},
        {
            "messages": [{"role": "user", "content": "one"}, call],
            "tools": tools(Random(0), 1),
            "session": "a",
        },
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace = open_trace("prompts", path=str(path))
    a, b = trace
    assert (a.session, a.turn, b.session, b.turn) == (0, 0, 0, 1)
    assert (a.arrival, b.arrival) == (0.0, 1.0)
    decode: Any = trace.decode  # type: ignore[attr-defined]
    assert decode(a.tokens.tolist()) == "onetwo"
    assert decode(b.prompt.tolist()).startswith('[{"name"')
    assert not trace.has_outputs


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "torn.yaml").write_text("name: [")
    (tmp_path / "short.yaml").write_text("name: short\ncurrency: EUR\n")
    for arguments, problem in (
        (["chat", "--prices", "free"], "prices=free is unknown; choose one of claude_sonnet_4"),
        (["chat", "--budget-gb", "0"], "--budget-gb 0.0: give gigabytes above 0"),
        (["chat", "--hardware", "abacus"], "hardware=abacus is unknown"),
        (["chat", "--top", "0"], "--top 0: give a number of templates"),
        (["chat", "--prices", str(tmp_path / "torn.yaml")], "torn.yaml: not YAML"),
        (["chat", "--prices", str(tmp_path / "short.yaml")], "prices short: no key cache_read, no key"),
    ):
        with pytest.raises(SystemExit):
            main(["explain", *arguments])
        assert problem in capsys.readouterr().err


def test_the_worker_explains_prompts_and_its_traffic(make_worker: MakeWorker) -> None:
    worker = make_worker("tiny")
    greedy = SamplingParams(max_tokens=2, temperature=0.0)
    first, second, third = ([said._asdict() for said in prompt] for prompt in clocks(3))
    chats = [
        [{"role": m["role"], "content": m["text"][:900]} for m in chat] for chat in (first, second, third)
    ]
    nothing = worker.explain(chats[0])
    assert (nothing.num_cached_tokens, nothing.cause) == (0, None)
    assert worker.chat(chats[0], greedy).result().num_cached_tokens == 0
    explanation = worker.explain(chats[1])
    assert explanation.cause is not None
    assert explanation.cause.kind == "timestamp"
    assert json.loads(json.dumps(explanation.as_dict()))["cause"]["remedy"]
    # A question changes nothing, and says what would have been lost.
    output = worker.chat(chats[1], greedy).result()
    assert (output.num_cached_tokens, output.miss) == (explanation.num_cached_tokens, explanation.lost)
    assert worker.explain(chats[1]).num_cached_tokens > 0
    assert worker.explain(chats[1], cache_salt="other").cause is None
    worker.chat(chats[2], greedy, cache_salt="other").result()
    totals = worker.explain_traffic()
    assert [(total.salt, total.requests) for total in totals] == [("", 2), ("other", 1)]
    assert list(totals[0].causes) == ["timestamp"]
    assert json.loads(json.dumps(totals[0].as_dict()))["causes"][0]["requests"] == 1
    assert not totals[1].causes
    worker.check()


def test_a_budget_that_no_prompt_fits_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    for last in ([], ["--last"]):
        with pytest.raises(SystemExit):
            main(["explain", "chat", "limit=3", "--budget-gb", "0.0001", *last])
        assert "--budget-gb 0.0001: no prompt of chat fits" in capsys.readouterr().err
