"""Attention: full or sliding-window, multi-head or grouped, with or without an output gate."""

from dataclasses import dataclass
from typing import ClassVar

from hybridcache.flops import FlopTerm
from hybridcache.layer_kind import LayerKind, check_dimensions
from hybridcache.state_tensor import StateTensor


@dataclass(frozen=True, slots=True)
class Attention(LayerKind):
    """Softmax attention over cached K and V.

    Per token: the projections to Q (twice as wide with `gated`, the output gate of Qwen3-Next), K and V from
    `input_width` (default d_model; 2 d_model in Zamba2), and back to d_model. Per (query, key) pair:
    4 num_heads head_dim (a dot product for the score, one multiply-add into the output). A `window` is the
    number of keys a query sees, its own token included; its KV is counted like any other layer's, because a
    block holds all layers of its tokens. `full_square` counts n^2 pairs for n tokens instead of the causal
    triangle, as the Marconi paper does.
    """

    kind: ClassVar[str] = "attention"

    d_model: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    gated: bool = False
    window: int | None = None
    input_width: int | None = None
    full_square: bool = False
    kv_dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        check_dimensions(
            self,
            d_model=self.d_model,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            window=1 if self.window is None else self.window,
            input_width=1 if self.input_width is None else self.input_width,
        )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"attention: num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.full_square and self.window is not None:
            raise ValueError(
                f"attention: window {self.window} with full_square; the square ignores the window, drop one"
            )

    @property
    def kv_tensors(self) -> tuple[StateTensor, ...]:
        """K and V of one token: [num_kv_heads, head_dim] each."""
        shape = (self.num_kv_heads, self.head_dim)
        return (StateTensor("key", shape, self.kv_dtype), StateTensor("value", shape, self.kv_dtype))

    @property
    def flop_terms(self) -> tuple[FlopTerm, ...]:
        """Projections per token, scores per pair."""
        query_width = self.num_heads * self.head_dim
        input_columns = query_width * (2 if self.gated else 1) + 2 * self.num_kv_heads * self.head_dim
        input_width = self.d_model if self.input_width is None else self.input_width
        return (
            FlopTerm("projections", per_token=2 * (input_width * input_columns + query_width * self.d_model)),
            FlopTerm("scores", per_pair=4 * query_width, window=self.window, square=self.full_square),
        )
