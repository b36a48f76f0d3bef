"""LRU over blocks."""

from hybridcache.policies.lru import Lru


class BlockLru(Lru):
    """LRU that frees a leaf block by block from its end, as vLLM's paged prefix cache does.

    (Kwon et al., "Efficient Memory Management for Large Language Model Serving with
    PagedAttention", SOSP 2023.) Meant for ``admission=all_blocks``, a state at every boundary.
    """

    name = "block_lru"
    by_block = True
