"""A request's hold on the cache."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from hybridcache.node import FOREVER, NO_IDS, Node, Root
from hybridcache.pool import Ids
from hybridcache.tokens import TOKEN_BYTES


class StateCopy(NamedTuple):
    """Copy a whole state slot."""

    src_slot: int
    dst_slot: int


class BlockCopy(NamedTuple):
    """Copy the first tokens of a block."""

    src_block: int
    dst_block: int
    num_tokens: int


class StateEmit(NamedTuple):
    """Write the state at a position that a step passes to a slot, in the pass itself."""

    position: int
    """Tokens from the start of the sequence."""
    slot: int


class Wait(NamedTuple):
    """Another lease is computing a prefix of this prompt: acquire again once it is there."""

    lease: "Lease"
    position: int
    """Tokens: the end of the common prefix."""

    @property
    def over(self) -> bool:
        """Whether to acquire again: the prefix is matchable, or will not become so."""
        return self.lease.ended or self.position not in self.lease.awaited


class Lease:
    """One running request: its place in the tree, the blocks and the slot it holds besides.

    ::

        0 ........ node.stop ............. num_computed ....... capacity    tokens
        [ pinned path | blocks (the lease's own) ...................... ]

    Prompt tokens move from the lease to the tree as they are computed, generated ones at the next
    checkpoint or at the end. Made and changed by PrefixCache alone.
    """

    __slots__ = (
        "id", "root", "prompt", "generated", "num_prompt", "hit", "matched", "lost", "ttl_seconds",
        "slot", "node", "source", "blocks", "num_computed", "planned", "kinds", "revived", "follows_up",
        "staged", "emits", "awaited", "interval_nodes", "state_copy", "block_copy", "kv_start", "ended",
    )  # fmt: skip

    def __init__(self, lease_id: int, root: Root, prompt: bytes, node: Node) -> None:
        self.id = lease_id
        self.root = root
        self.prompt = prompt
        """Token ids of the prompt as native uint32."""
        self.generated = bytearray()
        """Token ids computed beyond the prompt, likewise."""
        self.num_prompt = len(prompt) // TOKEN_BYTES
        self.hit = 0
        """Tokens that were not computed for this request."""
        self.matched = 0
        """Tokens of the prompt that lay on a known path."""
        self.lost: Mapping[str, int] = {}
        """Tokens by loss reason; with ``hit`` they add up to the prompt."""
        self.ttl_seconds = FOREVER
        self.slot: int | None = None
        """The running slot; None for a model without recurrent layers."""
        self.node = node
        """The deepest node of the pinned path."""
        self.source: Node | None = None
        """The node that the request resumes at; its checkpoint is pinned until ``restored``."""
        self.blocks: Ids = NO_IDS
        """Own blocks, from the one that token ``node.stop`` lies in."""
        self.num_computed = 0
        """Tokens whose KV and state are there: the hit and what was computed since."""
        self.planned: list[int] = []
        """Positions beyond ``num_computed`` that are to get a checkpoint, ascending."""
        self.kinds: dict[int, int] = {}
        """Kind of each planned position."""
        self.revived: dict[int, int] = {}
        """Hits of the planned positions that had a checkpoint before, which went."""
        self.follows_up = False
        """Whether the request goes on from another one's end, there or remembered."""
        self.staged: tuple[int, int] | None = None
        """Position and slot of a checkpoint that is being copied."""
        self.emits: list[StateEmit] = []
        """Checkpoints that the running step writes, ascending."""
        self.awaited: set[int] = set()
        """Positions that other requests wait for."""
        self.interval_nodes: list[Node] = []
        """Nodes that got an INTERVAL checkpoint from this lease, ascending."""
        self.state_copy: StateCopy | None = None
        """To perform before the first step; None: the running slot starts from zero."""
        self.block_copy: BlockCopy | None = None
        """To perform before the first step."""
        self.kv_start = 0
        """KV of the tokens [0, kv_start) is there already: a step that recomputes some of them for the
        state's sake does not write it again."""
        self.ended = False

    @property
    def num_tokens(self) -> int:
        """Tokens known: the prompt and what was computed beyond it."""
        return self.num_prompt + len(self.generated) // TOKEN_BYTES

    @property
    def being_written(self) -> set[int]:
        """Positions whose checkpoints a copy or the running step writes; not matchable yet."""
        positions = {emit.position for emit in self.emits}
        if self.staged is not None:
            positions.add(self.staged[0])
        return positions

    def block_table(self, block_size: int) -> Ids:
        """Ids of the blocks of tokens from 0 on, up to the last one reserved.

        Where nodes of the path share a block index, the deeper one's holds all tokens of the path in it,
        and the lease's own block holds those of its whole path.
        """
        parts, first = [self.blocks], self.node.stop // block_size
        node: Node | None = self.node
        while node is not None:
            start = node.start // block_size
            parts.append(node.blocks[: max(first - start, 0)])
            first = min(first, start)
            node = node.parent
        return np.concatenate(parts[::-1])

    def edge(self, start: int, stop: int) -> bytes:
        """Token ids of [start, stop) as native uint32."""
        begin, end, prompt_end = start * TOKEN_BYTES, stop * TOKEN_BYTES, len(self.prompt)
        if end <= prompt_end:
            return self.prompt[begin:end]
        tail = bytes(self.generated[max(begin - prompt_end, 0) : end - prompt_end])
        return self.prompt[begin:] + tail if begin < prompt_end else tail

    def __repr__(self) -> str:
        return (
            f"Lease({self.id}, prompt={self.num_prompt}, hit={self.hit}, computed={self.num_computed}, "
            f"planned={self.planned}, ended={self.ended})"
        )
