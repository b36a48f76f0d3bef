"""What a table of policies compares."""

from typing import Any, NamedTuple

from hybridcache.policies.admission import AdmissionPolicy
from hybridcache.policies.build import build_admission, build_eviction
from hybridcache.policies.eviction import EvictionPolicy


class Column(NamedTuple):
    """An eviction policy and its settings."""

    name: str
    settings: dict[str, Any] = {}  # noqa: RUF012 - never modified
    revives: bool = False
    """Whether shared positions that went come back at once, also under a policy that does not ask for it."""
    admission: str = "branch_and_final"
    admitting: dict[str, Any] = {}  # noqa: RUF012 - never modified
    """Settings of the admission."""
    cache: dict[str, Any] = {}  # noqa: RUF012 - never modified
    """Settings of the cache (`PrefixCache`) that are not the usual ones."""

    def build(self) -> EvictionPolicy:
        """A new policy."""
        policy = build_eviction(self.name, **self.settings)
        policy.revives |= self.revives
        return policy

    def build_admission(self) -> AdmissionPolicy:
        """Its admission policy."""
        return build_admission(self.admission, **self.admitting)

    @property
    def own_rules(self) -> str:
        """What differs besides eviction, in words; empty where nothing does."""
        settings = {f"admission.{key}": value for key, value in self.admitting.items()} | self.cache
        words = [f"{key}={value}" for key, value in settings.items()]
        return " ".join([f"admission={self.admission}", *words]) if self.cache else ""


SPLIT = {"memory": "split", "kv_fraction": 0.526}
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
    "no follow": Column("reuse_rate", {"follow_ups": False}),
    "published": Column("marconi_published", {"alpha": 1.0}),
    "pub. tuned": Column("marconi_tuned", {"once": True, "published": True}),
    "sglang": Column("state_lru", admission="grid", cache=SPLIT),
    "sglang .9": Column("state_lru", admission="grid", cache={**SPLIT, "kv_fraction": 0.9}),
    "vllm": Column("block_lru", admission="block_ends", cache={"block_size": 528}),
    "vllm last": Column(
        "block_lru", admission="block_ends", admitting={"boundaries": "last"}, cache={"block_size": 528}
    ),
    "clairvoyant": Column("clairvoyant"),
}
"""By the head of a column. ``rev.``: revival under a policy that does not ask for it. ``no``: without a part
of `reuse_rate`: revival, memory of what went, both, the look ahead, groups that lean on wider ones, ends of
follow-ups as a group. Other
engines' rules are those of conf/baseline/; `clairvoyant` is measured against nothing."""
JUDGED = "reuse_rate"
ENGINES = ("published", "pub. tuned", "sglang", "sglang .9", "vllm", "vllm last")
USUAL_OTHERS = ("lru", "gdsf", "marconi 0", "marconi .3", "marconi 1", "age_density", "hit_density")
OTHERS = (*USUAL_OTHERS, "tuned", *ENGINES)
"""What the judged one is measured against, as far as it is in the table."""
USUAL = (*USUAL_OTHERS, JUDGED)
BASELINES = ("lru", "tuned", *ENGINES, JUDGED, "clairvoyant")
"""The default policy, and other engines' rules."""
PARTS = (
    *("lru", "lru, rev.", "hit_density", "h.d., rev.", JUDGED),
    *("no revival", "no memory", "neither", "no ahead", "no pooling", "no follow"),
)
"""The default policy, what each of its parts gives, and what revival alone gives to others."""
