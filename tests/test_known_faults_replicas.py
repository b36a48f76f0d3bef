"""Known faults of routers, as far as a server has a part in them: what it tells of its cache, and to whom."""

import threading
from typing import Any

import pytest

from tests.server_setup import MakeServer, Server, http, make_server
from tests.worker_setup import make_worker, tokens

__all__ = ["make_server", "make_worker"]

GREEDY = {"max_tokens": 4, "temperature": 0.0, "ignore_eos": True}
PROMPT = tokens(90)


def post(server: Server, path: str, headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    answer = http.post(server.url + path, json=fields, headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def overlap(server: Server, headers: dict[str, str] | None = None, **fields: Any) -> int:
    """What a router asks a replica: how much of the prompt it would not compute."""
    found = post(server, "/cache/explain", headers, **({"prompt": PROMPT} | fields))
    return int(found["num_cached_tokens"])


def send(server: Server, headers: dict[str, str] | None = None, **fields: Any) -> tuple[str, int]:
    """The answer, and what was cached of its prompt."""
    found = post(server, "/v1/completions", headers, **({"prompt": PROMPT} | GREEDY | fields))
    return found["choices"][0]["text"], found["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("in_header", [False, True])
def test_case_085_a_replica_scores_a_prompt_with_its_salt(make_server: MakeServer, in_header: bool) -> None:
    """Tenant a warms P on the first of two: b is told of no overlap there, and finds none."""
    first, second = make_server(), make_server()

    def salted(salt: str) -> dict[str, Any]:
        return {"headers": {"x-cache-salt": salt}} if in_header else {"cache_salt": salt}

    send(first, **salted("a"))
    assert overlap(first, **salted("b")) == overlap(first) == overlap(second, **salted("a")) == 0
    assert overlap(first, **salted("a")) == send(first, **salted("a"))[1] == 89
    # Also where both say something: the proxy's word counts, as it does for the request itself.
    assert overlap(first, {"x-cache-salt": "a"}, cache_salt="b") == 89
    assert overlap(first, {"x-cache-salt": "b"}, cache_salt="a") == 0 == send(first, **salted("b"))[1]


def test_case_105_workers_of_one_process_share_nothing(make_server: MakeServer) -> None:
    """The same prompts to two of one model: each has its own tree, and one that goes takes all it had."""

    def threads() -> int:
        return sum(thread.name == "hybridcache-engine" for thread in threading.enumerate())

    before = threads()
    first, second = make_server(), make_server()
    right, cold = send(first)
    assert cold == 0 and overlap(second) == 0 < overlap(first)
    assert post(second, "/flush_cache") == {"status": "ok"} and overlap(first) == 89
    assert send(second) == (right, 0)
    first.close()
    first.worker.close()
    assert threads() == before + 1
    assert send(second) == (right, 89)
    third = make_server()
    assert send(third) == (right, 0)


def test_case_124_what_a_replica_tells_ends_with_what_it_has(make_server: MakeServer) -> None:
    """P is warm on the first of two, flushed, warm again, evicted: who asks is told; no answer is wrong."""
    first, second = make_server(budget_gb=0.0012), make_server(budget_gb=0.0012)
    right, _ = send(first)
    assert overlap(first) == 89 > overlap(second)
    post(first, "/flush_cache")
    assert overlap(first) == 0 == overlap(second)
    # Sent there all the same, as by a router with an old index: that costs time once, and nothing else.
    assert [send(first) for _ in range(10)] == [(right, 0), *[(right, 89)] * 9]
    assert overlap(first) == 89
    other = 0
    while overlap(first) and other < 40:
        other += 1
        send(first, prompt=tokens(150, other))
    assert other > 1 and overlap(first) == send(first)[1] < 89
    assert send(second) == (right, 0)
