"""What a worker is told of a prompt besides its tokens: chats, hints, times to live, a place in the queue."""

from copy import deepcopy
from dataclasses import replace

import pytest
from transformers import ByT5Tokenizer

from hybridcache.chat_outline import MOST_ENDS, Breakpoint
from hybridcache.text_codec import ChatPrompt, TextCodec
from hybridcache.worker import QueueFull, SamplingParams
from tests.worker_setup import GREEDY, MakeWorker, in_engine, make_worker, tokens

__all__ = ["make_worker"]

SYSTEM = {"role": "system", "content": "Answer in few words, and say where you know it from."}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_the_second_chat_under_a_system_prompt_hits_it(make_worker: MakeWorker) -> None:
    worker = make_worker()
    for tools in (None, TOOLS):
        worker.flush()
        first = worker.codec.chat([SYSTEM, user("What is a prefix?")], tools=tools)
        other = worker.codec.chat([SYSTEM, user("Who asks?")], tools=tools)
        (head,) = first.hints
        assert list(first.token_ids[:head]) == list(other.token_ids[:head]) and head in first.boundaries
        worker.submit(first, GREEDY).result(60)
        assert worker.submit(other, GREEDY).result(60).num_cached_tokens == head
    # Without hints the first sight of a branch costs the second chat everything.
    worker.flush()
    worker.submit(list(first.token_ids), GREEDY).result(60)
    assert worker.submit(list(other.token_ids), GREEDY).result(60).num_cached_tokens == 0


def test_tools_without_a_system_prompt_end_where_chats_differ(make_worker: MakeWorker) -> None:
    codec = make_worker().codec
    first, other = (codec.chat([user(text)], tools=TOOLS) for text in ("What?", "0 is a number"))
    (head,) = first.hints
    assert other.hints == [head] and first.token_ids[:head] == other.token_ids[:head]
    assert first.token_ids[head] != other.token_ids[head]
    assert codec.chat([user("What?")]).hints == []
    assert codec.chat([user("What?")], continue_final=True).goes_on and not other.goes_on


def test_a_tokenizer_that_does_not_tell_where_its_tokens_are(make_worker: MakeWorker) -> None:
    """Those that are written in Python."""
    template = make_worker().codec.template
    tokenizer = ByT5Tokenizer()
    tokenizer.chat_template = template
    codec = TextCodec(tokenizer)
    chat = [SYSTEM, user("Où?"), {"role": "assistant", "content": "Là."}, user("Ah?")]
    found = codec.chat(chat, breakpoints=[Breakpoint(1)])
    texts = [codec.text(found.token_ids[:end]) for end in found.boundaries]
    assert [text[-8:] for text in texts[::2]] == [".<|end|>"] * 2 and len(texts) == 4
    assert found.turn_end == found.boundaries[3] and found.hints == found.boundaries[:2]
    assert found.breakpoints == [found.boundaries[1]]
    assert codec.chat(chat[:2]).turn_end == found.boundaries[1]


def test_breakpoints_become_positions(make_worker: MakeWorker) -> None:
    worker = make_worker()
    chat = [
        SYSTEM,
        user("A long document. " * 20 + "\nA question?"),
        {"role": "assistant", "content": "Yes."},
        user("?"),
    ]
    document = chat[1]["content"].index("\n")
    found = worker.codec.chat(chat, breakpoints=[Breakpoint(1, document), Breakpoint(2)])
    assert len(found.breakpoints) == 2 and set(found.breakpoints) < set(found.hints)
    assert worker.codec.text(found.token_ids[: found.breakpoints[0]]).endswith("A long document. ")
    assert found.breakpoints[1] in found.boundaries
    worker.submit(found, GREEDY).result(60)
    other = worker.codec.chat([SYSTEM, user("A long document. " * 20 + "\nAnother one?")])
    assert worker.submit(other, GREEDY).result(60).num_cached_tokens == found.breakpoints[0]


def test_long_chats_are_outlined_in_part(make_worker: MakeWorker) -> None:
    codec = make_worker().codec
    turns = [user("Hm?"), *({"role": "assistant", "content": f"No {i}."} for i in range(3 * MOST_ENDS))]
    whole = codec.chat([SYSTEM, *turns])
    assert MOST_ENDS <= len(whole.boundaries) <= MOST_ENDS + 2
    assert whole.turn_end in whole.boundaries and whole.hints == [whole.boundaries[0]]
    assert list(codec.chat([SYSTEM, *turns[:9]]).boundaries)[:8] == list(whole.boundaries)[:8]
    # Each costs a rendering of what comes before it, so that of a much longer chat they are fewer.
    longest = codec.chat([SYSTEM, *turns * 16, user("So?")])
    assert 3 <= len(longest.boundaries) <= 6 and longest.turn_end == longest.boundaries[-1]
    assert longest.hints == [longest.boundaries[0]] == whole.hints


