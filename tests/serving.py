"""Serves requests through a PrefixCache whose blocks and slots hold what they stand for, not numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hybridcache.flops import FlopTerm
from hybridcache.layer_kind import LayerKind
from hybridcache.lease import Lease, Wait
from hybridcache.namespace import Namespace
from hybridcache.node import Node, Root
from hybridcache.policies.admission import AdmissionPolicy, Planned, PromptFacts
from hybridcache.policies.build import ADMISSION, EVICTION, build_admission, build_eviction
from hybridcache.policies.columns import BRANCH
from hybridcache.policies.eviction import EvictionPolicy
from hybridcache.prefix_cache import PrefixCache, PrefixMatch
from hybridcache.spec import ModelSpec
from hybridcache.state_tensor import StateTensor
from hybridcache.tokens import TokenIds
from hybridcache.tree import subtree

BLOCK = 16
"""Tokens of a block unless a test says otherwise; a toy's token has 1 byte of KV."""
STATE = 64
"""Bytes of a toy's checkpoint."""
PLENTY = 10**9
"""Bytes that no toy fills."""
EVICTIONS = sorted(EVICTION)
ADMISSIONS = sorted(ADMISSION.keys() - {"grid", "block_ends"})
"""Those two repeat other engines' rules, with what these miss: the ends of requests among it."""
NAMESPACE = Namespace("toy")

Content = NDArray[np.uint64]
_WEIGHTS: Content = np.random.default_rng(7).integers(1, 2**63, size=1 << 18, dtype=np.uint64) | np.uint64(1)


@dataclass(frozen=True, slots=True)
class ToyLayer(LayerKind):
    """A layer of given bytes: per token, and per state tensor."""

    kind: ClassVar[str] = "toy"

    kv: int = 0
    state: tuple[int, ...] = ()
    dtype: str = "int8"

    @property
    def kv_tensors(self) -> tuple[StateTensor, ...]:
        return (StateTensor("key_value", (self.kv,), "int8"),) if self.kv else ()

    @property
    def state_tensors(self) -> tuple[StateTensor, ...]:
        return tuple(StateTensor(f"state_{i}", (n,), self.dtype) for i, n in enumerate(self.state))

    @property
    def flop_terms(self) -> tuple[FlopTerm, ...]:
        return (FlopTerm("work", per_token=1_000, per_pair=2 if self.kv else 0),)


def toy(kv: int = 1, state: int = STATE) -> ModelSpec:
    """A model with ``kv`` bytes a token and ``state`` bytes a checkpoint."""
    layers = [ToyLayer(kv=kv)] * bool(kv) + [ToyLayer(state=(state,))] * bool(state)
    return ModelSpec(f"toy-{kv}-{state}", tuple(layers), d_model=8, vocab_size=16)


KINDS = {"hybrid": toy(), "attention": toy(state=0), "recurrent": toy(kv=0)}


def text(length: int, name: int = 0) -> TokenIds:
    """``length`` tokens that no text of another name has."""
    return np.arange(length, dtype=np.uint32) + np.uint32(name * 1_000_000 + 1)


def joined(*texts: TokenIds) -> TokenIds:
    """One prompt of several texts."""
    return np.concatenate(texts).astype(np.uint32)


class EveryBlock(AdmissionPolicy):
    """A checkpoint at every block of a prompt, of a kind that is never thinned out."""

    name = "every_block"

    def plan(self, prompt: PromptFacts) -> Sequence[Planned]:
        first = prompt.hit // prompt.block_size * prompt.block_size + prompt.block_size
        return [Planned(at, BRANCH) for at in range(first, prompt.num_prompt, prompt.block_size)]


