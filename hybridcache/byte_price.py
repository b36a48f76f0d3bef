"""What room in the cache costs now."""

MEMORY_REQUESTS = 200
"""How many requests back the price looks, on average."""


class BytePrice:
    """Prompt tokens that are computed again per byte that was evicted, over the last requests.

    Whatever is kept in addition has other bytes evicted before their time; what those cost, of late, is
    what it costs. 0 while nothing has been evicted.
    """

    __slots__ = ("tokens", "num_bytes")

    def __init__(self) -> None:
        self.tokens = 0.0
        """Tokens computed again since what covered them was evicted, the older the less they count."""
        self.num_bytes = 0.0
        """Bytes evicted, likewise."""

    def evicted(self, num_bytes: int) -> None:
        """So many bytes were evicted."""
        self.num_bytes += num_bytes

    def request(self, num_tokens: int) -> None:
        """A request came and computes ``num_tokens`` again, for what covered them was evicted."""
        keep = 1.0 - 1.0 / MEMORY_REQUESTS
        self.tokens = self.tokens * keep + num_tokens
        self.num_bytes *= keep

    def of(self, num_bytes: int) -> float:
        """Tokens that ``num_bytes`` cost."""
        return self.tokens / self.num_bytes * num_bytes if self.num_bytes else 0.0
