"""What a table of policies compares."""

from typing import Any, NamedTuple

from hybridcache.policies.build import build_eviction
from hybridcache.policies.eviction import EvictionPolicy


class Column(NamedTuple):
    """An eviction policy and its settings."""

    name: str
    settings: dict[str, Any] = {}  # noqa: RUF012 - never modified
    revives: bool = False
    """Whether shared positions that went come back at once, also under a policy that does not ask for it."""

    def build(self) -> EvictionPolicy:
        """A new policy."""
        policy = build_eviction(self.name, **self.settings)
        policy.revives |= self.revives
        return policy


COLUMNS = {
    "lru": Column("lru"),
    "gdsf": Column("gdsf"),
    "marconi 0": Column("marconi", {"alpha": 0.0}),
    "marconi .3": Column("marconi", {"alpha": 0.3}),
    "marconi 1": Column("marconi", {"alpha": 1.0}),
    "tuned": Column("marconi_tuned"),
    "age_density": Column("age_density", {"tau_seconds": 30.0}),
    "hit_density": Column("hit_density"),
    "reuse_rate": Column("reuse_rate"),
    "lru, rev.": Column("lru", revives=True),
    "h.d., rev.": Column("hit_density", revives=True),
    "no revival": Column("reuse_rate", {"revive": False}),
    "no memory": Column("reuse_rate", {"remember": False}),
    "neither": Column("reuse_rate", {"remember": False, "revive": False}),
    "no ahead": Column("reuse_rate", {"look_ahead": False}),
    "no pooling": Column("reuse_rate", {"pooled": False}),
    "clairvoyant": Column("clairvoyant"),
}
"""By the head of a column. ``rev.``: revival under a policy that does not ask for it. ``no``: without a part
of `reuse_rate`: revival, memory of what went, both, the look ahead, groups that lean on wider ones."""
JUDGED = "reuse_rate"
OTHERS = ("lru", "gdsf", "marconi 0", "marconi .3", "marconi 1", "tuned", "age_density", "hit_density")
"""What the judged one is measured against, as far as it is in the table."""
USUAL = (*(head for head in OTHERS if head != "tuned"), JUDGED)
PARTS = (
    *("lru", "lru, rev.", "hit_density", "h.d., rev.", JUDGED),
    *("no revival", "no memory", "neither", "no ahead", "no pooling"),
)
"""The default policy, what each of its parts gives, and what revival alone gives to others."""
