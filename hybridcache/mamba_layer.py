"""Mamba-1 and Mamba-2 mixers, and the Mamba-2 layer as the Marconi paper counts it.

`conv_state` holds the last `conv_width_stored` inputs of the causal convolution: d_conv - 1 suffice to go
on, some engines store d_conv; 0 declares no conv state at all. The scan is counted in its recurrent form,
one step per token, whatever chunking a kernel uses.
"""

from dataclasses import dataclass
from typing import ClassVar

from hybridcache.flops import FlopTerm
from hybridcache.layer_kind import LayerKind, check_dimensions
from hybridcache.state_tensor import StateTensor


def conv_tensors(channels: int, width: int, dtype: str) -> tuple[StateTensor, ...]:
    """The `conv_state` of a causal convolution, or nothing when `width` (stored inputs) is 0."""
    return (StateTensor("conv_state", (channels, width), dtype),) if width else ()


@dataclass(frozen=True, slots=True)
class Mamba1(LayerKind):
    """The selective scan of Mamba (Gu and Dao, 2023, section 3).

    Projections: x and z from d_model, (dt, B, C) from x, dt from its rank, and out. Convolution: 2 d_conv a
    channel. Scan, per channel and state element: dt A, (dt x) B, h = a h + b, y = C h, that is 6 FLOPs; per
    channel: dt x, y + D x, y z, that is 4. Total 6 d_inner d_state + 4 d_inner a token.
    """

    kind: ClassVar[str] = "mamba1"

    d_model: int
    d_inner: int
    d_state: int
    dt_rank: int
    d_conv: int
    conv_width_stored: int
    ssm_dtype: str = "float32"
    conv_dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        check_dimensions(
            self,
            d_model=self.d_model,
            d_inner=self.d_inner,
            d_state=self.d_state,
            dt_rank=self.dt_rank,
            d_conv=self.d_conv,
        )
        check_dimensions(self, at_least=0, conv_width_stored=self.conv_width_stored)

    @property
    def state_tensors(self) -> tuple[StateTensor, ...]:
        """`conv_state` [d_inner, conv_width_stored] and `ssm_state` [d_inner, d_state]."""
        ssm = StateTensor("ssm_state", (self.d_inner, self.d_state), self.ssm_dtype)
        return (*conv_tensors(self.d_inner, self.conv_width_stored, self.conv_dtype), ssm)

    @property
    def flop_terms(self) -> tuple[FlopTerm, ...]:
        """Projections, convolution and scan, all per token."""
        in_and_out = 3 * self.d_model * self.d_inner
        selection = self.d_inner * (self.dt_rank + 2 * self.d_state) + self.dt_rank * self.d_inner
        return (
            FlopTerm("projections", per_token=2 * (in_and_out + selection)),
            FlopTerm("conv", per_token=2 * self.d_inner * self.d_conv),
            FlopTerm("scan", per_token=6 * self.d_inner * self.d_state + 4 * self.d_inner),
        )


@dataclass(frozen=True, slots=True)
class Mamba2(LayerKind):
    """The state space dual mixer of Mamba-2 (Dao and Gu, 2024, section 7); d_inner = nheads headdim.

    Projections: z, x, B, C (per group) and dt (per head) from d_model in one matrix, and out. Convolution
    over d_inner + 2 ngroups d_state channels: 2 d_conv each. Scan, per channel and state element: (dt x) B,
    h = a h + b, y = C h, that is 5 FLOPs; per channel: dt x, y + D x, y z, that is 4; per head: dt A, 1.
    Total 5 d_inner d_state + 4 d_inner + nheads a token.
    """

    kind: ClassVar[str] = "mamba2"

    d_model: int
    nheads: int
    headdim: int
    d_state: int
    ngroups: int
    d_conv: int
    conv_width_stored: int
    ssm_dtype: str = "float32"
    conv_dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        check_dimensions(
            self,
            d_model=self.d_model,
            nheads=self.nheads,
            headdim=self.headdim,
            d_state=self.d_state,
            ngroups=self.ngroups,
            d_conv=self.d_conv,
        )
        check_dimensions(self, at_least=0, conv_width_stored=self.conv_width_stored)
        if self.nheads % self.ngroups:
            raise ValueError(f"mamba2: nheads {self.nheads} is no multiple of ngroups {self.ngroups}")

    @property
    def d_inner(self) -> int:
        """Channels of the scan."""
        return self.nheads * self.headdim

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution: x, B and C."""
        return self.d_inner + 2 * self.ngroups * self.d_state

    @property
    def state_tensors(self) -> tuple[StateTensor, ...]:
        """`conv_state` [conv_channels, conv_width_stored] and `ssm_state` [nheads, headdim, d_state]."""
        ssm = StateTensor("ssm_state", (self.nheads, self.headdim, self.d_state), self.ssm_dtype)
        return (*conv_tensors(self.conv_channels, self.conv_width_stored, self.conv_dtype), ssm)

    @property
    def flop_terms(self) -> tuple[FlopTerm, ...]:
        """Projections, convolution and scan, all per token."""
        in_columns = self.d_inner + self.conv_channels + self.nheads
        scan = 5 * self.d_inner * self.d_state + 4 * self.d_inner + self.nheads
        return (
            FlopTerm("projections", per_token=2 * self.d_model * (in_columns + self.d_inner)),
            FlopTerm("conv", per_token=2 * self.conv_channels * self.d_conv),
            FlopTerm("scan", per_token=scan),
        )


@dataclass(frozen=True, slots=True)
class PaperSsm(LayerKind):
    """The SSM layer of the Marconi paper, kept to its letter so that its figures can be reproduced.

    State d_model x d_state, convolution over 2 d_model + 2 d_state channels; FLOPs a token, d = d_model and
    N = d_state: 12 d^2 + 16 d N + 10 d. A real Mamba-2 layer of that width has twice the SSM state.
    """

    kind: ClassVar[str] = "paper_ssm"

    d_model: int
    d_state: int
    conv_width_stored: int
    ssm_dtype: str = "bfloat16"
    conv_dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        check_dimensions(self, d_model=self.d_model, d_state=self.d_state)
        check_dimensions(self, at_least=0, conv_width_stored=self.conv_width_stored)

    @property
    def state_tensors(self) -> tuple[StateTensor, ...]:
        """`conv_state` [2 d_model + 2 d_state, conv_width_stored] and `ssm_state` [d_model, d_state]."""
        ssm = StateTensor("ssm_state", (self.d_model, self.d_state), self.ssm_dtype)
        channels = 2 * self.d_model + 2 * self.d_state
        return (*conv_tensors(channels, self.conv_width_stored, self.conv_dtype), ssm)

    @property
    def flop_terms(self) -> tuple[FlopTerm, ...]:
        """The paper's three terms, all per token."""
        return (
            FlopTerm("projections", per_token=12 * self.d_model * self.d_model),
            FlopTerm("scan", per_token=16 * self.d_model * self.d_state + 10 * self.d_model),
        )
