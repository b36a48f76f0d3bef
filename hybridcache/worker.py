"""The Python serving API: prompts in, answers out, over one model and one prefix cache."""

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar, cast
from uuid import uuid4

import torch

from hybridcache.cache_picture import CachePicture, picture
from hybridcache.chat_outline import Message
from hybridcache.engine import Engine
from hybridcache.engine_thread import EngineThread, WorkerClosed
from hybridcache.explainer import Explainer
from hybridcache.explanation import Explanation, TemplateTotals
from hybridcache.hardware import HardwareProfile
from hybridcache.intake import Intake, Prompt, checked_salt, prompts_of
from hybridcache.job import Job
from hybridcache.kernels.dispatch import AnyLinearMethod, build_ops, describe
from hybridcache.models.load import LoadedModel, load_model
from hybridcache.namespace import Namespace
from hybridcache.open_jobs import OpenJobs, QueueFull
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.prefix_cache import PrefixCache, RequestTooLarge
from hybridcache.prices import Prices
from hybridcache.request_output import RequestOutput
from hybridcache.sampling_params import SamplingParams
from hybridcache.scheduler import SchedulerConfig
from hybridcache.served_model import (
    MonotonicClock,
    build_engine,
    check_flags,
    check_numbers,
    checkpoint_folder,
    default_params,
    exchange_weights,
    model_length,
    policy_settings,
)
from hybridcache.stream import Stream
from hybridcache.text_codec import ChatPrompt, TextCodec, is_chat
from hybridcache.traffic import Traffic
from hybridcache.worker_stats import WorkerStats

__all__ = [
    "QueueFull",
    "RequestOutput",
    "RequestTooLarge",
    "SamplingParams",
    "Stream",
    "Worker",
    "WorkerClosed",
]

T = TypeVar("T")
log = logging.getLogger(__name__)