def test_what_a_template_refuses_is_a_value_error(make_worker: MakeWorker) -> None:
    codec = make_worker().codec
    for message in ({"role": "robot", "content": "?"}, {"role": "user", "content": [{"type": "image"}]}):
        with pytest.raises(ValueError, match="refuses this chat"):
            codec.chat([message])
    with pytest.raises(ValueError, match="chat_template, tokenize: not to be set"):
        codec.chat([user("?")], chat_template="x", tokenize=True)
    with pytest.raises(ValueError, match="no Unicode"):
        codec.chat([user("\ud800")])
    with pytest.raises(ValueError, match="no Unicode"):
        codec.encode("a\udfff")


def test_a_system_message_within_a_chat_stays_at_its_place(make_worker: MakeWorker) -> None:
    """Agents send them; what comes before one has to be the prefix that it was."""
    codec = make_worker().codec
    tokenizer = deepcopy(codec._tokenizer)
    strict = TextCodec(tokenizer)
    refusal = "{%- for message in messages -%}{%- if message.role == 'system' and not loop.first -%}"
    refusal += "{{- raise_exception('The system speaks first.') -}}{%- endif -%}{%- endfor -%}"
    tokenizer.chat_template = refusal + codec.template
    chat = [SYSTEM, user("Who asks?"), {"role": "assistant", "content": "You."}, user("So?")]
    reminder = {"role": "system", "content": "Think of the time."}
    before = codec.chat(chat)
    assert strict.chat(chat) == before
    for own, role in ((codec, "system"), (strict, "user")):
        found = own.chat([*chat, reminder], breakpoints=[Breakpoint(4)])
        assert found == codec.chat([*chat, {**reminder, "role": role}], breakpoints=[Breakpoint(4)])
        assert before.turn_end is not None
        assert list(found.token_ids)[: before.turn_end] == list(before.token_ids)[: before.turn_end]
        assert found.breakpoints and found.hints[0] == before.hints[0]
    tokenizer.chat_template = "{{- raise_exception('No ' ~ messages[-1].role) -}}"
    with pytest.raises(ValueError, match="refuses this chat: No system"):
        strict.chat([*chat, reminder])


def test_a_stop_text_that_can_never_come_is_refused(make_worker: MakeWorker) -> None:
    worker = make_worker()
    with pytest.raises(ValueError, match=r"stop='.ud800' is no Unicode"):
        worker.submit("Why?", SamplingParams(stop=("\ud800",)))


def test_a_requests_own_time_to_live(make_worker: MakeWorker) -> None:
    worker = make_worker(ttl_seconds=1_000.0)
    seconds = []
    for ttl, length in ((None, 30), (300.0, 31), (3_600.0, 32)):
        worker.submit(tokens(length), GREEDY, ttl_seconds=ttl).result(60)
        ends = in_engine(
            worker, lambda e: max(n.expires_at for n in e.cache.store.table.nodes if n) - e.clock.now()
        )
        seconds.append(ends)
        worker.flush()
    assert [round(value, -2) for value in seconds] == [1_000, 300, 3_600]
    for bad in (0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="ttl_seconds"):
            worker.submit(tokens(5), GREEDY, ttl_seconds=bad)
    # Beyond any float, and for ever.
    for cached in (0, 39):
        found = worker.submit(tokens(40, 7), GREEDY, ttl_seconds=10**400).result(60)
        assert found.num_cached_tokens == cached
    assert worker.explain(tokens(40, 7)).num_cached_tokens == 39


def test_a_full_queue_refuses_all_or_none(make_worker: MakeWorker) -> None:
    worker = make_worker(max_num_seqs=2, max_queue=2)
    long = replace(GREEDY, max_tokens=2_000)
    first = worker.submit_all([tokens(9), tokens(8)], long)
    with pytest.raises(QueueFull, match="2 requests are running or waiting, 3 more exceed the 4"):
        worker.submit_all([tokens(7), tokens(6), tokens(5)], long)
    second = worker.submit(tokens(7), replace(long, n=2, temperature=1.0))
    with pytest.raises(QueueFull):
        worker.generate([tokens(6)], GREEDY)
    for stream in (*first, second):
        stream.abort()
        stream.wait(60)
    assert len(worker.generate([tokens(6 + i) for i in range(4)], GREEDY)) == 4
    with pytest.raises(ValueError, match="max_queue=-1"):
        make_worker(max_queue=-1)


def test_a_prompt_counts_once_however_many_answers_it_has(make_worker: MakeWorker) -> None:
    worker = make_worker()
    params = replace(GREEDY, n=3, temperature=0.9)
    for hit in (0, 39):
        output = worker.submit(ChatPrompt(tokens(40)), params).result(60)
        assert (output.num_prompt_tokens, output.num_cached_tokens) == (40, hit)
        assert [sample.num_generated_tokens for sample in output.samples] == [6, 6, 6]
        assert list(output.prompt_token_ids) == tokens(40)
    stats = worker.stats()
    assert (stats.cache.requests, stats.cache.input_tokens, stats.cache.hit_tokens) == (2, 80, 39)
    assert stats.engine.generated_tokens == 36
