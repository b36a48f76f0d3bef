"""Serves requests with PrefixCache and ModelRunner, as an engine does: schedule, copy, execute, record."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridcache.lease import Lease, StateEmit
from hybridcache.namespace import Namespace
from hybridcache.node import Node
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.prefix_cache import PrefixCache
from hybridcache.runner import Model, ModelRunner
from hybridcache.spec import ModelSpec
from hybridcache.step import ScheduledSequence, StepBatch, StepResult
from hybridcache.storage import Storage
from hybridcache.tokens import as_token_ids
from hybridcache.tree import subtree

NAMESPACE = Namespace("toy")
Logits = NDArray[np.float32]


def prompt_of(length: int, seed: int = 0, vocab: int = 1_024) -> list[int]:
    """Random tokens."""
    tokens: list[int] = np.random.default_rng(seed).integers(0, vocab, length).tolist()
    return tokens


@dataclass(eq=False)
class Request:
    """One request and what came of it."""

    prompt: list[int]
    lease: Lease
    answer: list[int] = field(default_factory=list)
    logits: dict[int, Logits] = field(default_factory=dict)
    """By the position of the token that gave them; of every token that was computed."""

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.answer


class Driver:
    """A cache, a runner over storage that is NaN wherever nobody wrote, and a clock."""

    def __init__(
        self,
        spec: ModelSpec,
        model: Model,
        *,
        budget_bytes: int = 1 << 20,
        admission: str = "branch_final_prompt",
        block_size: int = 16,
        memory: str = "unified",
        **settings: int,
    ) -> None:
        self.cache = PrefixCache(
            spec,
            budget_bytes=budget_bytes,
            eviction=build_eviction("lru"),
            admission=build_admission(admission, **settings),
            block_size=block_size,
            memory=memory,
        )
        self.storage = Storage(spec, budget_bytes, block_size, memory=memory, debug_poison=True)
        for arena in (self.storage.blocks, self.storage.slots):
            arena.memory.fill_(0xFF)
        self.runner = ModelRunner(model, self.storage)
        self.now = 0.0

    def admit(self, prompt: Sequence[int], max_tokens: int = 1, *, first: bool = True) -> Request:
        """A request whose copies are performed with its first step."""
        self.now += 1
        lease = self.cache.acquire(list(prompt), NAMESPACE, self.now, max_tokens=max_tokens, first=first)
        assert isinstance(lease, Lease), lease
        return Request(list(prompt), lease)

    def step(self, chunks: Mapping[Request, int], *, emits: bool = True) -> None:
        """Compute so many tokens of every request together; a token is sampled where all known are computed.

        With `emits` the states planned within a chunk are written in the pass; without, a chunk ends there.
        """
        self.now += 1
        cache, block_size = self.cache, self.storage.block_size
        leases = [request.lease for request in chunks]
        state_copies = [lease.state_copy for lease in leases if lease.source and lease.state_copy]
        block_copies = [
            lease.block_copy for lease in leases if lease.num_computed == lease.hit and lease.block_copy
        ]
        sequences = []
        for request, count in chunks.items():
            lease = request.lease
            assert cache.reserve(lease, count, self.now)
            cache.restored(lease)
            stop = lease.num_computed + count
            writes: Sequence[StateEmit] = ()
            if emits and lease.slot is not None:
                writes = cache.emits(lease, stop, self.now)
            tokens = request.tokens[lease.num_computed : stop]
            assert len(tokens) == count
            sequences.append(
                ScheduledSequence.of(lease, tokens, block_size, emits=writes, num_logits=len(tokens))
            )
        freed_blocks, freed_slots = cache.drain_freed()
        result = self.runner.execute(
            StepBatch(sequences, state_copies, block_copies, freed_blocks, freed_slots)
        )
        for index, (request, sequence) in enumerate(zip(chunks, sequences, strict=True)):
            lease = request.lease
            request.logits |= dict(enumerate(result.logits_of(index), sequence.start))
            cache.computed(lease, sequence.tokens, self.now)
            cache.checkpointed(lease, self.now)
            if lease.planned and lease.planned[0] == lease.num_computed:
                copy = cache.checkpoint(lease, self.now)
                self.runner.copy([] if copy is None else [copy])
                cache.checkpointed(lease, self.now)
            if lease.num_computed == len(request.tokens):
                request.answer.append(int(result.tokens[index]))
        cache.check()

    def run(
        self, request: Request, num_answer: int, chunk: int | None = None, *, emits: bool = True
    ) -> Request:
        """Answer a request to its end, by itself."""
        lease = request.lease
        while len(request.answer) < num_answer:
            count = len(request.tokens) - lease.num_computed
            count = min(count, chunk or count)
            if not emits and lease.planned:
                count = min(count, lease.planned[0] - lease.num_computed)
            self.step({request: count}, emits=emits)
        self.finish(request)
        return request

    def finish(self, request: Request, keep: int | None = None) -> None:
        self.now += 1
        self.cache.finish(request.lease, len(request.tokens) if keep is None else keep, self.now)
        self.cache.check()

    def serve(self, prompt: Sequence[int], num_answer: int = 1, chunk: int | None = None) -> Request:
        """Admit and run."""
        return self.run(self.admit(prompt, num_answer), num_answer, chunk)

    def checkpoints(self) -> dict[tuple[int, ...], Tensor]:
        """The bytes of every checkpoint in the tree, by the tokens before it."""
        found: dict[tuple[int, ...], Tensor] = {}
        for root in self.cache.store.tree.roots.values():
            for node in subtree(root):
                if node.slot is not None:
                    found[_tokens_of(node)] = self.storage.slots.memory[node.slot].clone()
        return found


def _tokens_of(node: Node) -> tuple[int, ...]:
    edges = []
    above: Node | None = node
    while above is not None:
        edges.append(above.edge)
        above = above.parent
    return tuple(np.frombuffer(b"".join(reversed(edges)), dtype=np.uint32).tolist())


def mixed(driver: Driver) -> list[Request]:
    """Eight requests in the same steps: cold, resumed, decoding, in chunks of their own lengths."""
    base = driver.serve(prompt_of(40), 3)
    # Branch points that are known already: otherwise one of two siblings waits for the other.
    driver.serve(base.prompt[:33] + prompt_of(1, 10))
    driver.serve(base.prompt[:16] + prompt_of(1, 11))
    prompts = [
        base.tokens + prompt_of(3, 1),
        base.prompt[:33] + prompt_of(14, 2),
        prompt_of(1, 3),
        prompt_of(17, 4),
        base.prompt[:16] + prompt_of(1, 5),
        prompt_of(29, 6),
        base.prompt[:39] + prompt_of(2, 7),
        prompt_of(16, 8),
    ]
    chunks = [50, 5, 1, 8, 17, 29, 3, 4]
    requests = [driver.admit(prompt, 3) for prompt in prompts]
    while any(len(request.answer) < 3 for request in requests):
        step = {}
        for request, chunk in zip(requests, chunks, strict=True):
            if len(request.answer) < 3:
                step[request] = min(chunk, len(request.tokens) - request.lease.num_computed)
        driver.step(step)
    for request in requests:
        driver.finish(request)
    return [base, *requests]


class Cold:
    """Runs each sequence in one pass over storage of its own: what everything else is compared with."""

    def __init__(
        self,
        spec: ModelSpec,
        make_model: Callable[[], Model],
        block_size: int = 16,
        budget_bytes: int = 1 << 20,
    ) -> None:
        self.spec = spec
        self.block_size = block_size
        self.runner = ModelRunner(make_model(), Storage(spec, budget_bytes, block_size))

    def logits(self, tokens: Sequence[int]) -> Logits:
        """[len(tokens), vocab_size]."""
        return self._run(tokens).logits_of(0)

    def state(self, tokens: Sequence[int]) -> Tensor:
        """The bytes of the state after `tokens`."""
        self._run(tokens)
        return self.runner.storage.slots.memory[0].clone()

    def check(self, *requests: Request) -> None:
        """Every logit that the requests computed, and every token that they sampled, to the bit."""
        for request in requests:
            cold = self.logits(request.tokens)
            for position, row in request.logits.items():
                assert np.array_equal(row, cold[position]), (len(request.prompt), request.lease, position)
            first = len(request.prompt) - 1
            answer = cold[first : first + len(request.answer)].argmax(axis=1)
            assert request.answer == answer.tolist()

    def check_states(self, driver: Driver) -> int:
        """Every checkpoint in the driver's tree, to the bit; how many there are."""
        checkpoints = driver.checkpoints()
        left = sorted(checkpoints, key=len)
        while left:
            longest = left[-1]
            on_path = [tokens for tokens in left if longest[: len(tokens)] == tokens]
            self._run(longest, [StateEmit(len(tokens), slot) for slot, tokens in enumerate(on_path, 1)])
            for slot, tokens in enumerate(on_path, 1):
                assert torch.equal(checkpoints[tokens], self.runner.storage.slots.memory[slot]), len(tokens)
            left = [tokens for tokens in left if tokens not in on_path]
        return len(checkpoints)

    def _run(self, tokens: Sequence[int], emits: Sequence[StateEmit] = ()) -> StepResult:
        spec = self.spec
        num_blocks = -(-len(tokens) // self.block_size) if spec.kv_bytes_per_token else 0
        sequence = ScheduledSequence(
            as_token_ids(tokens),
            slot=0 if spec.checkpoint_bytes else None,
            block_ids=np.arange(num_blocks),
            emits=emits,
            num_logits=0 if emits else len(tokens),
        )
        return self.runner.execute(StepBatch([sequence]))
