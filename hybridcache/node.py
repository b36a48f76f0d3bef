"""A node of the radix tree, and what a lookup returns."""

from typing import NamedTuple

import numpy as np

from hybridcache.namespace import Namespace
from hybridcache.pool import Ids
from hybridcache.prefix_hash import PrefixHash
from hybridcache.tokens import TOKEN_BYTES, token_at

FOREVER = float("inf")
"""The expiry of what does not expire, seconds."""

NO_IDS: Ids = np.empty(0, dtype=np.int64)


class Node:
    """Tokens [start, stop) of one path, their blocks, and perhaps a checkpoint of the state at ``stop``.

    ::

        tokens   start ............................ stop
        blocks   [ start//B | ...full blocks... | (stop-1)//B ]     B = block_size
                   ^ may begin before start        ^ may end after stop
                   (its first tokens are the parent's)

    The root of a namespace covers [0, 0) and has neither blocks nor a checkpoint.
    """

    __slots__ = (
        "parent",
        "children",
        "start",
        "stop",
        "edge",
        "blocks",
        "slot",
        "pins",
        "slot_pins",
        "expires_at",
        "slot_expires_at",
        "hash",
        "row",
        "version",
    )

    def __init__(self, parent: "Node | None", start: int, edge: bytes, blocks: Ids) -> None:
        self.parent = parent
        self.children: dict[int, Node] = {}
        """By the first token of the child's edge."""
        self.start = start
        self.stop = start + len(edge) // TOKEN_BYTES
        self.edge = edge
        """The token ids of [start, stop) as native uint32, so that a comparison is one memcmp."""
        self.blocks = blocks
        """Block ids of indices [start // B, ceil(stop / B))."""
        self.slot: int | None = None
        """The checkpoint at ``stop``; None when there is none."""
        self.pins = 0
        """Leases whose path ends here. What lies above is kept by having a child."""
        self.slot_pins = 0
        """Leases that have yet to copy the checkpoint."""
        self.expires_at = FOREVER
        """When the KV expires, seconds; never before a child's."""
        self.slot_expires_at = FOREVER
        """When the checkpoint expires, seconds."""
        self.hash: PrefixHash | None = None
        """Hash of the tokens [0, stop) in this namespace, once it has been asked for."""
        self.row = -1
        """Row of the node's facts in the NodeTable; -1 once it has left the tree."""
        self.version = 0
        """Raised when a fact that a score depends on changes."""

    @property
    def first_token(self) -> int:
        return token_at(self.edge, 0)

    def __repr__(self) -> str:
        return (
            f"Node([{self.start}, {self.stop}), blocks={self.blocks.tolist()}, slot={self.slot}, "
            f"pins={self.pins}, children={len(self.children)})"
        )


class Root(Node):
    """The top of one namespace's tree in one epoch."""

    __slots__ = ("namespace", "leases", "attached")

    def __init__(self, namespace: Namespace, seed: bytes) -> None:
        super().__init__(None, 0, b"", NO_IDS)
        self.namespace = namespace
        self.hash = PrefixHash(seed)
        """Of the namespace and its epoch; every hash below starts from it."""
        self.leases = 0
        """Leases that started here and have not ended."""
        self.attached = True
        """False after a flush: nothing below is matchable, and what is unpinned goes."""


class Match(NamedTuple):
    """How far a prompt follows the tree. Positions are tokens from the start of the prompt."""

    node: Node
    """The deepest node on the path that is matched whole."""
    partial: Node | None
    """The child whose edge the prompt leaves, when it leaves inside an edge."""
    matched: int
    """Tokens on a known path, reusable or not."""
    resume: Node
    """Where a request resumes: a node with a live checkpoint, or the root.
    For a model without recurrent layers: ``node``."""
    hit: int
    """Tokens that need not be computed; at most the prompt's length - 1."""

    @property
    def path_goes_on(self) -> bool:
        """Whether a known path continues from ``matched``."""
        return self.partial is not None or bool(self.node.children)
