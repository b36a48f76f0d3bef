"""128-bit hashes of prefixes, extended at the price of the new tokens alone."""

from xxhash import xxh3_128

Digest = int
"""128 bits: XXH3 of a namespace's seed and the tokens behind it, the same in every process and however the
prefix was cut. Not cryptographic: used only where a collision mislabels a miss; the tree compares tokens."""

PrefixHash = xxh3_128
"""The hash of one prefix as it stands, ready to be extended; ``intdigest`` gives the Digest."""


def extended(prefix: PrefixHash, tokens: bytes) -> PrefixHash:
    """The hash of ``prefix`` followed by ``tokens`` (native uint32). Modifies neither."""
    longer = prefix.copy()
    longer.update(tokens)
    return longer
