"""ModelSpec's FLOPs against what torch counts on the reference path.

The counter sees matrix products and convolutions. It takes attention's scores over the full square, where the
spec counts the causal triangle, so those are doubled here (less the diagonal). Of a scan it sees what the
reference writes as a product of several heads: Mamba-2's reading of the state, both products of the gated
delta rule, nothing of Mamba-1. The rest of a scan's formula is added.
"""

from collections.abc import Callable

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hybridcache.flops import FlopTerm
from hybridcache.layers import GatedDelta, LayerKind, Mamba2, Parallel
from hybridcache.models.families import FAMILIES
from hybridcache.models.load import LoadedModel
from tests.hybrid_runs import BLOCK_SIZE, Memory, Part, prompt_of, run

LENGTH = 24
"""Tokens."""


def seen_of_scan(layer: LayerKind) -> int:
    """FLOPs a token that the counter sees of the reference's scan."""
    match layer:
        case Mamba2():
            return 2 * layer.d_inner * layer.d_state
        case GatedDelta():
            return 4 * layer.num_v_heads * layer.head_k_dim * layer.head_v_dim
        case Parallel():
            return sum(seen_of_scan(branch) for branch in layer.branches)
        case _:
            return 0


def visible(layer: LayerKind) -> int:
    """What the counter should count for LENGTH tokens of a layer."""

    def of(term: FlopTerm) -> int:
        if term.name == "scan":
            return 0
        return term.per_token * LENGTH + term.per_pair * LENGTH * LENGTH

    return sum(of(term) for term in layer.flop_terms) + LENGTH * seen_of_scan(layer)


@pytest.mark.parametrize("family", FAMILIES)
def test_flops_agree_with_the_counter(family: str, loaded: Callable[..., LoadedModel]) -> None:
    torch.set_num_threads(1)
    ours = loaded(family, "reference")
    spec = ours.spec
    tokens = prompt_of(spec, LENGTH)
    blocks = range(-(-LENGTH // BLOCK_SIZE))
    with FlopCounterMode(display=False) as counter:
        run(ours, Memory(spec), Part(tokens, blocks=blocks), all_logits=False)
    counted = counter.get_total_flops()
    assert counted == pytest.approx(sum(map(visible, spec.layers)) + spec.head_flops, rel=0.01)
    # What the counter cannot see, and the square it sees in place of the triangle, turn one into the other.
    scans = sum(
        term.flops(0, LENGTH) for layer in spec.layers for term in layer.flop_terms if term.name == "scan"
    )
    seen = LENGTH * sum(map(seen_of_scan, spec.layers))
    scores = [term for layer in spec.layers for term in layer.flop_terms if term.per_pair]
    square = sum(term.per_pair * (LENGTH * LENGTH - term.pairs(LENGTH)) for term in scores)
    assert counted + scans - seen - square == pytest.approx(spec.request_flops(LENGTH), rel=0.01)
