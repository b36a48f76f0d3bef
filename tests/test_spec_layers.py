"""Every layer kind: its state tensors, KV bytes and FLOPs against numbers worked out by hand."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcache.flops import FlopCurve, FlopTerm
from hybridcache.layers import (
    LAYER_KINDS,
    Attention,
    GatedDelta,
    LayerKind,
    Mamba1,
    Mamba2,
    Mlp,
    Moe,
    PaperSsm,
    Parallel,
    SharedBlock,
)
from hybridcache.spec import ModelSpec
from hybridcache.state_tensor import StateTensor

ATTENTION = Attention(d_model=8, num_heads=4, num_kv_heads=2, head_dim=3)
WINDOWED = Attention(d_model=8, num_heads=4, num_kv_heads=2, head_dim=3, window=5)
MAMBA2 = Mamba2(d_model=8, nheads=4, headdim=4, d_state=5, ngroups=2, d_conv=4, conv_width_stored=3)
EXAMPLES: dict[str, LayerKind] = {
    "attention": ATTENTION,
    "window": WINDOWED,
    "square": Attention(d_model=8, num_heads=2, num_kv_heads=2, head_dim=4, full_square=True),
    "mamba1": Mamba1(d_model=8, d_inner=16, d_state=5, dt_rank=2, d_conv=4, conv_width_stored=3),
    "mamba2": MAMBA2,
    "gated_delta": GatedDelta(8, 2, 4, 3, 5, d_conv=4, conv_width_stored=3),
    "mlp": Mlp(d_model=8, d_ff=20),
    "moe": Moe(8, d_expert=6, num_experts=10, experts_per_token=3, d_shared=7, shared_gate=True),
    "parallel": Parallel((WINDOWED, MAMBA2)),
    "shared_block": SharedBlock(8, 0, Attention(8, 4, 4, 4, input_width=16), Mlp(8, 32), adapter_rank=3),
    "paper_ssm": PaperSsm(d_model=8, d_state=5, conv_width_stored=4),
}


def one_by_one(layer: LayerKind, start: int, stop: int) -> int:
    """FLOPs token by token, each counting the keys it sees."""
    total = 0
    for position in range(start, stop):
        for term in layer.flop_terms:
            seen = position + 1 if term.window is None else min(position + 1, term.window)
            keys = 2 * position + 1 if term.square else seen
            total += term.per_token + term.per_pair * keys
    return total


def test_the_examples_cover_every_kind() -> None:
    assert {layer.kind for layer in EXAMPLES.values()} == set(LAYER_KINDS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_closed_form_is_the_sum_over_tokens(name: str) -> None:
    layer = EXAMPLES[name]
    spec = ModelSpec("one", (layer,), d_model=8, vocab_size=11)
    for start in range(0, 14):
        for stop in range(start, 14):
            expected = one_by_one(layer, start, stop)
            assert layer.flops(start, stop) == expected
            assert spec.flops(start, stop) == expected
        assert spec.prefix_flops(start) == one_by_one(layer, 0, start)


def test_layers_of_several_windows_add_up() -> None:
    layers = (*EXAMPLES.values(), Attention(8, 4, 2, 3, window=2), Attention(8, 4, 2, 3, window=5))
    spec = ModelSpec("all", layers, d_model=8, vocab_size=11)
    for start, stop in ((0, 1), (0, 40), (3, 4), (1, 6), (7, 30)):
        assert spec.flops(start, stop) == sum(one_by_one(layer, start, stop) for layer in layers)


@given(st.sampled_from(sorted(EXAMPLES)), st.lists(st.integers(0, 200_000), min_size=3, max_size=3))
def test_spans_add_up(name: str, cuts: list[int]) -> None:
    a, b, c = sorted(cuts)
    layer = EXAMPLES[name]
    assert layer.flops(a, b) + layer.flops(b, c) == layer.flops(a, c)
    spec = ModelSpec("one", (layer,), d_model=8, vocab_size=11)
    assert spec.flops(a, b) + spec.flops(b, c) == spec.flops(a, c)
    assert spec.prefix_flops(c) - spec.prefix_flops(a) == spec.flops(a, c)


def test_attention_by_hand() -> None:
    # Q 8 x 12, K and V 8 x 6 each, out 12 x 8: 288 weights; 12 numbers per head dot product and weighted sum.
    assert ATTENTION.flops(0, 1) == 2 * 288 + 4 * 12
    assert ATTENTION.flops(0, 3) == 3 * 576 + 48 * (1 + 2 + 3)
    assert ATTENTION.kv_tensors == (
        StateTensor("key", (2, 3), "bfloat16"),
        StateTensor("value", (2, 3), "bfloat16"),
    )
    assert ATTENTION.kv_bytes_per_token == 24
    assert ATTENTION.checkpoint_bytes == 0


def test_window_by_hand() -> None:
    # Tokens 3 .. 7 see 4, 5, 5, 5, 5 keys.
    assert WINDOWED.flops(3, 8) == 5 * 576 + 48 * 24


def test_gated_attention_doubles_the_query_projection() -> None:
    gated = Attention(d_model=8, num_heads=4, num_kv_heads=2, head_dim=3, gated=True)
    assert gated.flops(0, 1) - ATTENTION.flops(0, 1) == 2 * 8 * 12


def test_mamba1_by_hand() -> None:
    layer = EXAMPLES["mamba1"]
    assert layer.state_tensors == (
        StateTensor("conv_state", (16, 3), "bfloat16"),
        StateTensor("ssm_state", (16, 5), "float32"),
    )
    assert layer.checkpoint_bytes == 16 * 3 * 2 + 16 * 5 * 4
    # in 8 x 32, (dt, B, C) 16 x 12, dt 2 x 16, out 16 x 8; convolution 4 taps; scan 6 x 16 x 5 + 4 x 16.
    assert layer.flops(0, 1) == 2 * (256 + 192 + 32 + 128) + 2 * 16 * 4 + 544
    assert layer.kv_bytes_per_token == 0


def test_mamba2_by_hand() -> None:
    assert MAMBA2.state_tensors == (
        StateTensor("conv_state", (36, 3), "bfloat16"),
        StateTensor("ssm_state", (4, 4, 5), "float32"),
    )
    assert MAMBA2.checkpoint_bytes == 36 * 3 * 2 + 80 * 4
    # in 8 x (16 + 36 + 4), out 16 x 8; convolution over 36 channels; scan 5 x 16 x 5 + 4 x 16 + 4.
    assert MAMBA2.flops(0, 1) == 2 * (448 + 128) + 2 * 36 * 4 + 468


def test_gated_delta_by_hand() -> None:
    layer = EXAMPLES["gated_delta"]
    # q and k 2 x 3 each, v 4 x 5: 32 convolution channels.
    assert layer.state_tensors == (
        StateTensor("conv_state", (32, 3), "bfloat16"),
        StateTensor("ssm_state", (4, 3, 5), "float32"),
    )
    # in 8 x (32 + 20 z + 8 gates), out 20 x 8; scan 4 x (7 x 15 + 3 x 5).
    assert layer.flops(0, 1) == 2 * (480 + 160) + 2 * 32 * 4 + 480


def test_feed_forwards_by_hand() -> None:
    assert Mlp(8, 20).flops(0, 2) == 2 * 2 * 3 * 160
    assert Mlp(8, 20, gated=False).flops(0, 1) == 2 * 2 * 160
    # router 8 x 10, three of ten experts 3 x 8 x 6, shared 3 x 8 x 7, its gate 8.
    assert EXAMPLES["moe"].flops(0, 1) == 2 * (80 + 3 * 144 + 168 + 8)
    # down 8 x 4, two ungated experts 2 x 4 x 6, up 4 x 8, router 8 x 5.
    latent = Moe(8, d_expert=6, num_experts=5, experts_per_token=2, gated=False, d_latent=4)
    assert latent.flops(0, 1) == 2 * (32 + 2 * 48 + 32 + 40)


def test_blocks_by_hand() -> None:
    parallel = EXAMPLES["parallel"]
    assert parallel.kv_bytes_per_token == 24
    assert parallel.checkpoint_bytes == MAMBA2.checkpoint_bytes
    assert parallel.flops(0, 9) == WINDOWED.flops(0, 9) + MAMBA2.flops(0, 9)
    shared = EXAMPLES["shared_block"]
    # Attention: Q, K, V 16 x 16 each, out 16 x 8, 4 x 16 a pair; MLP 3 x 8 x 32; then the call's own
    # matrix 8 x 8 and adapter 8 x 3, 3 x 64.
    assert shared.flops(0, 1) == 2 * (768 + 128) + 64 + 2 * 768 + 2 * (64 + 24 + 192)
    assert shared.kv_bytes_per_token == 2 * 4 * 4 * 2
    adapted = SharedBlock(
        8, 0, Attention(8, 4, 4, 4, input_width=16), Mlp(8, 32), adapter_rank=3, attention_adapters=True
    )
    assert adapted.flops(0, 1) - shared.flops(0, 1) == 2 * 3 * 3 * (16 + 16)


@dataclass(frozen=True, slots=True)
class ToyRecurrence(LayerKind):
    """A kind that declares as many state tensors as it is told to."""

    kind: ClassVar[str] = "toy_recurrence"
    shapes: tuple[tuple[int, ...], ...]
    ssm_dtype: str = "float32"

    @property
    def state_tensors(self) -> tuple[StateTensor, ...]:
        return tuple(StateTensor(f"state_{i}", shape, self.ssm_dtype) for i, shape in enumerate(self.shapes))

    @property
    def flop_terms(self) -> tuple[FlopTerm, ...]:
        return (FlopTerm("scan", per_token=7),)


@pytest.mark.parametrize(
    ("shapes", "elements"),
    [(((3,),), 3), (((3,), (2, 2)), 7), (((3,), (2, 2), (1, 2, 3), (5,)), 18)],
)
def test_a_new_kind_needs_its_declarations_only(shapes: tuple[tuple[int, ...], ...], elements: int) -> None:
    spec = ModelSpec(
        "toy", (ToyRecurrence(shapes), ToyRecurrence(shapes, "float16")), d_model=8, vocab_size=11
    )
    assert spec.checkpoint_bytes == elements * 4 + elements * 2
    assert spec.kv_bytes_per_token == 0
    assert spec.flops(5, 10) == 2 * 5 * 7
    assert spec.num_layers == {"toy_recurrence": 2}


def test_no_conv_state_when_none_is_stored() -> None:
    layer = GatedDelta(8, 2, 4, 3, 5, d_conv=4, conv_width_stored=0, ssm_dtype="bfloat16")
    assert [tensor.name for tensor in layer.state_tensors] == ["ssm_state"]
    assert layer.checkpoint_bytes == 4 * 3 * 5 * 2


def test_bad_dimensions_are_named() -> None:
    with pytest.raises(ValueError, match=r"attention: head_dim is 0; .* at least 1"):
        Attention(d_model=8, num_heads=4, num_kv_heads=2, head_dim=0)
    with pytest.raises(ValueError, match="num_heads 4 is no multiple of num_kv_heads 3"):
        Attention(d_model=8, num_heads=4, num_kv_heads=3, head_dim=2)
    with pytest.raises(ValueError, match="window 5 with full_square"):
        Attention(d_model=8, num_heads=4, num_kv_heads=2, head_dim=2, window=5, full_square=True)
    with pytest.raises(ValueError, match=r"mamba2: d_state is True"):
        Mamba2(8, nheads=4, headdim=4, d_state=True, ngroups=2, d_conv=4, conv_width_stored=3)
    with pytest.raises(ValueError, match="nheads 4 is no multiple of ngroups 3"):
        Mamba2(8, nheads=4, headdim=4, d_state=5, ngroups=3, d_conv=4, conv_width_stored=3)
    with pytest.raises(ValueError, match="num_v_heads 4 is no multiple of num_k_heads 3"):
        GatedDelta(8, 3, 4, 3, 5, d_conv=4, conv_width_stored=3)
    with pytest.raises(ValueError, match="conv_width_stored is -1"):
        Mamba1(d_model=8, d_inner=16, d_state=5, dt_rank=2, d_conv=4, conv_width_stored=-1)
    with pytest.raises(ValueError, match="experts_per_token 6 is more than num_experts 5"):
        Moe(8, d_expert=6, num_experts=5, experts_per_token=6)
    with pytest.raises(ValueError, match="distinct names"):
        Parallel((MAMBA2, MAMBA2))
    with pytest.raises(ValueError, match=r"'scores' has a window of 3 and the full square"):
        FlopCurve.of([FlopTerm("scores", per_pair=1, window=3, square=True)])
