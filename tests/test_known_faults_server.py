"""Known faults of engines behind HTTP, on the tiny model."""

import asyncio
import random
import re
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from hybridcache.engine import Engine
from tests.http_client import Heard, ask
from tests.server_setup import MakeServer, Server, http, make_server, scrape, wait_idle, wait_until
from tests.worker_setup import break_part, check_idle, in_engine, make_worker, tokens

__all__ = ["make_server", "make_worker"]

TEXT = "The prefix of a prompt is what a cache can reuse, if a checkpoint was kept there. " * 2
CHAT = [{"role": "system", "content": "Answer in few words."}, {"role": "user", "content": TEXT}]
GREEDY = {"max_tokens": 4, "temperature": 0.0, "ignore_eos": True}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": TEXT, **GREEDY},
    "/v1/chat/completions": {"messages": CHAT, **GREEDY},
    "/v1/messages": {"messages": CHAT[1:], "system": CHAT[0]["content"], "max_tokens": 4},
}


def post(server: Server, path: str, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    return http.post(server.url + path, json=BODIES.get(path, {}) | fields, headers=headers)


def cached(answer: httpx.Response) -> int:
    """Prompt tokens that the usage block calls cached."""
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    found = usage.get("cache_read_input_tokens", usage.get("prompt_tokens_details", {}).get("cached_tokens"))
    assert isinstance(found, int)
    return found


def heard(server: Server, path: str, **fields: Any) -> Heard:
    return asyncio.run(ask(server.port, path, BODIES[path] | fields))


def test_case_012_a_refused_request_leaves_nothing(make_server: MakeServer) -> None:
    server = make_server()
    right = post(server, "/v1/completions").json()["choices"]
    for bad in (
        {"max_tokens": 0},
        {"prompt": [[1, 2], [99_999]]},
        {"n": 0},
        {"stop": [""]},
        {"model": "other"},
    ):
        assert post(server, "/v1/completions", **bad).status_code in (400, 404)
        check_idle(server.worker)
    assert server.worker.stats().engine.finished == 1
    assert post(server, "/v1/completions").json()["choices"] == right


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_case_033_what_never_fits_is_a_400(make_server: MakeServer, path: str, stream: bool) -> None:
    # Too long for the model, and too long for the budget alone.
    for settings in ({"max_model_len": 200}, {"budget_gb": 0.0012}):
        server = make_server(**settings)
        answer = post(server, path, max_tokens=3_000, stream=stream)
        assert answer.status_code == 400, answer.text
        assert "max_tokens=3000" in answer.json()["error"]["message"]
        assert answer.json()["error"].get("code") in (None, "context_length_exceeded")
        assert post(server, path).status_code == 200


@pytest.mark.parametrize("path", BODIES)
def test_case_024_salts_keep_tenants_apart(make_server: MakeServer, path: str) -> None:
    server = make_server()
    # Control: without a salt the second one hits.
    assert cached(post(server, path)) == 0 < cached(post(server, path))
    for header in (False, True):
        salts = ["c", "d", "c"] if header else ["a", "b", "a"]
        hits = [
            cached(
                post(server, path, {"x-cache-salt": salt}) if header else post(server, path, cache_salt=salt)
            )
            for salt in salts
        ]
        assert hits[:2] == [0, 0] and hits[2] > 0, (header, hits)


@pytest.mark.parametrize("count", [24, pytest.param(100, marks=pytest.mark.full)])
def test_case_028_dropped_connections_free_their_slots(make_server: MakeServer, count: int) -> None:
    server = make_server(max_num_seqs=4, max_num_batched_tokens=32)
    rng = random.Random(1)
    paths = ("/v1/completions", "/v1/chat/completions")

    async def drop(i: int) -> Heard:
        # Queued, in the prompt, at the first token, while decoding, behind the last token; streamed or not.
        leave: dict[str, Any] = (
            {"leave_after_seconds": 1.5 * rng.random()} if i % 2 else {"leave_after_events": rng.randrange(7)}
        )
        path = paths[i % 3 == 0]
        body = BODIES[path] | {"stream": i % 4 > 0, "max_tokens": 400 if i % 3 else 5}
        if path == "/v1/completions":
            body["prompt"] = tokens(30 + i, i)
        return await ask(server.port, path, body, **leave)

    async def drop_all() -> list[Heard]:
        return await asyncio.gather(*(drop(i) for i in range(count)))

    found = asyncio.run(drop_all())
    wait_idle(server.worker)
    check_idle(server.worker)
    told = [c["finish_reason"] for each in found for c in each.choices if c["finish_reason"]]
    stats = server.worker.stats().engine
    assert stats.aborted + len(told) <= stats.finished <= count and stats.aborted > count // 4
    assert post(server, "/v1/completions").status_code == 200


def test_case_028_whoever_waits_for_the_whole_is_missed_too(make_server: MakeServer) -> None:
    server = make_server()
    for path in ("/v1/completions", "/v1/chat/completions"):
        body = BODIES[path] | {"max_tokens": 9_000}
        asyncio.run(ask(server.port, path, body, leave_after_seconds=0.3))
        wait_idle(server.worker, 20)
    stats = server.worker.stats().engine
    assert stats.aborted == 2 and stats.generated_tokens < 9_000
    check_idle(server.worker)


def test_case_041_equal_ids_of_clients_do_not_meet(make_server: MakeServer) -> None:
    server = make_server()

    async def twice() -> list[Heard]:
        body = BODIES["/v1/completions"] | {"request_id": "same", "stream": True, "max_tokens": 40}
        headers = {"X-Request-Id": "same"}
        return await asyncio.gather(
            *(ask(server.port, "/v1/completions", body, headers=headers) for _ in range(2))
        )

    first, second = asyncio.run(twice())
    assert first.done and second.done and first.text() == second.text() != ""
    assert first.events[0]["id"] != second.events[0]["id"]
    third = post(server, "/v1/completions", {"X-Request-Id": "same"}, request_id="same")
    assert third.status_code == 200 and third.headers["x-request-id"] == "same"
    wait_idle(server.worker)
    assert server.worker.stats().engine.finished == 3


@pytest.mark.parametrize("path", BODIES)
def test_case_045_a_bad_salt_is_refused(make_server: MakeServer, path: str) -> None:
    server = make_server()
    for bad in ("", 5, "x" * 10_000, "x" * 257, True, ["a"], {"a": 1}):
        answer = post(server, path, cache_salt=bad)
        assert answer.status_code == 400 and "cache_salt" in answer.json()["error"]["message"], bad
    for header in ("", "x" * 257):
        assert post(server, path, {"x-cache-salt": header}, cache_salt="fine").status_code == 400
    assert server.worker.stats().cache.requests == 0
    # Null is none; a space is a salt, and "a " is not "a".
    assert cached(post(server, path, cache_salt=None)) == 0 < cached(post(server, path))
    assert [cached(post(server, path, cache_salt=salt)) for salt in (" ", "a", "a ")] == [0, 0, 0]
    assert cached(post(server, path, cache_salt="a ")) > 0
    # What the proxy says counts, whatever the body says.
    assert cached(post(server, path, {"x-cache-salt": "t"}, cache_salt="a")) == 0
    assert cached(post(server, path, {"x-cache-salt": "t"}, cache_salt="u")) > 0


def test_case_045_salt_and_prompt_are_not_joined(make_server: MakeServer) -> None:
    server = make_server()
    for salt, prompt in (("ab", "c" + TEXT), ("a", "bc" + TEXT), ("abc", TEXT)):
        assert cached(post(server, "/v1/completions", cache_salt=salt, prompt=prompt)) == 0


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("part", "name"),
    [("runner", "execute"), ("sampler", "next_token"), ("cache", "restored"), ("cache", "computed")],
)
def test_case_046_a_failure_is_no_empty_answer(
    make_server: MakeServer, path: str, part: str, name: str
) -> None:
    server = make_server()
    fields: dict[str, Any] = {"temperature": 0.7} | ({} if path == "/v1/messages" else {"seed": 1})
    for stream in (False, True):
        break_part(server.worker, part, name, 1)
        answer = post(server, path, stream=stream, **fields)
        # Before the first byte there is a status to say it with.
        assert answer.status_code == 500 and "planted" in answer.json()["error"]["message"]
        assert answer.json()["error"]["type"] in ("internal_server_error", "api_error")
        check_idle(server.worker)
    assert server.worker.stats().engine.failed == 2
    assert post(server, path, **fields).status_code == 200


