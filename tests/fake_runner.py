"""A runner whose memory holds, instead of numbers, which prefix each number would belong to."""

import numpy as np

from hybridcache.lease import BlockCopy, Lease, StateCopy
from hybridcache.namespace import Namespace
from hybridcache.node import Node, Root
from hybridcache.prefix_cache import PrefixCache
from hybridcache.tree import subtree

Prefix = int
"""Names one string of tokens in one namespace and epoch: KV of its last token, or the state after it."""


class FakeRunner:
    """Performs copies and writes as a runner would, and looks at what the cache says is where.

    The KV of a token depends on all tokens before it, so a cell of a block is right only if it
    names the whole prefix.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self.cache = cache
        self.block_size = cache.store.tree.block_size
        self.blocks: dict[tuple[int, int], Prefix] = {}
        """By block id and offset in the block."""
        self.slots: dict[int, Prefix] = {}
        self._names: dict[tuple[object, ...], Prefix] = {}
        self._roots: dict[Root, Prefix] = {}

    def start(self, lease: Lease, namespace: Namespace, epoch: int) -> None:
        """Perform the copies of ``acquire``; a running slot without a source starts from zero."""
        self._roots[lease.root] = self._name(namespace, epoch)
        if lease.block_copy is not None:
            self._copy_block(lease.block_copy)
        if lease.state_copy is not None:
            self.copy_state(lease.state_copy)
        elif lease.slot is not None:
            self.slots[lease.slot] = self._roots[lease.root]

    def step(self, lease: Lease, tokens: list[int]) -> None:
        """Compute ``tokens`` from ``num_computed`` on: read what lies before, write KV and state."""
        self.check_lease(lease)
        start = lease.num_computed
        prefix = self._prefixes(lease)[start]
        table = self._table(lease)
        assert [table[i] for i in range(len(table))] == self.cache.block_table(lease).tolist(), lease
        emits = {emit.position: emit.slot for emit in lease.emits}
        for position, token in enumerate(tokens, start):
            prefix = self._name(prefix, token)
            if position + 1 in emits:
                self.slots[emits[position + 1]] = prefix
            if self.block_size and position >= lease.kv_start:
                self.blocks[table[position // self.block_size], position % self.block_size] = prefix
        if lease.slot is not None:
            self.slots[lease.slot] = prefix

    def copy_state(self, copy: StateCopy) -> None:
        self.slots[copy.dst_slot] = self.slots[copy.src_slot]

    def _copy_block(self, copy: BlockCopy) -> None:
        assert copy.src_block != copy.dst_block
        for offset in range(copy.num_tokens):
            self.blocks[copy.dst_block, offset] = self.blocks[copy.src_block, offset]

    def check_lease(self, lease: Lease) -> None:
        """All KV that the lease's next step reads, its running state and its source are right."""
        prefixes = self._prefixes(lease)
        if self.block_size:
            table = self._table(lease)
            for position in range(max(lease.num_computed, lease.kv_start)):
                cell = self.blocks.get((table[position // self.block_size], position % self.block_size))
                assert cell == prefixes[position + 1], f"{lease}: KV of token {position} is another's"
        if lease.slot is not None:
            assert self.slots[lease.slot] == prefixes[lease.num_computed], f"{lease}: wrong running state"
        if lease.staged is not None:
            position, slot = lease.staged
            assert self.slots[slot] == prefixes[position], f"{lease}: wrong staged state"
        for position, slot in lease.emits:
            if position <= lease.num_computed:
                assert self.slots[slot] == prefixes[position], f"{lease}: wrong emitted state"

    def check(self) -> None:
        """Every lease, and every node of every tree: its own tokens, and its parents' in its first block."""
        for lease in self.cache.leases.values():
            self.check_lease(lease)
        for root in self.cache.store.tree.roots.values():
            if root not in self._roots:
                assert not root.children
                continue
            after: dict[Node, list[Prefix]] = {root: [self._roots[root]]}
            for node in subtree(root):
                if node.parent is not None:
                    after[node] = self._check_node(node, after[node.parent])

    def _check_node(self, node: Node, above: list[Prefix]) -> list[Prefix]:
        """Compare ``node`` with the names of the prefixes [0, node.stop], which are returned."""
        names = list(above)
        for token in np.frombuffer(node.edge, dtype=np.uint32).tolist():
            names.append(self._name(names[-1], token))
        if self.block_size:
            first = node.start // self.block_size
            for position in range(first * self.block_size, node.stop):
                block = int(node.blocks[position // self.block_size - first])
                cell = self.blocks.get((block, position % self.block_size))
                assert cell == names[position + 1], f"{node}: KV of token {position} is another's"
        if node.slot is not None:
            assert self.slots[node.slot] == names[node.stop], f"{node}: the checkpoint changed"
        return names

    def _table(self, lease: Lease) -> dict[int, int]:
        """Block id by block index; on a path the deeper node's block wins, and the lease's own over all."""
        table: dict[int, int] = {}
        if not self.block_size:
            return table
        path = [lease.node]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        for node in reversed(path):
            first = node.start // self.block_size
            table.update({first + i: int(block) for i, block in enumerate(node.blocks)})
        first = lease.node.stop // self.block_size
        table.update({first + i: int(block) for i, block in enumerate(lease.blocks)})
        return table

    def _prefixes(self, lease: Lease) -> list[Prefix]:
        names = [self._roots[lease.root]]
        tokens = np.frombuffer(lease.edge(0, lease.num_tokens), dtype=np.uint32).tolist()
        for token in tokens:
            names.append(self._name(names[-1], token))
        return names

    def _name(self, *parts: object) -> Prefix:
        return self._names.setdefault(parts, len(self._names))
