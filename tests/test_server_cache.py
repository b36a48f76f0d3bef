"""/cache and /cache/explain."""

from typing import Any

from hybridcache.sampling_params import SamplingParams
from tests.server_setup import MakeServer, Server, http, make_server
from tests.worker_setup import in_engine, make_worker, tokens

__all__ = ["make_server", "make_worker"]


def get(server: Server, **settings: Any) -> dict[str, Any]:
    answer = http.get(f"{server.url}/cache", params=settings)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def send(server: Server, *prompts: list[int], **fields: Any) -> None:
    for prompt in prompts:
        body = {"prompt": prompt, "max_tokens": 4, "temperature": 0.0, "ignore_eos": True, **fields}
        assert http.post(f"{server.url}/v1/completions", json=body).status_code == 200


def test_the_picture_is_the_tree(make_server: MakeServer) -> None:
    # An order that time does not change between two looks.
    server = make_server(ttl_seconds=600.0, eviction="lru")
    empty = get(server)
    assert empty["nodes"] == [] and empty["num_nodes"] == 0 and empty["free_bytes"] == empty["budget_bytes"]
    shared = tokens(40, 1)
    send(server, [*shared, *tokens(9, 2)], [*shared, *tokens(9, 3)], tokens(30, 4), tokens(30, 4))
    send(server, tokens(30, 4), cache_salt="a secret")
    found = get(server)
    nodes = found["nodes"]
    by_id = {node["id"]: node for node in nodes}
    assert len(by_id) == len(nodes) == found["num_nodes"] > 6
    assert "secret" not in str(found) and len({node["namespace"] for node in nodes}) == 2
    for node in nodes:
        assert node["start"] < node["stop"]
        children = [each for each in nodes if each["parent"] == node["id"]]
        assert len(children) == node["children"] and {each["start"] for each in children} <= {node["stop"]}
        assert (node["parent"] is None) == (node["start"] == 0)
        assert 0 <= node["idle_seconds"] < 600 and 0 < node["expires_in_seconds"] <= 600
        assert not node["pinned"] and node["num_blocks"] > 0
    kept = [node for node in nodes if node["checkpoint"]]
    assert {node["checkpoint"] for node in kept} == {"final", "branch", "prompt_end"}
    assert sum(node["hits"] for node in nodes) == 1
    state = sum(found["state_bytes"].values())
    assert state == len(kept) * in_engine(server.worker, lambda e: e.cache.spec.checkpoint_bytes)
    assert state + sum(found["kv_bytes"].values()) + found["free_bytes"] == found["budget_bytes"]
    assert (found["eviction"], found["admission"]) == ("lru", "branch_final_prompt")
    assert [node["id"] for node in get(server, limit=3)["nodes"]] == [node["id"] for node in nodes[:3]]
    for limit in (0, 10**9, "x"):
        answer = http.get(f"{server.url}/cache", params={"limit": limit})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "limit"


def test_what_would_go_next_goes_next(make_server: MakeServer) -> None:
    server = make_server(eviction="lru")
    send(server, *(tokens(30 + i, i) for i in range(6)))
    first = next(node for node in get(server)["nodes"] if node["eviction_rank"] == 0)
    order = [node["eviction_rank"] for node in get(server)["nodes"]]
    num_evictable = sum(rank is not None for rank in order)
    assert order == [*range(num_evictable), *[None] * (len(order) - num_evictable)]

    def evict(engine: Any) -> tuple[int, float]:
        store, now = engine.cache.store, engine.clock.now()
        store.refresh()
        node = store.evictor.next(now, False, False)
        row, before = node.row, engine.cache.usage().free
        engine.cache._reclaimer.evict(node, now)
        return row, engine.cache.usage().free - before

    assert in_engine(server.worker, evict) == (first["id"], first["bytes_freed"])
    assert all(node["stop"] != first["stop"] or node["id"] != first["id"] for node in get(server)["nodes"])


def test_running_requests_pin_what_they_read(make_server: MakeServer) -> None:
    server = make_server()
    stream = server.worker.submit(tokens(40), SamplingParams(max_tokens=2_000, ignore_eos=True))
    reading = iter(stream)
    next(reading)
    assert any(node["pinned"] for node in get(server)["nodes"])
    stream.abort()
    stream.wait(60)


def test_explaining_a_prompt_sends_nothing(make_server: MakeServer) -> None:
    server = make_server()
    chat = [
        {"role": "system", "content": "Answer in few words."},
        {"role": "user", "content": "Why is it so?"},
    ]
    http.post(f"{server.url}/v1/chat/completions", json={"messages": chat, "max_tokens": 2})
    before = get(server)["num_nodes"]
    same = http.post(f"{server.url}/cache/explain", json={"messages": chat})
    other = http.post(f"{server.url}/cache/explain", json={"messages": chat}, headers={"x-cache-salt": "a"})
    assert same.status_code == other.status_code == 200
    prompt = server.worker.codec.chat(chat)
    assert same.json() == server.worker.explain(prompt).as_dict()
    assert other.json() == server.worker.explain(prompt, cache_salt="a").as_dict() != same.json()
    assert http.post(f"{server.url}/cache/explain", json={"prompt": "Why?"}).status_code == 200
    assert get(server)["num_nodes"] == before and server.worker.stats().cache.requests == 1
    for bad in ({}, {"prompt": "a", "messages": chat}, {"prompt": [-1]}, {"prompt": "a", "cache_salt": ""}):
        assert http.post(f"{server.url}/cache/explain", json=bad).status_code == 400, bad