@pytest.mark.parametrize("path", BODIES)
def test_case_046_a_failure_in_a_stream_is_its_last_event(make_server: MakeServer, path: str) -> None:
    server = make_server()
    break_part(server.worker, "runner", "execute", 4)
    found = heard(server, path, stream=True, max_tokens=20)
    assert found.status == 200 and not found.done and len(found.events) >= 3
    last = found.events[-1]
    assert "planted" in last["error"]["message"]
    *_, before, data = found.body.rstrip().splitlines()
    assert data.startswith("data: {") and before == ("event: error" if path == "/v1/messages" else "")
    wait_idle(server.worker)
    check_idle(server.worker)
    assert post(server, path).status_code == 200


def test_case_046_a_failed_insert_is_an_answer_and_a_dead_engine_is_none(make_server: MakeServer) -> None:
    server = make_server()
    break_part(server.worker, "cache", "finish", 1)
    with pytest.warns(UserWarning, match="its tokens are not kept"):
        assert post(server, "/v1/completions").status_code == 200
    assert http.get(f"{server.url}/health").status_code == 200
    break_part(server.worker, "scheduler", "schedule", 1)
    for path in (*BODIES, "/flush_cache"):
        answer = post(server, path)
        assert answer.status_code == 503 and "engine's thread died" in answer.json()["error"]["message"], path
    for path in ("/health", "/metrics"):
        assert http.get(server.url + path).status_code == 503


