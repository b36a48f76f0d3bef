"""Sums over the requests replayed so far."""

from dataclasses import dataclass, field

from hybridcache.loss import LOSS_REASONS


@dataclass(slots=True)
class ReplayTotals:
    """Counts of requests, tokens and FLOPs; refused requests are part of all of them."""

    requests: int = 0
    requests_refused: int = 0
    requests_hit: int = 0  # with a hit of one token or more
    input_tokens: int = 0
    output_tokens: int = 0
    hit_tokens: int = 0
    matched_tokens: int = 0
    flops_total: float = 0.0  # FLOPs of all prompts, nothing reused
    flops_saved: float = 0.0  # FLOPs of the hit tokens
    lost_tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LOSS_REASONS, 0))

    @property
    def token_hit_rate(self) -> float:
        """Hit tokens per input token; 0 before the first request."""
        return self.hit_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def request_hit_rate(self) -> float:
        """The part of the requests that hit at all."""
        return self.requests_hit / self.requests if self.requests else 0.0

    @property
    def flops_saved_ratio(self) -> float:
        """FLOPs saved per FLOP of all prompts."""
        return self.flops_saved / self.flops_total if self.flops_total else 0.0
