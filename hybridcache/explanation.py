"""What is said of one prompt, and of many: where the prefix was lost, why, and what that cost."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hybridcache.cause import REMEDIES, Cause

FIXABLE = ("checkpoint_evicted", "expired", "no_checkpoint", "kv_evicted")
"""Reasons of `hybridcache.loss` that lie with the cache, not with the prompt."""

EXPIRED, FORGOTTEN = "expired", "forgotten"


@dataclass(frozen=True, slots=True)
class Explanation:
    """One prompt."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_matched_tokens: int
    """On a path that the cache knows, reusable or not."""
    lost: Mapping[str, int]
    """Tokens by reason (`hybridcache.loss.LOSS_REASONS`); with the cached ones they add up to the prompt."""
    cause: Cause | None
    """What broke the prefix; None where it goes on as far as it can, or says something new."""
    text: str
    """Where the known path ends: the last text that was known, then ``|``, then what came instead."""
    forgotten_tokens: int
    """On the path of an earlier prompt, but neither in the cache any more nor among what it remembers."""
    forgotten_reason: str
    """Why: EXPIRED where the time of all such prompts was up, else FORGOTTEN (evicted or flushed)."""
    avoidable_tokens: int
    """That would have hit but for the cause, or but for eviction, expiry and missing checkpoints."""
    seconds: float | None
    """To compute those; None without a device."""
    money: float | None
    """That those cost more than if they had hit; None without prices."""
    currency: str | None
    template: int
    """Number of the prompt template; prompts that begin alike have one."""

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        found = None
        if self.cause is not None:
            found = {
                "kind": str(self.cause.kind),
                "before": self.cause.before,
                "after": self.cause.after,
                "remedy": REMEDIES[self.cause.kind],
            }
        return {
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_cached_tokens": self.num_cached_tokens,
            "num_matched_tokens": self.num_matched_tokens,
            "lost_tokens": dict(self.lost),
            "cause": found,
            "text": self.text,
            "forgotten_tokens": self.forgotten_tokens,
            "forgotten_reason": self.forgotten_reason if self.forgotten_tokens else None,
            "avoidable_tokens": self.avoidable_tokens,
            "seconds": self.seconds,
            "money": self.money,
            "currency": self.currency,
            "template": self.template,
        }


@dataclass(slots=True)
class CauseTotals:
    """What one cause, or one reason that lies with the cache, came to."""

    requests: int = 0
    avoidable_tokens: int = 0
    seconds: float = 0.0
    money: float = 0.0
    before: str = ""
    """An example."""
    after: str = ""


@dataclass(slots=True)
class TemplateTotals:
    """The prompts of one namespace that begin alike."""

    salt: str
    template: int
    text: str
    """How they begin."""
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    causes: dict[str, CauseTotals] = field(default_factory=dict)

    def add(self, one: Explanation) -> None:
        """Take in a prompt."""
        self.requests += 1
        self.prompt_tokens += one.num_prompt_tokens
        self.cached_tokens += one.num_cached_tokens
        for reason, tokens in one.lost.items():
            self.lost[reason] = self.lost.get(reason, 0) + tokens
        if not one.avoidable_tokens:
            return
        if one.cause is not None:
            name, before, after = str(one.cause.kind), one.cause.before, one.cause.after
        else:
            lost = Counter(one.lost)
            lost[one.forgotten_reason] += one.forgotten_tokens
            name, before, after = max((*FIXABLE, FORGOTTEN), key=lambda reason: lost[reason]), "", ""
        totals = self.causes.setdefault(name, CauseTotals(before=before, after=after))
        totals.requests += 1
        totals.avoidable_tokens += one.avoidable_tokens
        totals.seconds += one.seconds or 0.0
        totals.money += one.money or 0.0

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; causes by what they cost, the dearest first."""
        ranked = sorted(self.causes.items(), key=lambda item: -item[1].avoidable_tokens)
        return {
            "salt": self.salt,
            "template": self.template,
            "text": self.text,
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "lost_tokens": self.lost,
            "causes": [
                {
                    "kind": name,
                    "requests": totals.requests,
                    "avoidable_tokens": totals.avoidable_tokens,
                    "seconds": totals.seconds,
                    "money": totals.money,
                    "before": totals.before,
                    "after": totals.after,
                }
                for name, totals in ranked
            ],
        }