class Serving:
    """A cache and a runner that checks all it reads.

    The content of a token's KV, and of the state after it, is a hash of the namespace and of all
    tokens up to it, so that a step which reads another prompt's, or a stale one, is noticed.
    ``blocks`` and ``slots`` give the budget in ids; None for plenty.
    """

    def __init__(
        self,
        spec: ModelSpec = KINDS["hybrid"],
        *,
        blocks: int | None = None,
        slots: int = 0,
        eviction: str | EvictionPolicy = "lru",
        admission: str | AdmissionPolicy = "branch_final_prompt",
        block_size: int = BLOCK,
        memory: str = "unified",
        ttl_seconds: float | None = None,
    ) -> None:
        budget: float = PLENTY
        kv_fraction = 0.5
        if blocks is not None:
            kv_bytes = blocks * block_size * spec.kv_bytes_per_token
            # Half a byte more for each part: the parts of a split are not to be rounded below whole ids.
            budget = kv_bytes + slots * spec.checkpoint_bytes + 1
            kv_fraction = (kv_bytes + 0.5) / budget
        self.cache = PrefixCache(
            spec,
            budget_bytes=budget,
            eviction=build_eviction(eviction) if isinstance(eviction, str) else eviction,
            admission=build_admission(admission) if isinstance(admission, str) else admission,
            block_size=block_size,
            memory=memory,
            kv_fraction=kv_fraction,
            ttl_seconds=ttl_seconds,
        )
        self.spec = spec
        self.now = 0.0
        """Seconds; tests move it."""
        self._kv = np.zeros((64, block_size), dtype=np.uint64)
        self._states: dict[int, int] = {}
        self._seeds: dict[Root, int] = {}
        self._block_size = block_size

    # A request, step by step

    def acquire(
        self, prompt: TokenIds, namespace: Namespace = NAMESPACE, **options: Any
    ) -> Lease | Wait | None:
        """Ask for a lease; when there is one, perform its copies."""
        lease = self.cache.acquire(prompt, namespace, self.now, **options)
        if not isinstance(lease, Lease):
            return lease
        seed = self._seeds.setdefault(lease.root, int(_WEIGHTS[-1 - len(self._seeds)]))
        assert (lease.state_copy is None) == (lease.hit == 0 or lease.slot is None), lease
        if lease.state_copy is not None:
            self._copy_state(lease.state_copy.src_slot, lease.state_copy.dst_slot)
        elif lease.slot is not None:
            self._states[lease.slot] = seed
        if lease.block_copy is not None:
            src, dst, num_tokens = lease.block_copy
            self._room_for(dst)
            self._kv[dst, :num_tokens] = self._kv[src, :num_tokens]
        self.cache.restored(lease)
        return lease

    def begin(self, prompt: TokenIds, namespace: Namespace = NAMESPACE, **options: Any) -> Lease:
        """As ``acquire``, where there has to be room and nothing to wait for."""
        lease = self.acquire(prompt, namespace, **options)
        assert isinstance(lease, Lease), lease
        return lease

    def step(self, lease: Lease, tokens: TokenIds) -> bool:
        """One forward pass over ``tokens``, with the checkpoint where it ends; False without room."""
        if not self.cache.reserve(lease, len(tokens), self.now):
            return False
        self.forward(lease, tokens)
        self.cache.computed(lease, tokens, self.now)
        if lease.planned and lease.planned[0] == lease.num_computed:
            copy = self.cache.checkpoint(lease, self.now)
            if copy is not None:
                self._copy_state(*copy)
            self.cache.checkpointed(lease, self.now)
        return True

    def forward(self, lease: Lease, tokens: TokenIds) -> None:
        """Read all KV before the step and the running state, write those of ``tokens``."""
        start, stop = lease.num_computed, lease.num_computed + len(tokens)
        known = np.frombuffer(lease.edge(0, min(start, lease.num_tokens)), dtype=np.uint32)
        content = self._content(lease.root, joined(known, tokens))
        if self.spec.kv_bytes_per_token:
            table = self.block_table(lease)
            read = self._kv[table].reshape(-1)[: max(start, min(lease.kv_start, stop))]
            assert (read == content[1 : len(read) + 1]).all(), f"{lease} reads KV that is not its own"
            for position in range(max(start, lease.kv_start), stop):
                block = int(table[position // self._block_size])
                assert self.cache.store.blocks.refs(block), f"{lease} writes a free block"
                self._kv[block, position % self._block_size] = content[position + 1]
        if lease.slot is not None:
            assert self._states[lease.slot] == content[start], f"{lease} goes on from a state not its own"
            assert self.cache.store.slots.refs(lease.slot) == 1, f"{lease} writes a slot that is not its own"
            self._states[lease.slot] = int(content[stop])

    def prefill(self, lease: Lease, upto: int | None = None, chunk: int = PLENTY) -> bool:
        """Compute the prompt up to ``upto`` (all of it), ``chunk`` tokens a step at most."""
        prompt = np.frombuffer(lease.prompt, dtype=np.uint32)
        end = len(prompt) if upto is None else upto
        while lease.num_computed < end:
            stop = min(end, lease.num_computed + chunk, *lease.planned[:1])
            if not self.step(lease, prompt[lease.num_computed : stop]):
                return False
        return True

    def decode(self, lease: Lease, tokens: TokenIds, chunk: int = 1) -> bool:
        """Compute generated ``tokens``, ``chunk`` a step at most."""
        start, done = lease.num_computed, 0
        while done < len(tokens):
            planned = [position - start for position in lease.planned[:1]]
            stop = min(done + chunk, len(tokens), *planned)
            if not self.step(lease, tokens[done:stop]):
                return False
            done = stop
        return True

    def end(self, lease: Lease, keep: int | None = None) -> None:
        """Finish, keeping ``keep`` tokens (all)."""
        self.cache.finish(lease, lease.num_computed if keep is None else keep, self.now)

    def serve(
        self,
        prompt: TokenIds,
        output: TokenIds | None = None,
        namespace: Namespace = NAMESPACE,
        **options: Any,
    ) -> Lease:
        """A whole request, alone: its last output token is sampled and never computed."""
        output = text(1, 999) if output is None else output
        lease = self.begin(prompt, namespace, max_tokens=len(output), **options)
        assert self.prefill(lease) and self.decode(lease, output[:-1], 50), (
            "a request that runs alone has room"
        )
        self.end(lease)
        return lease

    # Questions

    def look(self, prompt: TokenIds, namespace: Namespace = NAMESPACE) -> PrefixMatch:
        """What ``prompt`` would hit and match now."""
        return self.cache.match_prefix(prompt, namespace, self.now)

    def block_table(self, lease: Lease) -> NDArray[np.int64]:
        """Block ids of the lease by index."""
        table = self.cache.block_table(lease)
        self._room_for(int(table.max(initial=0)))
        return table

    def check(self) -> None:
        """The cache's own audit; that bytes add up; that every node holds what its tokens say."""
        cache = self.cache
        cache.check()
        usage = cache.usage()
        assert usage.free + usage.evictable + usage.pinned + usage.leased == usage.budget, usage
        for root in cache.store.tree.roots.values():
            tokens: dict[Node, TokenIds] = {root: text(0)}
            for node in subtree(root):
                if node.parent is None:
                    continue
                tokens[node] = joined(tokens[node.parent], np.frombuffer(node.edge, dtype=np.uint32))
                content = self._content(root, tokens[node])
                if self.spec.kv_bytes_per_token:
                    first = node.start // self._block_size * self._block_size
                    held = self._kv[node.blocks].reshape(-1)[: node.stop - first]
                    assert (held == content[first + 1 :]).all(), f"{node} holds KV of other tokens"
                if node.slot is not None:
                    assert self._states[node.slot] == content[-1], f"{node} holds the state of other tokens"

    def check_idle(self) -> None:
        """As ``check``, with no lease left: all that is held can be evicted."""
        assert not self.cache.leases
        self.check()
        usage = self.cache.usage()
        assert usage.pinned == usage.leased == 0, usage

    def _content(self, root: Root, tokens: Sequence[int] | TokenIds) -> Content:
        """[n + 1]: the content before any token, and after each."""
        values = np.asarray(tokens, dtype=np.uint64) + np.uint64(1)
        out = np.empty(len(values) + 1, dtype=np.uint64)
        out[0] = self._seeds[root]
        out[1:] = values * _WEIGHTS[: len(values)]
        return np.cumsum(out, dtype=np.uint64)

    def _copy_state(self, src_slot: int, dst_slot: int) -> None:
        assert src_slot != dst_slot and self.cache.store.slots.refs(src_slot), (src_slot, dst_slot)
        self._states[dst_slot] = self._states[src_slot]

    def _room_for(self, block: int) -> None:
        if block >= len(self._kv):
            more = np.zeros((2 * block, self._block_size), dtype=np.uint64)
            more[: len(self._kv)] = self._kv
            self._kv = more
