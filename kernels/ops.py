"""The operations that models are made of, as every backend offers them.

T is the number of new tokens of a batch, rows of an operand are its tokens. Operands may be float32, bfloat16
or float16; arithmetic is float32, results have the dtype of the first operand. State and KV tensors are views
into storage ([slots, ...], [blocks, block_size, ...]) with any stride of their first dimension; they are
read and written in place.

In the backends whose `numerics` is "exact", a row of a result has the same bits whatever else the batch
holds, wherever the sequence was cut, and for any number of threads, as long as the state's dtype holds what
was computed (a float32 state; a conv or KV tensor of the activations' dtype).
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from hybridcache.copier import Copier, TorchCopier
from hybridcache.kernels.packed import PackedBatch
from hybridcache.kernels.recording import Recording, Scratch

Numerics = Literal["exact", "tolerant"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu2"]
"""Of a feed-forward layer; gated, it is one of the first three."""


class Linear(Protocol):
    """A matrix product with its weight packed once: x [M, in] -> [M, out]."""

    in_features: int
    out_features: int
    method: str
    """How it is computed, for `hybridcache doctor` and tests."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out] in x's dtype. ValueError for another width than `in_features`."""


class Ops(Protocol):
    """One backend. Passed down explicitly; holds no state of a request.

    Every method raises ValueError naming the operand for a shape, dtype or slot that does not fit.
    """

    name: str
    numerics: Numerics
    device: torch.device
    """Where operands and weights live; a batch's own tensors are always on the CPU."""
    copier: Copier = TorchCopier()
    """What storage on that device copies with."""

    @abstractmethod
    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """Packs `weight` [out, in] and `bias` [out]; a backend that copies them keeps neither alive."""

    @abstractmethod
    def causal_conv1d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        conv_state: Tensor,
        batch: PackedBatch,
        activation: Literal["silu"] | None = "silu",
    ) -> Tensor:
        """Depthwise causal convolution: x [T, C], weight [C, W], bias [C] -> [T, C].

        `conv_state` [slots, C, W - 1] holds the last inputs, oldest first.
        """

    @abstractmethod
    def mamba1_scan(
        self,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None,
        z: Tensor | None,
        dt_bias: Tensor | None,
        ssm_state: Tensor,
        batch: PackedBatch,
    ) -> Tensor:
        """Selective scan (Gu and Dao, 2023, section 3): x, dt, z [T, D], A [D, N], B, C [T, N] -> [T, D].

        d = softplus(dt + dt_bias); h = exp(d A) h + d x B; y = (h C + D x) silu(z), with h in `ssm_state`
        [slots, D, N] and D, dt_bias [D]. A is negative: -exp(A_log).
        """

    @abstractmethod
    def mamba2_scan(
        self,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None,
        dt_bias: Tensor | None,
        dt_limit: tuple[float, float],
        ssm_state: Tensor,
        batch: PackedBatch,
    ) -> Tensor:
        """State space dual (Dao and Gu, 2024, section 7): x [T, H, P], dt [T, H], B, C [T, G, N] -> as x.

        d = clamp(softplus(dt + dt_bias), dt_limit); h = exp(d A) h + d x B; y = h C + D x, with h in
        `ssm_state` [slots, H, P, N], A, D, dt_bias [H]; head i reads group i // (H / G).
        """

    @abstractmethod
    def gated_delta_scan(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor,
        beta: Tensor,
        ssm_state: Tensor,
        batch: PackedBatch,
        scale: float,
        l2norm: bool,
    ) -> Tensor:
        """Gated delta rule (Yang, Kautz and Hatamizadeh, 2024): q, k [T, Hk, K], v [T, Hv, V] -> as v.

        With `l2norm`, q and k are divided by sqrt(sum of squares + 1e-6) first; then q is scaled.
        S = exp(g) S; S += k (beta (v - S^T k))^T; y = S^T q, with S in `ssm_state` [slots, Hv, K, V],
        g = log_decay and beta [T, Hv]; value head i reads key head i // (Hv / Hk).
        """

    @abstractmethod
    def store_kv(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, batch: PackedBatch) -> None:
        """Writes k, v [T, Hkv, Dh] into caches [blocks, block_size, Hkv, Dh] where `slot_mapping` says."""

    @abstractmethod
    def paged_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        batch: PackedBatch,
        scale: float,
        window: int | None = None,
        soft_cap: float | None = None,
    ) -> Tensor:
        """Causal attention of q [T, Hq, Dh] over all keys of each sequence, new ones included -> [T, Hq, Dh].

        Query head i reads KV head i // (Hq / Hkv). `window`: keys a query sees, its own included. `soft_cap`:
        scores become cap tanh(score / cap). The new tokens' KV must have been stored.
        """

    @abstractmethod
    def rms_norm(
        self,
        x: Tensor,
        weight: Tensor | None,
        eps: float,
        *,
        gate: Tensor | None = None,
        norm_before_gate: bool = False,
        groups: int = 1,
        add_unit_offset: bool = False,
    ) -> Tensor:
        """x [..., d] / sqrt(mean of squares + eps) * weight [d], the mean taken over each of `groups` parts.

        `gate` [..., d]: x silu(gate) is normalised, or with `norm_before_gate` the result times silu(gate).
        `add_unit_offset`: the factor is 1 + weight.
        """

    @abstractmethod
    def silu(self, x: Tensor) -> Tensor:
        """x sigmoid(x)."""

    @abstractmethod
    def sigmoid(self, x: Tensor) -> Tensor:
        """1 / (1 + exp(-x))."""

    @abstractmethod
    def softplus(self, x: Tensor) -> Tensor:
        """log(1 + exp(x)); x beyond 20."""

    @abstractmethod
    def gelu(self, x: Tensor) -> Tensor:
        """x times the normal distribution function of x."""

    @abstractmethod
    def gelu_tanh(self, x: Tensor) -> Tensor:
        """The tanh approximation of `gelu`."""

    @abstractmethod
    def relu2(self, x: Tensor) -> Tensor:
        """max(x, 0) squared."""

    @abstractmethod
    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) up."""

    @abstractmethod
    def gelu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """gelu(gate) up."""

    @abstractmethod
    def gelu_tanh_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """gelu_tanh(gate) up."""

    @abstractmethod
    def softmax(self, x: Tensor) -> Tensor:
        """Softmax over the last dimension, in float32 whatever x's dtype."""

    @abstractmethod
    def top_k(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k largest of each row of x [M, E], descending, of equal ones the lower index first.

        Values and indices (int64), [M, k] each.
        """

    @abstractmethod
    def rope_table(self, positions: Tensor, inv_freq: Tensor, scaling: float = 1.0) -> tuple[Tensor, Tensor]:
        """cos and sin, float32 [T, R], of positions [T] times inv_freq [R], both times `scaling`.

        Made once a pass and given to every layer's `rope`.
        """

    @abstractmethod
    def rope(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotates the first 2R dimensions of x [T, H, Dh], i paired with i + R; copies the rest."""

    def activate(self, x: Tensor, act: Activation, *, gated: bool) -> Tensor:
        """x [..., d] -> act(x), or x [..., 2 d] (gate, then up) -> act(gate) up."""
        if not gated:
            plain = {"silu": self.silu, "gelu": self.gelu, "gelu_tanh": self.gelu_tanh, "relu2": self.relu2}
            return plain[act](x)
        assert act != "relu2"
        both = {"silu": self.silu_mul, "gelu": self.gelu_mul, "gelu_tanh": self.gelu_tanh_mul}
        return both[act](*x.chunk(2, dim=-1))

    # What follows is plain torch, which a backend replaces where it has something faster.

    def joined_linear(self, weights: Sequence[Tensor], bias: Tensor | None = None) -> Linear:
        """Packs `weights` [out, in], one below the other, and `bias` [all outs] as one."""
        return self.linear(torch.cat(list(weights)), bias)

    def add(self, x: Tensor, y: Tensor, factor: float = 1.0) -> Tensor:
        """x + factor y, of one shape; in x's dtype."""
        return x + (y if factor == 1 else y * factor).to(x.dtype)

    def experts(
        self,
        x: Tensor,
        shares: Tensor,
        chosen: Tensor,
        experts: Sequence[tuple[Linear, Linear]],
        act: Activation,
        *,
        gated: bool,
    ) -> Tensor:
        """Each row of x [T, d] through the experts `chosen` [T, k] (int64, distinct in a row) -> [T, d].

        An expert is out(act(into x)); its result counts `shares` float32 [T, k] of the same place. The parts
        are added in the order of the experts' numbers, in float32. An expert takes all its rows together.
        """
        tokens, top_k = chosen.shape
        if not tokens:
            return x
        chosen, rank = chosen.sort(dim=1)
        order = chosen.flatten().argsort(stable=True)  # places (token, expert) by expert, then by token
        counts = chosen.flatten().bincount(minlength=len(experts)).tolist()
        rows = x[order // top_k]
        parts = [
            out(self.activate(into(part), act, gated=gated))
            for (into, out), part in zip(experts, torch.split(rows, counts), strict=True)
            if len(part)
        ]
        shares = shares.gather(1, rank).flatten()[order, None]
        wide = torch.promote_types(x.dtype, torch.float32)
        y = x.new_empty(tokens * top_k, x.shape[1], dtype=wide)
        y[order] = torch.cat(parts).to(wide) * shares.to(wide)
        first, *rest = y.view(tokens, top_k, x.shape[1]).unbind(1)
        return sum(rest, start=first).to(x.dtype)

    def record(self, run: Callable[[], Tensor], scratch: Scratch) -> tuple[Tensor, Recording | None]:
        """Calls `run`; gives its result, and what repeats it for another batch of as many tokens.

        A repetition reads and writes the same tensors, the result's included, which the caller keeps alive;
        results in between lie in `scratch`. None: this pass cannot be repeated, since it did more than call
        kernels, or the backend cannot.
        """
        return run(), None
