"""Replay a trace at its own times against a server: ``python -m hybridcache.experiments.serve_bench TRACE``.

Every request is sent at (its arrival / speed) after a fixed start, however late others were; how late it was
is in the table. The answers that later prompts repeat are the trace's and not this model's, so reuse ends
where a prompt ended: a lower bound. Token ids are taken modulo the vocabulary.
"""

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.request import Request, urlopen
from uuid import uuid4

import numpy as np

from hybridcache.experiments.sse_client import Address, Answer, complete, post
from hybridcache.experiments.trace_command import add_source, trace_of
from hybridcache.experiments.traces.request import Trace, TraceRequest

Figures = dict[str, float]
FIRST_TOKEN = 16
"""Token ids below are special in many vocabularies and are not sent."""
QUANTILES = {"p50": 50, "p95": 95, "p99": 99}


async def replay(
    address: Address,
    requests: Sequence[TraceRequest],
    speed: float,
    vocabulary: int,
    *,
    cache: bool,
    key: str | None,
) -> Figures:
    """Send all requests; what came of it.

    ``vocabulary`` is the server's; ``cache`` False gives every request a salt of its own, so that nothing is
    reused; ``key`` is the server's API key.
    """
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    # The first request pays for what a server makes on first use.
    await complete(address, {"prompt": [FIRST_TOKEN], "max_tokens": 1}, headers)
    await post(address, "/flush_cache", {}, headers)
    start = perf_counter() + 0.1
    answers = await asyncio.gather(
        *(
            _send(address, request, start + request.arrival / speed, vocabulary, headers, cache=cache)
            for request in requests
        )
    )
    return figures(answers, [start + request.arrival / speed for request in requests])


async def _send(
    address: Address,
    request: TraceRequest,
    at: float,
    vocabulary: int,
    headers: Mapping[str, str],
    *,
    cache: bool,
) -> Answer:
    await asyncio.sleep(max(at - perf_counter(), 0.0))
    prompt = FIRST_TOKEN + request.prompt.astype(np.int64) % (vocabulary - FIRST_TOKEN)
    body: dict[str, Any] = {
        "prompt": prompt.tolist(),
        "max_tokens": len(request.tokens) - request.num_prompt,
        "temperature": 0.0,
        "ignore_eos": True,
    }
    return await complete(address, body if cache else body | {"cache_salt": uuid4().hex}, headers)


def figures(answers: Sequence[Answer], planned: Sequence[float]) -> Figures:
    """Seconds and tokens; of what failed only the number."""
    whole = [answer for answer in answers if answer.error is None]
    found: Figures = {"requests": len(answers), "failed": len(answers) - len(whole)}
    lateness = [answer.sent - at for answer, at in zip(answers, planned, strict=True)]
    seconds = {
        "ttft": [answer.events[0] - answer.sent for answer in whole if answer.events],
        "itl": [float(gap) for answer in whole for gap in np.diff(answer.events)],
        "e2e": [answer.ended - answer.sent for answer in whole],
        "sent_late": lateness,
    }
    for name, values in seconds.items():
        if values:
            found |= {f"{name}_{key}": float(np.percentile(values, q)) for key, q in QUANTILES.items()}
            found[f"{name}_mean"] = float(np.mean(values))
    if not whole:
        return found
    prompt = sum(answer.usage["prompt_tokens"] for answer in whole)
    cached = sum(answer.usage["prompt_tokens_details"]["cached_tokens"] for answer in whole)
    generated = sum(answer.usage["completion_tokens"] for answer in whole)
    took = max(answer.ended for answer in whole) - min(answer.sent for answer in answers)
    return found | {
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "cached_share": cached / prompt,
        "generated_tokens": generated,
        "seconds": took,
        "requests_per_second": len(whole) / took,
        "output_tokens_per_second": generated / took,
    }


def table(columns: Mapping[str, Figures]) -> str:
    """A row a figure, a column a run."""
    names = list(dict.fromkeys(name for figures in columns.values() for name in figures))
    lines = [" " * 26 + "".join(f"{column:>14}" for column in columns)]
    for name in names:
        cells = (figures.get(name) for figures in columns.values())
        text = (
            "" if cell is None else f"{cell:,.0f}" if cell == int(cell) else f"{cell:.4g}" for cell in cells
        )
        lines.append(f"{name:26}" + "".join(f"{cell:>14}" for cell in text))
    return "\n".join(lines)


def vocabulary_of(url: str, key: str | None) -> int:
    """Token ids that the server takes lie below. Raises OSError."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    with urlopen(Request(f"{url}/v1/models", headers=headers), timeout=30) as answer:
        return int(json.load(answer)["data"][0]["vocab_size"])


def selected(trace: Trace, limit: int | None, max_model_len: int) -> list[TraceRequest]:
    """The first requests that the server could answer. Raises ValueError when there are none."""
    found = [request for request in trace if len(request.tokens) <= max_model_len][:limit]
    if not found:
        raise ValueError(f"{trace.name} has no request of at most {max_model_len} tokens")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run with the cache off, then on, and print both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_source(parser)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the server (default %(default)s)")
    parser.add_argument(
        "--speed", type=float, default=1.0, help="arrivals are so many times as close together"
    )
    parser.add_argument("--max-tokens", type=int, default=8_192, help="longer requests are left out")
    parser.add_argument("--requests", type=int, help="send so many only")
    parser.add_argument(
        "--cache", choices=("on", "off", "both"), default="both", help="off: a salt for each request"
    )
    parser.add_argument("--api-key", help="of the server")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args(arguments)
    try:
        if not options.speed > 0:
            raise ValueError(f"--speed {options.speed}: give a number above 0")
        address = Address.of(options.url)
        requests = selected(
            trace_of(options.source, options.kind, options.settings), options.requests, options.max_tokens
        )
        vocabulary = vocabulary_of(options.url, options.api_key)
        columns = {}
        for cache in ("off", "on") if options.cache == "both" else (options.cache,):
            run = replay(
                address, requests, options.speed, vocabulary, cache=cache == "on", key=options.api_key
            )
            columns[f"cache {cache}"] = asyncio.run(run)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(table(columns))
    if options.json is not None:
        options.json.write_text(json.dumps(columns, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