class Worker:
    """Serves one model in this process. All methods may be called from any thread, and from event loops.

    ::

        with Worker("tiny", budget_gb=1.0) as worker:
            outputs = worker.generate(["Once upon a time"], SamplingParams(max_tokens=32, temperature=0.0))

    ``model`` is a preset (`hybridcache.models.presets.PRESETS`) or a folder with a checkpoint of
    transformers; ``budget_gb`` (1e9 bytes) is shared by KV blocks and checkpoints, weights not counted;
    ``max_num_batched_tokens`` are the tokens of a step, and so of a prompt's chunk; beside ``max_num_seqs``
    requests that run ``max_queue`` may wait; ``eviction`` and ``admission`` are names of policies, or
    mappings of a ``name`` and settings; ``order`` is fcfs or longest_hit; entries that nobody used for
    ``ttl_seconds`` expire; ``cache=False`` reuses and keeps nothing; ``threads`` are torch's, in the whole
    process; ``device`` is cpu, cuda or cuda:N, ``backend`` and ``linear`` as in `build_ops`; ``memory`` is
    unified (default on a CPU) or split (default, and the only one, on a GPU) with ``kv_fraction`` of the
    budget for blocks; ``debug_poison`` fills freed memory with NaN; ``hardware`` and ``prices`` turn what
    `explain` finds into seconds and money.

    Raises ValueError for a bad setting, and what loading raises.
    """

    def __init__(
        self,
        model: str | Path = "tiny",
        *,
        budget_gb: float = 1.0,
        dtype: str = "float32",
        block_size: int = 16,
        eviction: str | Mapping[str, object] = "reuse_rate",
        admission: str | Mapping[str, object] = "branch_final_prompt",
        max_num_seqs: int | None = None,
        max_queue: int | None = None,
        max_num_batched_tokens: int = 2048,
        max_model_len: int | None = None,
        order: str = "fcfs",
        ttl_seconds: float | None = None,
        cache: bool = True,
        threads: int | None = None,
        device: str = "cpu",
        backend: str | None = None,
        linear: AnyLinearMethod = "auto",
        memory: str | None = None,
        kv_fraction: float = 0.5,
        debug_poison: bool = False,
        hardware: HardwareProfile | None = None,
        prices: Prices | None = None,
    ) -> None:
        folder = checkpoint_folder(model)
        check_numbers(
            budget_gb=budget_gb, block_size=block_size, max_num_seqs=max_num_seqs, max_queue=max_queue,
            max_num_batched_tokens=max_num_batched_tokens, max_model_len=max_model_len, threads=threads,
            ttl_seconds=ttl_seconds, kv_fraction=kv_fraction,
        )  # fmt: skip
        if not 0 < budget_gb <= 1e9:
            raise ValueError(f"budget_gb={budget_gb!r}: give the cache's gigabytes, above 0 and at most 1e9")
        check_flags(cache=cache, debug_poison=debug_poison)
        if max_num_seqs is None:
            max_num_seqs = min(256, max(max_num_batched_tokens, 1))
        limits = SchedulerConfig(max_num_seqs, max_num_batched_tokens, order)
        self._model_len = model_length(folder, max_model_len)
        clock = MonotonicClock()
        self._jobs = OpenJobs(clock, max_num_seqs, max_queue)
        ops = build_ops(backend, device=device, linear=linear)
        log.info("kernels: %s", describe(ops))
        load = partial(load_model, ops=ops, dtype=dtype)
        loaded: list[LoadedModel] = []

        def make_engine() -> Engine:
            # In the thread that will run it: torch keeps the number of threads by thread, and the choice of
            # kernels depends on it. It knows nothing of the worker, which can so be forgotten.
            if threads is not None:
                torch.set_num_threads(threads)
            loaded.append(load(folder))
            prefix_cache = PrefixCache(
                loaded[0].spec,
                budget_bytes=int(budget_gb * 1e9),
                memory=memory or ("unified" if ops.device.type == "cpu" else "split"),
                kv_fraction=kv_fraction,
                eviction=build_eviction(**policy_settings(eviction)),
                admission=build_admission(**policy_settings(admission if cache else "final_only")),
                block_size=block_size,
                ttl_seconds=ttl_seconds,
                timer=clock.now,
            )
            return build_engine(loaded[0], prefix_cache, limits, clock, debug_poison=debug_poison)

        self._engine = EngineThread(make_engine)
        # Also when the worker is forgotten, and when the interpreter ends.
        self._close = weakref.finalize(self, self._engine.close)
        self._load = load
        self._spec, self._generation = loaded[0].spec, loaded[0].generation
        tokenizer = loaded[0].tokenizer
        self._codec = None if tokenizer is None else TextCodec(tokenizer)
        # A codec of its own: answers are decoded in the engine's thread.
        decode = None if tokenizer is None else TextCodec(tokenizer).decode
        explainer = Explainer(self._spec, decode=decode, hardware=hardware, prices=prices)
        self._traffic = Traffic(explainer, ttl_seconds)
        self._intake = Intake(
            self._spec,
            clock,
            self._engine.call(lambda engine: engine.cache.fits),
            max_model_len=self._model_len,
            end_token_ids=self._generation.eos_token_ids,
            codec=self._codec,
            cache=cache,
        )

    # Requests

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Answer texts or lists of token ids, one or many, with the same parameters or one for each.

        None: the checkpoint's own sampling defaults. Prompts with different ``cache_salt`` share nothing.
        Raises ValueError, before anything runs, for a prompt or parameter that cannot be; RequestTooLarge,
        which is one, for what could never fit; QueueFull; WorkerClosed; and whatever a request failed with,
        after all have ended.
        """
        found = prompts_of(prompts)
        each = list(params) if isinstance(params, Sequence) else [params] * len(found)
        if len(each) != len(found):
            raise ValueError(f"{len(each)} params for {len(found)} prompts: give one, or one for each")
        jobs = [self._job(prompt, p, cache_salt) for prompt, p in zip(found, each, strict=True)]
        self._start(jobs)
        try:
            for job in jobs:
                job.stream.wait()
        except BaseException:
            for job in jobs:
                job.stream.abort()
            raise
        return [job.stream.result() for job in jobs]

    def submit(
        self,
        prompt: Prompt | ChatPrompt,
        params: SamplingParams | None = None,
        *,
        cache_salt: str | None = None,
        request_id: str | None = None,
        priority: int = 0,
        ttl_seconds: float | None = None,
    ) -> Stream:
        """Queue one prompt and return at once; the stream gives the answer as it comes.

        ``request_id`` names it for `abort` and must not be in use; None: a new one. Requests of a lower
        ``priority`` run first. What the request computes or reads lives for ``ttl_seconds``; None: as long as
        the worker says. Raises as `generate` does; RequestTooLarge from the stream where the budget is short.
        """
        job = self._job(
            prompt, params, cache_salt, request_id=request_id, priority=priority, ttl_seconds=ttl_seconds
        )
        self._start([job])
        return job.stream

    def submit_all(
        self,
        prompts: Sequence[Prompt | ChatPrompt],
        params: SamplingParams | None = None,
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        ttl_seconds: float | None = None,
    ) -> list[Stream]:
        """`submit` for several prompts together: all are queued before the next step, or none is."""
        jobs = [
            self._job(prompt, params, cache_salt, priority=priority, ttl_seconds=ttl_seconds)
            for prompt in prompts
        ]
        self._start(jobs)
        return [job.stream for job in jobs]

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        cache_salt: str | None = None,
        request_id: str | None = None,
        **template_settings: object,
    ) -> Stream:
        """`submit` for a chat, put into the checkpoint's template; `.result()` waits for the answer."""
        prompt = self.codec.chat(messages, **template_settings)  # type: ignore[arg-type]
        return self.submit(prompt, params, cache_salt=cache_salt, request_id=request_id)

    def abort(self, request_id: str) -> bool:
        """End a request after the running step; False when none of this id is there any more."""
        job = self._jobs.get(request_id)
        if job is None:
            return False
        self._engine.abort(job)
        return True

    # The worker

    @property
    def health(self) -> bool:
        """Whether requests are taken: not closed, and the engine's thread alive."""
        return self._engine.healthy

    @property
    def codec(self) -> TextCodec:
        """The checkpoint's tokenizer and chat template. Raises ValueError when it has none."""
        if self._codec is None:
            raise ValueError("the checkpoint has no tokenizer: give token ids")
        return self._codec

    @property
    def vocab_size(self) -> int:
        """Token ids lie below it."""
        return self._spec.vocab_size

    @property
    def max_model_len(self) -> int:
        """Tokens of a prompt and its answer at most."""
        return self._model_len

    @property
    def default_params(self) -> SamplingParams:
        """What the checkpoint's generation_config.json asks for."""
        return default_params(self._generation)

    def stats(self) -> WorkerStats:
        """Counters and bytes, taken after the running step."""
        return self._engine.call(WorkerStats.of)

    def explain(
        self,
        prompt: Prompt | ChatPrompt | Sequence[Message],
        *,
        max_tokens: int | None = 1,
        cache_salt: str | None = None,
    ) -> Explanation:
        """Where the prefix of a prompt (text, token ids or a chat) would be lost now, and why. Sends nothing.

        It is compared with the last prompts of the same salt; `as_dict()` of the answer is ready for JSON.
        With ``max_tokens`` that only just fit the budget it may go on from less. Raises as `submit` does.
        """
        if is_chat(prompt):
            prompt = self.codec.chat(cast(Sequence[Message], prompt))
        sent = cast(Prompt | ChatPrompt, prompt)
        (request,) = self._job(sent, SamplingParams(max_tokens=max_tokens), cache_salt).requests
        match, lost = self._engine.call(lambda engine: engine.explain(request))
        return self._traffic.explain(request, match, lost)

    def explain_traffic(self) -> Sequence[TemplateTotals]:
        """What the prompts that were sent lost, by salt and template, and why; what lost most comes first."""
        return self._traffic.totals()

    def picture(self, limit: int = 1_000) -> CachePicture:
        """What is cached, by node, and what would be evicted next; ``limit`` nodes at most."""
        return self._engine.call(lambda engine: picture(engine.cache, engine.clock.now(), limit))

    def flush(self, cache_salt: str | None = None) -> None:
        """Forget what is cached, of one salt or of all, and give its memory back; requests that run go on.

        Raises ValueError for what is no salt.
        """
        salt = checked_salt(cache_salt)
        namespace = None if cache_salt is None else Namespace(self._spec.fingerprint, salt=salt)
        self._engine.call(lambda engine: engine.flush(namespace))

    def in_engine(self, act: Callable[[Engine], T]) -> T:
        """What ``act`` finds in the engine, in its thread and between two steps: for tests and benchmarks."""
        return self._engine.call(act)

    def check(self) -> None:
        """Recount the cache from scratch; AssertionError when anything is wrong."""
        self._engine.call(lambda engine: engine.cache.check())

    def load_weights(self, model: str | Path) -> None:
        """Go on with another checkpoint of the same geometry and tokenizer; all that is cached is forgotten.

        End tokens and defaults are the new one's. Raises ValueError for another geometry, tokenizer or chat
        template and for one made for fewer tokens, RuntimeError while requests are running or waiting.
        """
        folder, load, codec = checkpoint_folder(model), self._load, self._codec
        model_length(folder, self._model_len)
        self._generation = self._engine.call(lambda engine: exchange_weights(engine, folder, load, codec))
        self._intake.end_token_ids = self._generation.eos_token_ids

    def close(self) -> None:
        """End after the running step; what has not ended fails with WorkerClosed. Twice is once."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Inside

    def _job(
        self,
        prompt: Prompt | ChatPrompt,
        params: SamplingParams | None,
        cache_salt: str | None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        ttl_seconds: float | None = None,
    ) -> Job:
        answers = self._intake.answers(
            prompt,
            self.default_params if params is None else params,
            cache_salt,
            priority=priority,
            ttl_seconds=ttl_seconds,
        )
        name = request_id or uuid4().hex
        prompt_ids = answers[0].request.prompt
        stream = Stream(name, lambda: self._engine.abort(job), len(prompt_ids), int(prompt_ids[-1]))
        jobs, traffic = self._jobs, self._traffic

        def ended() -> None:
            traffic.note(answers[0].request)
            jobs.remove(name)

        job = Job(answers, stream, ended)
        return job

    def _start(self, jobs: Sequence[Job]) -> None:
        self._jobs.add(jobs)
        try:
            self._engine.submit(jobs)
        except WorkerClosed:
            for job in jobs:
                self._jobs.remove(job.stream.request_id)
            raise
