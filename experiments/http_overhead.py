"""What HTTP costs: ``python -m hybridcache.experiments.http_overhead``, as JSON.

The same prompts through `Worker.generate` and as concurrent streams through a server in this process, by
turns; the clients are a process of their own, as they are in life. Nothing is reused. By the clock, and by
the processor's time of this process, since machines are shared: there all that HTTP takes counts, also what
runs beside the model.
"""

import argparse
import asyncio
import json
import multiprocessing
import socket
import threading
from collections.abc import Sequence
from statistics import median
from time import perf_counter, process_time

import numpy as np
import uvicorn

from hybridcache.experiments.sse_client import Address, Answer, complete
from hybridcache.sampling_params import SamplingParams
from hybridcache.server.app import build_app
from hybridcache.server.settings import ServerSettings
from hybridcache.worker import Worker

PROMPT_TOKENS = 64
Prompts = list[list[int]]


def through_worker(worker: Worker, prompts: Prompts, answer: int) -> float:
    """Generated tokens a second."""
    start = perf_counter()
    outputs = worker.generate(prompts, SamplingParams(max_tokens=answer, temperature=0.0, ignore_eos=True))
    return sum(len(output.token_ids) for output in outputs) / (perf_counter() - start)


def through_http(pool: "multiprocessing.pool.Pool", port: int, prompts: Prompts, answer: int) -> float:
    """The same, all prompts at once; the clients' clock counts."""
    return float(pool.apply(_clients, (port, prompts, answer)))


def _clients(port: int, prompts: Prompts, answer: int) -> float:
    async def ask_all() -> list[Answer]:
        settings = {"max_tokens": answer, "temperature": 0.0, "ignore_eos": True}
        address = Address("127.0.0.1", port)
        return await asyncio.gather(*(complete(address, {"prompt": p, **settings}, {}) for p in prompts))

    answers = asyncio.run(ask_all())
    assert not any(found.error for found in answers), [found.error for found in answers]
    took = max(found.ended for found in answers) - min(found.sent for found in answers)
    return sum(int(found.usage["completion_tokens"]) for found in answers) / took


def measure(worker: Worker, streams: int, answer: int, repeats: int) -> dict[str, float]:
    """Medians over turns, and their ratio."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(build_app(worker, ServerSettings()), log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
    thread.start()
    rng = np.random.default_rng()
    rates: dict[str, list[float]] = {"worker": [], "http": []}
    per_cpu: dict[str, list[float]] = {"worker": [], "http": []}
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for repeat in range(repeats + 1):
            for name in ("worker", "http") if repeat % 2 else ("http", "worker"):
                prompts = rng.integers(16, 4_096, (streams, PROMPT_TOKENS)).tolist()
                start = process_time()
                rate = (
                    through_worker(worker, prompts, answer)
                    if name == "worker"
                    else through_http(pool, listening.getsockname()[1], prompts, answer)
                )
                if repeat:  # the first turn pays for what is made on first use
                    rates[name].append(rate)
                    per_cpu[name].append(streams * answer / (process_time() - start))
    server.should_exit = True
    thread.join()
    return {
        "streams": streams,
        **{f"{name}_tokens_per_second": median(values) for name, values in rates.items()},
        "http_to_worker": _ratio(rates),
        **{f"{name}_tokens_per_cpu_second": median(values) for name, values in per_cpu.items()},
        "http_to_worker_cpu": _ratio(per_cpu),
    }


def _ratio(rates: dict[str, list[float]]) -> float:
    return median(http / own for http, own in zip(rates["http"], rates["worker"], strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="tiny-30m", help="a preset or a checkpoint folder")
    parser.add_argument("--threads", type=int, default=1, help="torch's")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--answer", type=int, default=32, help="tokens of each answer")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    with Worker(options.model, budget_gb=1.0, threads=options.threads) as worker:
        print(json.dumps(measure(worker, options.streams, options.answer, options.repeats), indent=2))


if __name__ == "__main__":
    main()
