"""Hundreds of clients at once, many of whom go away: all others are answered, and nothing is left behind."""

import asyncio
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hybridcache.sampling_params import SamplingParams
from hybridcache.worker import RequestOutput, Worker
from tests.http_client import Heard, ask
from tests.server_setup import MakeServer, Server, make_server, scrape, wait_idle, wait_until
from tests.worker_setup import check_idle, make_worker, tokens

__all__ = ["make_server", "make_worker"]

GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
SHARED = [tokens(48, 90), tokens(80, 91)]
PROMPTS = [SHARED[i % 2][: 30 + i % 40] + tokens(1 + i % 37, i % 12) for i in range(30)]
KINDS: list[dict[str, Any]] = [
    {"max_tokens": 6},
    {"max_tokens": 1},
    {"max_tokens": 5, "n": 2, "temperature": 0.9, "seed": 4},
    {"max_tokens": 6, "stop": ["e"]},
]
MOST_GROWTH = 40 * 2**20
"""Bytes of the process that a second storm may add."""


class Right(NamedTuple):
    """An answer without a server, cold."""

    texts: list[str | None]
    generated: int
    reasons: list[str]

    @classmethod
    def of(cls, output: RequestOutput) -> "Right":
        samples = output.samples
        generated = sum(sample.num_generated_tokens for sample in samples)
        return cls([s.text for s in samples], generated, [s.finish_reason for s in samples])


def right_answers() -> list[list[Right]]:
    """By kind and prompt."""
    with Worker("tiny", budget_gb=0.02, threads=1, cache=False) as cold:
        params = [
            replace(
                GREEDY,
                **{name: value for name, value in kind.items() if name != "stop"},
                stop=tuple(kind.get("stop", ())),
            )
            for kind in KINDS
        ]
        return [[Right.of(output) for output in cold.generate(PROMPTS, each)] for each in params]


class Storm(NamedTuple):
    """What came of one."""

    heard: list[Heard]
    right: list[Right]


async def storm(port: int, right: list[list[Right]], count: int, rng: random.Random, *, drops: bool) -> Storm:
    """``count`` clients; every third drops its connection: at once, after a while, or after some events."""
    asking, expected = [], []
    for i in range(count):
        prompt, kind, stream = rng.randrange(len(PROMPTS)), rng.randrange(len(KINDS)), rng.random() < 0.8
        body = {
            "prompt": PROMPTS[prompt],
            "temperature": 0.0,
            "ignore_eos": True,
            **KINDS[kind],
            "stream": stream,
        }
        if stream:
            body["stream_options"] = {"include_usage": True}
        leave: dict[str, Any] = {}
        if drops and i % 3 == 0:
            leave = rng.choice(
                [
                    {"leave_after_seconds": 0.0},
                    {"leave_after_seconds": 2 * rng.random()},
                    {"leave_after_events": rng.randrange(9)},
                ]
            )
        asking.append(_later(rng.random(), ask(port, "/v1/completions", body, **leave)))
        expected.append(right[kind][prompt])
    return Storm(await asyncio.gather(*asking), expected)


async def _later(seconds: float, asking: Any) -> Heard:
    await asyncio.sleep(seconds)
    found: Heard = await asking
    return found


def check_answers(found: Storm) -> None:
    """Whoever stayed got the right answer in whole; whoever left, the beginning of it."""
    for heard, right in zip(found.heard, found.right, strict=True):
        texts = [heard.text(i) for i in range(len(right.texts))]
        if heard.left:
            assert all((whole or "").startswith(text) for whole, text in zip(right.texts, texts, strict=True))
            continue
        assert heard.status == 200 and texts == right.texts, (heard, right)
        assert heard.usage is not None and heard.usage["completion_tokens"] == right.generated
        reasons = {c["index"]: c["finish_reason"] for c in heard.choices if c["finish_reason"]}
        assert [reasons[i] for i in range(len(right.reasons))] == right.reasons


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def num_tasks(server: Server) -> int:
    """Tasks and connections that the server's event loop has."""
    return len(server._server.server_state.connections) + len(server._server.server_state.tasks)


