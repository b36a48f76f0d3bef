"""Which experts a token goes to, and with what weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from hybridcache.kernels.ops import Ops

Routing = tuple[Tensor, Tensor]
"""Weights float32 [T, k] and experts int64 [T, k]; equal scores go to the lower expert."""


@dataclass(frozen=True, slots=True)
class RouterRule:
    """How scores become a choice. `name` is one of RULES."""

    name: str
    top_k: int
    renormalise: bool = False
    """Divide the chosen weights by their sum."""
    scale: float = 1.0
    groups: int = 1
    """The experts lie in this many groups ..."""
    top_groups: int = 1
    """... of which only this many, by the sum of their two best scores, are chosen from."""

    def __call__(self, ops: Ops, logits: Tensor, bias: Tensor | None) -> Routing:
        """logits [T, experts]; `bias` [experts] moves the choice, not the weights."""
        return RULES[self.name](self, ops, logits.float(), bias)


def _top_then_softmax(rule: RouterRule, ops: Ops, logits: Tensor, bias: Tensor | None) -> Routing:
    chosen, experts = ops.top_k(logits, rule.top_k)
    return ops.softmax(chosen), experts


def _softmax_then_top(rule: RouterRule, ops: Ops, logits: Tensor, bias: Tensor | None) -> Routing:
    weights, experts = ops.top_k(ops.softmax(logits), rule.top_k)
    return _finish(rule, weights), experts


def _sigmoid(rule: RouterRule, ops: Ops, logits: Tensor, bias: Tensor | None) -> Routing:
    """DeepSeek-V3's (2024, section 2.1.2), as Nemotron-H took it over."""
    scores = ops.sigmoid(logits)
    ranked = scores if bias is None else scores + bias
    if rule.top_groups < rule.groups:
        members = ranked.view(len(ranked), rule.groups, ranked.shape[1] // rule.groups)
        best = _row_sum(ops.top_k(members.flatten(0, 1), 2)[0]).view(len(ranked), rule.groups)
        kept = torch.zeros_like(best, dtype=torch.bool).scatter_(1, ops.top_k(best, rule.top_groups)[1], True)
        ranked = members.masked_fill(~kept[:, :, None], -torch.inf).flatten(1)
    experts = ops.top_k(ranked, rule.top_k)[1]
    return _finish(rule, scores.gather(1, experts)), experts


RULES: Mapping[str, Callable[[RouterRule, Ops, Tensor, Tensor | None], Routing]] = MappingProxyType(
    {
        "top_then_softmax": _top_then_softmax,
        "softmax_then_top": _softmax_then_top,
        "sigmoid": _sigmoid,
    }
)


def _finish(rule: RouterRule, weights: Tensor) -> Tensor:
    if rule.renormalise:
        weights = weights / (_row_sum(weights) + 1e-20)[:, None]
    return weights if rule.scale == 1 else weights * rule.scale


def _row_sum(x: Tensor) -> Tensor:
    """Sum over the few columns of x [M, n] in their order, so that a row's bits do not depend on M."""
    total = x[:, 0]
    for column in range(1, x.shape[1]):
        total = total + x[:, column]
    return total
