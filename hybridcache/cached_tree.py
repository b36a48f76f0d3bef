"""The tree, the pools and the table of facts, kept in step: every change to one reaches the others."""

from hybridcache.evictor import Evictor
from hybridcache.ghost import Ghost
from hybridcache.node import FOREVER, Node, Root
from hybridcache.node_table import INNER, LEAF, NOT_EVICTABLE, NodeTable
from hybridcache.policies.columns import PROMPT_END, REQUEST_ENDS
from hybridcache.policies.eviction import EvictionPolicy
from hybridcache.pool import BlockPool, Ids, MemoryBudget, SlotPool
from hybridcache.spec import ModelSpec
from hybridcache.stats import CacheStats
from hybridcache.tokens import TOKEN_BYTES, token_at
from hybridcache.tree import RadixTree, common_prefix


class CachedTree:
    """What PrefixCache stands on; it does not know what a lease is.

    ``recurrent`` models resume only where a checkpoint was kept; for others ``slot`` is None
    everywhere and any position resumes.
    """

    __slots__ = (
        "spec", "recurrent", "budget", "blocks", "slots", "tree", "table", "evictor", "ghost", "stats",
        "next_expiry", "_stale", "_touched_at", "_touched",
    )  # fmt: skip

    def __init__(
        self,
        spec: ModelSpec,
        budget: MemoryBudget,
        block_size: int,
        eviction: EvictionPolicy,
    ) -> None:
        self.spec = spec
        self.recurrent = spec.checkpoint_bytes > 0
        self.budget = budget
        self.blocks = BlockPool(block_size, spec.kv_bytes_per_token, budget)
        self.slots = SlotPool(spec.checkpoint_bytes, budget)
        self.tree = RadixTree(block_size if spec.kv_bytes_per_token else 0, self.recurrent)
        self.table = NodeTable()
        self.ghost = Ghost()
        self.evictor = Evictor(self.table, eviction, self.ghost.gone)
        self.stats = CacheStats()
        self.next_expiry = FOREVER
        """Nothing expires before this time, seconds."""
        self._stale: set[Node] = set()
        """Nodes whose facts in the table have yet to be worked out again."""
        self._touched_at = -FOREVER
        self._touched: set[Node] = set()
        """Nodes that count as used at that time, seconds, and so does all above each of them."""

    # Shape of the tree

    def split(self, node: Node, at: int) -> Node:
        """Cut ``node`` at token ``at``; the new upper half, which ends there."""
        upper, shared = self.tree.split(node, at)
        if shared is not None:
            self.blocks.retain(shared)
        table, row, upper_row = self.table, node.row, self.table.add(upper, 0.0, 0.0)
        table.accessed[upper_row] = table.accessed[row]
        table.path_accessed[upper_row] = table.path_accessed[row]
        table.clock[upper_row] = table.clock[row]
        table.resumable[upper_row] = not self.recurrent
        self.changed(upper)
        self.changed(node)
        return upper

    def insert(self, node: Node, edge: bytes, blocks: Ids, now: float, expires_at: float) -> tuple[Node, Ids]:
        """Make the tokens ``edge`` below ``node`` matchable; the node they end at, and the blocks left over.

        ``blocks`` are the caller's, from the block that token ``node.stop`` lies in::

            node.stop ... pos ........ upto            tokens
            [ duplicates  | new tokens    | reserved ] blocks
              released      the tree's      left over

        Where the tree already knows the tokens, its blocks win and the caller's are released, but
        for the one it goes on writing to. A last block that is full in part stays the caller's
        too, so what is left over always begins with the block that the end lies in (or is empty
        at a block boundary). The pin on ``node`` is the caller's own.
        """
        own, begin = node, node.stop
        pos, upto = begin, begin + len(edge) // TOKEN_BYTES
        while pos < upto:
            child = node.children.get(token_at(edge, pos - begin))
            if child is None:
                break
            offset = (pos - begin) * TOKEN_BYTES
            if edge.startswith(child.edge, offset):
                node, pos = child, child.stop
            else:
                pos += common_prefix(child.edge, edge, offset)
                node = self.split(child, pos)
        duplicates = self.blocks.index(pos) - self.blocks.index(begin)
        if duplicates:
            self.blocks.release(blocks[:duplicates])
            blocks = blocks[duplicates:]
        if pos < upto:
            count = self.blocks.blocks_for(upto) - self.blocks.index(pos)
            taken, blocks = blocks[:count], blocks[self.blocks.index(upto) - self.blocks.index(pos) :]
            if self.blocks.tail(upto):
                self.blocks.retain(taken.item(-1))
            rest = edge[(pos - begin) * TOKEN_BYTES :]
            alone = node is own and node.pins == 1 and not node.children and node.slot is None
            if alone and node.parent and node.expires_at <= expires_at:
                self.blocks.release(self.tree.extend(node, rest, taken))
                self.table.depth[node.row] = node.stop
            else:
                parent, node = node, self.tree.append(node, rest, taken)
                node.expires_at = expires_at
                self.next_expiry = min(self.next_expiry, expires_at)
                row = self.table.add(node, now, self.evictor.clock)
                self.table.resumable[row] = not self.recurrent
                self.changed(node)
                self.live_until(parent, expires_at)
                self.tidy(parent)
        self.live_until(node, expires_at)
        return node, blocks

    def node_at(self, node: Node, position: int) -> Node:
        """The node on the path of ``node`` that ends at ``position`` (0 < position <= node.stop)."""
        while node.start >= position:
            assert node.parent is not None, (node, position)
            node = node.parent
        return node if node.stop == position else self.split(node, position)

    def tidy(self, node: Node, cascade: bool = False) -> None:
        """Put ``node`` in order after it lost a pin, a child or its checkpoint.

        A path without children goes when nothing can match it any more, when it holds no bytes, or,
        in a ``cascade`` of evictions, when no checkpoint covers it. An only child absorbs the edge
        above it. A namespace without anything left goes too: tenants come and go.
        """
        while node.parent is not None and not node.pins and node.slot is None:
            if node.children:
                (child, *others) = node.children.values()
                if others or child.expires_at != node.expires_at:
                    break
                node = self.join(node)
                break
            worthless = self.recurrent and (cascade or not len(node.blocks))
            if not worthless and self.root_of(node).attached:
                break
            node = self.remove(node)
        self.changed(node)
        if isinstance(node, Root):
            self.tree.forget_if_empty(node)

    def join(self, node: Node) -> Node:
        """The only child of ``node``, after it absorbed ``node``; its expiry holds for both."""
        child, dropped = self.tree.absorb(node)
        self.blocks.release(dropped)
        for block in dropped.tolist():
            if self.blocks.refs(block):
                self._changed_within_block(child)
        self.table.remove(node)
        self.changed(child)
        return child

    def root_of(self, node: Node) -> Root:
        """The top of the tree that ``node`` is in."""
        while node.parent is not None:
            node = node.parent
        assert isinstance(node, Root), node
        return node

    def remove(self, leaf: Node) -> Node:
        """Take a leaf without checkpoint out of the tree and free its blocks; its parent."""
        parent, table = leaf.parent, self.table
        assert parent is not None and not leaf.pins and leaf.slot is None, leaf
        self.blocks.release(self.tree.remove(leaf))
        if parent.row >= 0 and table.path_accessed[leaf.row] > table.path_accessed[parent.row]:
            table.path_accessed[parent.row] = table.path_accessed[leaf.row]
        table.remove(leaf)
        return parent

    # Facts

    def changed(self, node: Node) -> None:
        """Something that the facts of ``node`` depend on has changed; ``refresh`` works them out."""
        node.version += 1
        self._stale.add(node)

    def _changed_within_block(self, top: Node) -> None:
        """A block that nodes below ``top`` may hold has one holder less: what they free has changed."""
        size = self.blocks.block_size
        stack = [top]
        while stack:
            node = stack.pop()
            self.changed(node)
            stack.extend(child for child in node.children.values() if child.start % size)

    def refresh(self) -> None:
        """Bring the table up to date. Facts are read in bulk, and change many times in between."""
        for node in self._stale:
            if node.row >= 0:
                self._work_out(node)
        self._stale.clear()

    def _work_out(self, node: Node) -> None:
        """Whether ``node`` can be evicted, and what that would free and lose."""
        table, row = self.table, node.row
        num_children = len(node.children)
        table.children[row] = num_children
        has_slot = node.slot is not None
        slot_alone = num_children or node.pins
        if node.slot_pins or (slot_alone and not has_slot):
            table.state[row] = NOT_EVICTABLE
            return
        if slot_alone:
            table.state[row] = INNER
            table.bytes_freed[row] = self.slots.bytes_per_id
        else:
            table.state[row] = LEAF
            own = len(node.blocks)
            if own and self.blocks.refs(int(node.blocks[0])) > 1:
                own -= 1
            num_bytes = own * self.blocks.bytes_per_id + has_slot * self.slots.bytes_per_id
            table.bytes_freed[row] = num_bytes or 1.0
        spec = self.spec
        table.prefix_bytes[row] = node.stop * spec.kv_bytes_per_token + spec.checkpoint_bytes or 1.0
        if has_slot:
            table.flops_saved[row] = self.spec.flops(int(table.anchor[row]), node.stop)
        elif self.recurrent:
            table.flops_saved[row] = 0.0
            table.first_out[row] = True
        else:
            table.flops_saved[row] = self.spec.flops(node.start, node.stop)

    def _set_anchor(self, top: Node, position: int) -> None:
        """``position`` is now the nearest checkpoint above everything below ``top`` up to the next ones."""
        stack = list(top.children.values())
        while stack:
            node = stack.pop()
            if node.slot is None:
                stack.extend(node.children.values())
                continue
            self.table.anchor[node.row] = position
            self.changed(node)

    # Checkpoints

    def attach(self, node: Node, slot: int, kind: int, now: float, expires_at: float, hits: int = 0) -> bool:
        """Keep ``slot`` as the checkpoint of ``node``; False when it has a live one already.

        An expired one is given a new life: the states of one position are equal. Takes the slot
        over, or frees it. The KV it needs lives as long. ``hits`` are those of its earlier lives.
        """
        self.live_until(node, expires_at)
        if node.slot is not None:
            self.slots.free(slot)
            if node.slot_expires_at <= now:
                self.renew_slot(node, expires_at)
                return True
            self.renew_slot(node, max(expires_at, node.slot_expires_at))
            return False
        above = node.parent
        while above is not None and above.slot is None:
            above = above.parent
        table, row = self.table, node.row
        node.slot = slot
        table.anchor[row] = 0 if above is None else above.stop
        table.kind[row] = kind
        table.hits[row] = hits
        table.resumable[row] = True
        table.accessed[row] = now
        self._touch(node, now)
        table.clock[row] = self.evictor.clock
        table.first_out[row] = table.used[row] = False
        self.renew_slot(node, expires_at)
        self.changed(node)
        if node.children:
            self._set_anchor(node, node.stop)
        self.stats.checkpoints_admitted += 1
        self.stats.admitted_by_kind[kind] += 1
        policy = self.evictor.policy
        if (policy.remembers or policy.revives) and len(self.ghost):
            self.ghost.forget(self.tree.prefix_hash(node).intdigest())
        return True

    def drop_slot(self, node: Node) -> None:
        """Free the checkpoint of ``node``; what lies below now starts from the next one above."""
        assert node.slot is not None and not node.slot_pins, node
        self.slots.free(node.slot)
        node.slot = None
        self.table.resumable[node.row] = False
        self.renew_slot(node, FOREVER)
        if node.children:
            self._set_anchor(node, int(self.table.anchor[node.row]))
        self.changed(node)

    def hit(self, node: Node, now: float) -> None:
        """A request resumes at ``node``."""
        table, row = self.table, node.row
        table.children[row] = len(node.children)
        self.evictor.hit(row, now)
        table.hits[row] += 1
        table.accessed[row] = now
        self._touch(node, now)
        table.clock[row] = self.evictor.clock
        table.first_out[row] = False
        self.changed(node)
        if node.slot is None:
            return
        if not table.used[row]:
            table.used[row] = True
            self.stats.checkpoints_used += 1
        if table.kind[row] in REQUEST_ENDS:
            self._supersede(node)

    def _touch(self, node: Node, now: float) -> None:
        """``node`` was used, and all above it where the policy counts that."""
        self.table.path_accessed[node.row] = now
        if not self.evictor.policy.touches_path:
            return
        if now != self._touched_at:
            self._touched_at = now
            self._touched.clear()
        above = node.parent
        # A chunk's checkpoints share their path: it is walked once, not once for each of them.
        while above is not None and above.row >= 0 and above not in self._touched:
            self.table.path_accessed[above.row] = now
            above.version += 1
            self._touched.add(above)
            above = above.parent

    def _supersede(self, final: Node) -> None:
        """The prompt-end checkpoint above a final one that was resumed at goes first if nothing used it."""
        above = final.parent
        while above is not None and above.slot is None:
            above = above.parent
        if above is None or self.table.kind[above.row] != PROMPT_END or self.table.hits[above.row]:
            return
        self.table.first_out[above.row] = True
        self.changed(above)

    # Expiry

    def live_until(self, node: Node, expires_at: float) -> None:
        """The KV of ``node`` and of all above it lives at least until ``expires_at`` (seconds)."""
        if node.expires_at >= expires_at:
            return
        above: Node | None = node
        renewed = []
        while above is not None and above.row >= 0 and above.expires_at < expires_at:
            above.expires_at = expires_at
            self.table.expires_at[above.row] = expires_at
            self.next_expiry = min(self.next_expiry, expires_at)
            above = above.parent
            if above is not None:
                renewed.append(above)
        for parent in renewed:
            # An only child that expires when its parent does absorbs it.
            if len(parent.children) == 1:
                self.tidy(parent)

    def renew_slot(self, node: Node, expires_at: float) -> None:
        """The checkpoint of ``node`` lives until ``expires_at`` (seconds)."""
        node.slot_expires_at = expires_at
        self.table.slot_expires_at[node.row] = expires_at
        self.next_expiry = min(self.next_expiry, expires_at)