@pytest.mark.parametrize("count", [60, pytest.param(500, marks=pytest.mark.full)])
def test_a_third_of_the_clients_go_away(make_server: MakeServer, count: int) -> None:
    right = right_answers()
    # So small that it evicts all the time.
    server = make_server(budget_gb=0.0012, max_num_batched_tokens=96, max_num_seqs=16)
    worker, levels = server.worker, []
    for attempt in range(3 if count > 100 else 2):
        found = asyncio.run(storm(server.port, right, count, random.Random(attempt), drops=True))
        check_answers(found)
        assert sum(heard.left for heard in found.heard) > count // 8
        wait_idle(worker)
        check_idle(worker)
        wait_until(lambda: num_tasks(server) == 0)
        levels.append(resident_bytes())
    stats = worker.stats()
    assert stats.engine.aborted > 0 and stats.engine.failed == 0 and stats.cache.evictions > 0
    assert levels[-1] - levels[-2] < MOST_GROWTH


@pytest.mark.parametrize("count", [40, pytest.param(300, marks=pytest.mark.full)])
def test_counters_equal_what_the_clients_saw(make_server: MakeServer, count: int) -> None:
    right = right_answers()
    # Two workers in one process, each with a storm of its own, at the same time.
    servers = [make_server(budget_gb=gb, max_num_seqs=16) for gb in (0.0012, 0.2)]

    async def both() -> list[Storm]:
        return await asyncio.gather(
            *(
                storm(server.port, right, count, random.Random(seed), drops=False)
                for seed, server in enumerate(servers)
            )
        )

    for server, found in zip(servers, asyncio.run(both()), strict=True):
        check_answers(found)
        wait_idle(server.worker)
        usages = [heard.usage for heard in found.heard if heard.usage]
        seen = scrape(server)
        assert len(usages) == count
        prompt = sum(usage["prompt_tokens"] for usage in usages)
        cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
        generated = sum(usage["completion_tokens"] for usage in usages)
        assert seen["prompt_tokens_total"] == seen["prefix_cache_queries_total"] == prompt
        assert seen["prompt_tokens_cached_total"] == seen["prefix_cache_hits_total"] == cached > 0
        assert seen["generation_tokens_total"] == generated
        lost = sum(value for name, value in seen.items() if name.startswith("lost_tokens_total"))
        assert cached + lost == prompt
        for reason in ("stop", "length", "abort", "error"):
            told = sum(choice["finish_reason"] == reason for h in found.heard for choice in h.choices)
            assert seen[f"request_success_total{{finished_reason={reason}}}"] == told, reason
        choices = sum(len(each.reasons) for each in found.right)
        for name in ("e2e_request_latency_seconds", "request_queue_time_seconds"):
            assert seen[f"{name}_count"] == choices, name
        assert (
            seen["inter_token_latency_seconds_count"] + seen["time_to_first_token_seconds_count"] == generated
        )
        assert seen["num_requests_running"] == seen["num_requests_waiting"] == 0
        held = sum(value for name, value in seen.items() if name.startswith("cache_bytes"))
        assert held + seen["cache_free_bytes"] == seen["cache_budget_bytes"]
        admitted = sum(v for name, v in seen.items() if name.startswith("state_checkpoints_admitted_total"))
        assert admitted >= seen["state_checkpoints"] > 0
        resumed = sum(v for name, v in seen.items() if name.startswith("state_checkpoint_hits_total"))
        assert 0 < resumed <= len(usages)
        saved = sum(v for name, v in seen.items() if name.startswith("state_checkpoint_flops_saved_total"))
        assert saved == pytest.approx(seen["prefill_flops_saved_total"])
    small, large = (scrape(server) for server in servers)
    assert small["eviction_duration_seconds_count"] > 0 == large["eviction_duration_seconds_count"]
    assert small["evicted_tokens_total"] > 0 == large["evicted_tokens_total"]