@pytest.mark.parametrize("num_top", [1, 5])
def test_case_047_echoed_logprobs_are_the_whole_prompts(make_server: MakeServer, num_top: int) -> None:
    server = make_server()
    settings: dict[str, Any] = {"prompt": tokens(117), "echo": True, "logprobs": num_top}
    cold = post(server, "/v1/completions", **settings)
    assert cached(post(server, "/v1/completions", prompt=tokens(117)[:112])) == 0
    plain = post(server, "/v1/completions", prompt=tokens(117), logprobs=num_top)
    assert cached(plain) >= 111 and cached(cold) == 0
    hit = post(server, "/v1/completions", **settings)
    assert cached(hit) == 0 and hit.json()["choices"] == cold.json()["choices"]
    logprobs = hit.json()["choices"][0]["logprobs"]
    assert {len(values) for values in logprobs.values()} == {117 + 4}
    assert logprobs["token_logprobs"][117:] == plain.json()["choices"][0]["logprobs"]["token_logprobs"]


def test_case_064_workers_of_one_process_do_not_collide(make_server: MakeServer) -> None:
    first, second = make_server(), make_server(block_size=32, eviction="lru")
    post(first, "/v1/completions")
    assert scrape(first)["prompt_tokens_total"] > 0 == scrape(second)["prompt_tokens_total"]
    first.close()
    first.worker.close()
    third = make_server()
    post(third, "/v1/completions", n=2)
    post(second, "/v1/chat/completions")
    assert scrape(third)["request_success_total{finished_reason=length}"] == 2
    assert scrape(second)["request_success_total{finished_reason=length}"] == 1


@pytest.mark.parametrize("hit", [False, True])
def test_case_093_eight_usage_blocks(make_server: MakeServer, hit: bool) -> None:
    for path in ("/v1/completions", "/v1/chat/completions"):
        server, blocks = make_server(), []
        if hit:
            post(server, path)
        for stream, options in ((False, None), (True, {"include_usage": True}), (True, None), (True, {})):
            if not hit:
                server.worker.flush()
            found = heard(
                server, path, stream=stream, **({} if options is None else {"stream_options": options})
            )
            asked = not stream or bool(options)
            assert (found.usage is not None) == asked
            if found.usage is not None:
                blocks.append(found.usage)
            if stream and asked:
                assert found.events[-1]["choices"] == [] and found.events[-1]["usage"] == found.usage
                assert all(event["usage"] is None for event in found.events[:-1])
            elif stream:
                assert not any("usage" in event or not event["choices"] for event in found.events)
        assert len(blocks) == 2 and blocks[0] == blocks[1], path
        number = blocks[0]["prompt_tokens_details"]["cached_tokens"]
        assert number == (blocks[0]["prompt_tokens"] - 1 if hit else 0)


def test_case_094_nothing_is_counted_twice(make_server: MakeServer) -> None:
    server = make_server(max_num_batched_tokens=32, max_num_seqs=4)
    first = post(server, "/v1/completions").json()["usage"]

    def preempt(engine: Engine) -> int:
        for request in list(engine.scheduler.running):
            engine.scheduler.preempt(request, engine.clock.now())
        return engine.scheduler.stats.num_preemptions

    stream = server.worker.submit(TEXT + "More of it.")
    seen: list[dict[str, float]] = []
    while in_engine(server.worker, preempt) < 4 and not stream.ended:
        seen.append(scrape(server))
    stream.abort()
    output = stream.result(60)
    last = scrape(server)
    for before, after in zip(seen, [*seen[1:], last], strict=True):
        grown = {name for name in before if re.search("_total|_count|_bucket", name)}
        assert all(0 <= before[name] <= after[name] for name in grown)
    assert last["num_preemptions_total"] >= 1
    assert last["prefix_cache_queries_total"] == first["prompt_tokens"] + output.num_prompt_tokens
    assert last["prefix_cache_hits_total"] == output.num_cached_tokens > 0
    assert last["time_to_first_token_seconds_count"] <= 2 == last["e2e_request_latency_seconds_count"]


def gauges(server: Server) -> tuple[float, float, float]:
    seen = scrape(server)
    kv, state = (
        sum(
            seen[f"cache_bytes{{holder={holder},pool={pool}}}"]
            for holder in ("evictable", "pinned", "leased")
        )
        for pool in ("kv", "state")
    )
    assert kv + state + seen["cache_free_bytes"] == seen["cache_budget_bytes"]
    return kv, state, seen["state_checkpoints"]


