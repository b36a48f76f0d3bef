"""The gated delta rule mixer of Qwen3-Next."""

from dataclasses import dataclass
from typing import ClassVar

from hybridcache.flops import FlopTerm
from hybridcache.layer_kind import LayerKind, check_dimensions
from hybridcache.mamba_layer import conv_tensors
from hybridcache.state_tensor import StateTensor


@dataclass(frozen=True, slots=True)
class GatedDelta(LayerKind):
    """Gated DeltaNet (Yang, Kautz and Hatamizadeh, 2024, section 3) with a state per value head.

    Projections: q, k, v, z and the two gates (beta, alpha, one each a value head) from d_model, and out.
    Convolution over the channels of q, k and v: 2 d_conv each. Recurrence, per value head with K = head_k_dim
    and V = head_v_dim: decay K V, read S^T k 2 K V, write the outer product 2 K V, query S^T q 2 K V, that is
    7 K V; the delta (v - S^T k) beta 2 V and the output gate V. Total nv (7 K V + 3 V) a token.
    """

    kind: ClassVar[str] = "gated_delta"

    d_model: int
    num_k_heads: int
    num_v_heads: int
    head_k_dim: int
    head_v_dim: int
    d_conv: int
    conv_width_stored: int
    ssm_dtype: str = "float32"
    conv_dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        check_dimensions(
            self,
            d_model=self.d_model,
            num_k_heads=self.num_k_heads,
            num_v_heads=self.num_v_heads,
            head_k_dim=self.head_k_dim,
            head_v_dim=self.head_v_dim,
            d_conv=self.d_conv,
        )
        check_dimensions(self, at_least=0, conv_width_stored=self.conv_width_stored)
        if self.num_v_heads % self.num_k_heads:
            raise ValueError(
                f"gated_delta: num_v_heads {self.num_v_heads} is no multiple of "
                f"num_k_heads {self.num_k_heads}"
            )

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution: q, k and v."""
        return 2 * self.num_k_heads * self.head_k_dim + self.num_v_heads * self.head_v_dim

    @property
    def state_tensors(self) -> tuple[StateTensor, ...]:
        """`conv_state` [conv_channels, conv_width_stored] and `ssm_state` [value heads, K, V]."""
        ssm = StateTensor("ssm_state", (self.num_v_heads, self.head_k_dim, self.head_v_dim), self.ssm_dtype)
        return (*conv_tensors(self.conv_channels, self.conv_width_stored, self.conv_dtype), ssm)

    @property
    def flop_terms(self) -> tuple[FlopTerm, ...]:
        """Projections, convolution and recurrence, all per token."""
        value_width = self.num_v_heads * self.head_v_dim
        columns = self.conv_channels + 2 * value_width + 2 * self.num_v_heads
        scan = 7 * self.head_k_dim * self.head_v_dim + 3 * self.head_v_dim
        return (
            FlopTerm("projections", per_token=2 * self.d_model * columns),
            FlopTerm("conv", per_token=2 * self.conv_channels * self.d_conv),
            FlopTerm("scan", per_token=self.num_v_heads * scan),
        )
