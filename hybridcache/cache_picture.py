"""A picture of the cache for people: its nodes, what they hold, and what would go next."""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from hybridcache.node import FOREVER, Node
from hybridcache.policies.columns import KIND_NAMES
from hybridcache.prefix_cache import PrefixCache
from hybridcache.stats import Usage

NAMESPACE_DIGITS = 16
"""Of a namespace's key, in hex: a salt is a tenant's secret and is not shown."""


class NodePicture(NamedTuple):
    """One node: the tokens [start, stop) of some prompts."""

    id: int
    """Among the nodes of this picture."""
    parent: int | None
    """None at the top of a namespace."""
    namespace: str
    start: int
    stop: int
    num_blocks: int
    """Shared ones included."""
    bytes_freed: int | None
    """By evicting it now; None when it cannot be."""
    checkpoint: str | None
    """Why the state at `stop` was kept; None without one."""
    pinned: bool
    """Whether a running request's path ends here or is about to resume here."""
    hits: int
    """Requests that resumed at it."""
    children: int
    idle_seconds: float
    """Since a request resumed at it, or since it was made."""
    expires_in_seconds: float | None
    """Of its KV; None: never."""
    flops_saved: float
    """What a hit at it saves beyond the nearest checkpoint above."""
    score: float | None
    """Of the eviction policy, the lowest goes first; None when it cannot be evicted, or goes before all."""
    eviction_rank: int | None
    """0 goes next."""


@dataclass(frozen=True, slots=True)
class CachePicture:
    """Taken between two steps."""

    num_nodes: int
    """In the tree; those left out of `nodes` would be evicted last, or are not evictable."""
    eviction: str
    """The policy's name."""
    admission: str
    usage: Usage
    """Bytes."""
    nodes: tuple[NodePicture, ...]
    """Those that would go next first."""

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        usage = self.usage
        return {
            **{name: value for name, value in asdict(self).items() if name not in ("nodes", "usage")},
            "budget_bytes": usage.budget,
            "free_bytes": usage.free,
            "kv_bytes": usage.kv._asdict(),
            "state_bytes": usage.state._asdict(),
            "nodes": [node._asdict() for node in self.nodes],
        }


def picture(cache: PrefixCache, now: float, limit: int) -> CachePicture:
    """The cache at ``now``, seconds, with ``limit`` nodes at most.

    Frees what has expired, as the next request would; what a request still holds of it is shown.
    Raises ValueError for a limit that is no count.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise ValueError(f"limit={limit!r}: give the nodes to show, a whole number of at least 0")
    cache.expire(now)
    store = cache.store
    store.refresh()
    ranked = store.evictor.ranking(now)
    nodes = [node for node, _ in ranked]
    evictable = set(nodes)
    nodes += [node for node in store.table.nodes if node is not None and node not in evictable]
    scores = [score for _, score in ranked]
    return CachePicture(
        store.table.num_nodes,
        store.evictor.policy.name,
        cache.admission.name,
        cache.usage(),
        tuple(
            _node(cache, node, now, scores[rank] if rank < len(scores) else None, rank)
            for rank, node in enumerate(nodes[:limit])
        ),
    )


def _node(cache: PrefixCache, node: Node, now: float, score: float | None, rank: int) -> NodePicture:
    store, row = cache.store, node.row
    table, evictable = store.table, score is not None
    parent = node.parent
    return NodePicture(
        row,
        None if parent is None or parent.parent is None else parent.row,
        store.root_of(node).namespace.key().hex()[:NAMESPACE_DIGITS],
        node.start,
        node.stop,
        len(node.blocks),
        int(table.bytes_freed[row]) if evictable else None,
        None if node.slot is None else KIND_NAMES[int(table.kind[row])],
        bool(node.pins or node.slot_pins),
        int(table.hits[row]),
        len(node.children),
        now - float(table.accessed[row]),
        None if node.expires_at == FOREVER else node.expires_at - now,
        float(table.flops_saved[row]),
        score if score is not None and score != -FOREVER else None,
        rank if evictable else None,
    )