def test_case_099_flush_frees_both_pools(make_server: MakeServer) -> None:
    server = make_server()
    prompts = [tokens(20 + i, i) for i in range(25)]
    post(server, "/v1/completions", prompt=prompts)
    assert min(gauges(server)) > 0 and gauges(server)[2] >= 50
    tenant = post(server, "/v1/completions", prompt=prompts[0], cache_salt="a")
    assert tenant.status_code == 200
    before = gauges(server)
    # A proxy that knows the tenant lets it forget nothing of others.
    assert post(server, "/flush_cache", {"x-cache-salt": "b"}, cache_salt="a").status_code == 200
    assert gauges(server) == before
    assert post(server, "/flush_cache", cache_salt="a").status_code == 200
    assert 0 < gauges(server)[0] < before[0] and 0 < gauges(server)[2] < before[2]
    assert cached(post(server, "/v1/completions", prompt=prompts[0], cache_salt="a")) == 0
    assert cached(post(server, "/v1/completions", prompt=prompts[0])) > 0
    assert post(server, "/flush_cache").status_code == 200
    assert gauges(server) == (0, 0, 0)
    assert cached(post(server, "/v1/completions", prompt=prompts)) == 0


def test_case_115_a_prompt_counts_once(make_server: MakeServer) -> None:
    server, figures = make_server(), []
    for _ in range(2):
        for n in (4, 1):
            usage = post(server, "/v1/chat/completions", n=n).json()["usage"]
            figures.append((usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]))
            assert usage["completion_tokens"] == 4 * n
    (number, none), *others = figures
    assert none == 0 and {prompt for prompt, _ in figures} == {number}
    assert others[-1][1] >= number - 6 and all(0 < hit < number for _, hit in others)
    together = post(server, "/v1/completions", prompt=[tokens(60)] * 4, n=2)
    assert together.json()["usage"]["prompt_tokens"] == 240
    assert len({choice["text"] for choice in together.json()["choices"]}) == 1


def test_case_116_a_gauge_for_each_pool(make_server: MakeServer) -> None:
    server = make_server(max_num_seqs=16)

    async def hold(count: int) -> Sequence[Heard]:
        body = BODIES["/v1/completions"] | {"max_tokens": 2_000, "stream": True}
        asking = [
            asyncio.create_task(ask(server.port, "/v1/completions", body | {"prompt": tokens(20, i)}))
            for i in range(count)
        ]
        await asyncio.to_thread(wait_until, lambda: scrape(server)["num_requests_running"] == count)
        seen = await asyncio.to_thread(scrape, server)
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        assert 0 < seen["kv_cache_usage_perc"] < seen["state_cache_usage_perc"] < 1
        assert seen["cache_bytes{holder=leased,pool=state}"] > seen["cache_bytes{holder=leased,pool=kv}"]
        return []

    asyncio.run(hold(16))
    wait_idle(server.worker)
    idle = scrape(server)
    assert idle["kv_cache_usage_perc"] == idle["state_cache_usage_perc"] == 0
    assert min(gauges(server)) > 0


@pytest.mark.parametrize("path", BODIES)
def test_case_045_a_salt_in_the_header_is_the_one_in_the_body(make_server: MakeServer, path: str) -> None:
    """Read as UTF-8; two of them are one too many, since one may be the client's."""
    server, salt = make_server(), "\N{CYRILLIC SMALL LETTER ZHE}" * 200
    header = {b"x-cache-salt": salt.encode()}
    assert cached(http.post(server.url + path, json=BODIES[path], headers=header)) == 0
    assert cached(post(server, path, cache_salt=salt.encode().decode("latin-1")[:256])) == 0
    assert cached(post(server, path, cache_salt=salt)) > 0
    for wrong in ([("x-cache-salt", "a"), ("x-cache-salt", "b")], [(b"x-cache-salt", b"\xff")]):
        assert http.post(server.url + path, json=BODIES[path], headers=wrong).status_code == 400
    twice = [("x-cache-salt", "a"), ("x-cache-salt", "a")]
    assert http.post(server.url + path, json=BODIES[path], headers=twice).status_code == 200


def test_case_099_a_flush_of_something_else_flushes_nothing(make_server: MakeServer) -> None:
    server = make_server()
    assert cached(post(server, "/v1/completions")) == 0
    for wrong in ({"salt": "a"}, {"namespace": "a", "cache_salt": "a"}, {"cache_salt": ""}):
        answer = http.post(f"{server.url}/flush_cache", json=wrong)
        assert answer.status_code == 400, answer.text
    assert cached(post(server, "/v1/completions")) > 0
