"""What a cached prefix belongs to besides its tokens."""

import hashlib
from typing import NamedTuple


class Namespace(NamedTuple):
    """One root of the tree a namespace; nothing crosses. Compared whole, so no joined texts collide."""

    model: str = ""
    """Fingerprint of the model: ModelSpec.fingerprint, or of the weights where there are any."""
    adapter: str = ""
    salt: str = ""
    """The tenant's cache salt; empty for none."""

    def key(self) -> bytes:
        """SHA-256 of a canonical encoding (each field behind its length): the same in every process."""
        sha = hashlib.sha256()
        for field in self:
            raw = field.encode("utf-8")
            sha.update(len(raw).to_bytes(8, "little"))
            sha.update(raw)
        return sha.digest()

    def seed(self, epoch: int) -> bytes:
        """What prefix hashes of this namespace start from in ``epoch``."""
        return hashlib.sha256(self.key() + epoch.to_bytes(8, "little")).digest()
