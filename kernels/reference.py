"""The plain torch twin of every operation: short enough to be read as the definition, and the fallback.

Arithmetic is float32, or float64 when the first operand is float64, which serves as the truth in tests.
Nothing here promises the same bits for another cut of a sequence.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridcache.kernels.ops import Linear, Numerics, Ops
from hybridcache.kernels.packed import PackedBatch, PackedSequence

CPU = torch.device("cpu")


class ReferenceLinear(Linear):
    """torch's own matrix product."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self.method = "torch"
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.in_features:
            raise ValueError(f"linear: x has width {x.shape[-1]}; the weight takes {self.in_features}")
        return F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


class ReferenceOps(Ops):
    """Backend `reference`, on any device that torch has."""

    name = "reference"
    numerics: Numerics = "tolerant"
    device = CPU

    def __init__(self, device: torch.device = CPU) -> None:
        self.device = device

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        weight = weight.to(self.device)
        return ReferenceLinear(weight, None if bias is None else bias.to(self.device))

    def causal_conv1d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        conv_state: Tensor,
        batch: PackedBatch,
        activation: Literal["silu"] | None = "silu",
    ) -> Tensor:
        batch.check_slots(conv_state, "conv_state")
        out = torch.empty_like(x)
        xs, taps = _wide(x), _wide(weight)
        width = weight.shape[1]
        for s in batch.sequences:
            past = _initial(conv_state, s, xs.dtype)
            line = torch.cat([past, xs[s.start : s.stop].T], dim=1)  # [C, W - 1 + tokens]
            y = F.conv1d(line[None], taps[:, None], groups=len(taps))[0].T if s.stop > s.start else xs[:0]
            y = y if bias is None else y + _wide(bias)
            out[s.start : s.stop] = (F.silu(y) if activation == "silu" else y).to(x.dtype)
            for count, slot in (*s.emits, (s.stop - s.start, s.slot)):
                conv_state[slot] = line[:, count : count + width - 1].to(conv_state.dtype)
        return out

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
        batch.check_slots(ssm_state, "ssm_state")
        out = torch.empty_like(x)
        xs, a, b, c = (_wide(t) for t in (x, A, B, C))
        step = F.softplus(_wide(dt) if dt_bias is None else _wide(dt) + _wide(dt_bias))
        for s in batch.sequences:
            h = _initial(ssm_state, s, xs.dtype)
            emits = dict(s.emits)
            for t in range(s.start, s.stop):
                d = step[t][:, None]
                h = torch.exp(d * a) * h + d * xs[t][:, None] * b[t]
                y = h @ c[t]
                y = y if D is None else y + _wide(D) * xs[t]
                out[t] = (y if z is None else y * F.silu(_wide(z)[t])).to(x.dtype)
                _emit(ssm_state, h, emits.get(t - s.start + 1))
            _emit(ssm_state, h, s.slot)
        return out

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
        batch.check_slots(ssm_state, "ssm_state")
        out = torch.empty_like(x)
        xs, a, heads = _wide(x), _wide(A), x.shape[1] // B.shape[1]
        b, c = (_wide(t).repeat_interleave(heads, dim=1) for t in (B, C))  # [T, H, N]
        step = F.softplus(_wide(dt) if dt_bias is None else _wide(dt) + _wide(dt_bias)).clamp(*dt_limit)
        for s in batch.sequences:
            h = _initial(ssm_state, s, xs.dtype)
            emits = dict(s.emits)
            for t in range(s.start, s.stop):
                dx = step[t][:, None] * xs[t]  # [H, P]
                h = torch.exp(step[t] * a)[:, None, None] * h + dx[:, :, None] * b[t][:, None, :]
                y = torch.einsum("hpn,hn->hp", h, c[t])
                out[t] = (y if D is None else y + _wide(D)[:, None] * xs[t]).to(x.dtype)
                _emit(ssm_state, h, emits.get(t - s.start + 1))
            _emit(ssm_state, h, s.slot)
        return out

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
        batch.check_slots(ssm_state, "ssm_state")
        out = torch.empty_like(v)
        qs, ks, vs, gates, betas = (_wide(t) for t in (q, k, v, log_decay, beta))
        if l2norm:
            qs, ks = (t * torch.rsqrt((t * t).sum(-1, keepdim=True) + 1e-6) for t in (qs, ks))
        heads = v.shape[1] // k.shape[1]
        qs, ks = ((qs * scale).repeat_interleave(heads, dim=1), ks.repeat_interleave(heads, dim=1))
        for s in batch.sequences:
            state = _initial(ssm_state, s, qs.dtype)
            emits = dict(s.emits)
            for t in range(s.start, s.stop):
                state = state * torch.exp(gates[t])[:, None, None]
                delta = (vs[t] - torch.einsum("hkv,hk->hv", state, ks[t])) * betas[t][:, None]
                state = state + ks[t][:, :, None] * delta[:, None, :]
                out[t] = torch.einsum("hkv,hk->hv", state, qs[t]).to(v.dtype)
                _emit(ssm_state, state, emits.get(t - s.start + 1))
            _emit(ssm_state, state, s.slot)
        return out

    def store_kv(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, batch: PackedBatch) -> None:
        batch.check_blocks(k_cache, "k_cache")
        mapping = batch.slot_mapping.to(k.device)
        rows = (mapping >= 0).nonzero()[:, 0]
        places = mapping[rows]
        blocks, offsets = places // batch.block_size, places % batch.block_size
        k_cache[blocks, offsets] = k[rows].to(k_cache.dtype)
        v_cache[blocks, offsets] = v[rows].to(v_cache.dtype)

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
        batch.check_blocks(k_cache, "k_cache")
        out = torch.empty_like(q)
        qs, groups = _wide(q), q.shape[1] // k_cache.shape[2]
        for s, table in zip(batch.sequences, batch.block_tables, strict=True):
            stop = s.num_computed + s.stop - s.start
            if s.stop == s.start:
                continue
            blocks = table[: -(-stop // batch.block_size)]
            keys, values = (
                cache[blocks].flatten(0, 1)[:stop].to(qs.dtype).repeat_interleave(groups, dim=1)
                for cache in (k_cache, v_cache)
            )
            scores = torch.einsum("qhd,khd->hqk", qs[s.start : s.stop], keys) * scale
            if soft_cap is not None:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            positions = batch.positions[s.start : s.stop].to(q.device)
            distance = positions[:, None] - torch.arange(stop, device=q.device)
            hidden = (distance < 0) if window is None else (distance < 0) | (distance >= window)
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            sound = values.isfinite()
            attended = torch.einsum("hqk,khd->qhd", weights, values.where(sound, 0))
            if not sound.all():  # left out of the product, where a weight of 0 would make NaN of them
                bad = torch.einsum("qk,khd->qhd", (~hidden).to(qs.dtype), (~sound).to(qs.dtype))
                attended = attended.masked_fill(bad > 0, torch.nan)
            out[s.start : s.stop] = attended.to(q.dtype)
        return out

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
        y = _wide(x)
        if gate is not None and not norm_before_gate:
            y = y * F.silu(_wide(gate))
        parts = y.reshape(*y.shape[:-1], groups, -1)
        y = (parts * torch.rsqrt(parts.square().mean(-1, keepdim=True) + eps)).flatten(-2)
        if weight is not None:
            y = y * (1 + _wide(weight) if add_unit_offset else _wide(weight))
        if gate is not None and norm_before_gate:
            y = y * F.silu(_wide(gate))
        return y.to(x.dtype)

    def silu(self, x: Tensor) -> Tensor:
        return F.silu(_wide(x)).to(x.dtype)

    def sigmoid(self, x: Tensor) -> Tensor:
        return torch.sigmoid(_wide(x)).to(x.dtype)

    def softplus(self, x: Tensor) -> Tensor:
        return F.softplus(_wide(x)).to(x.dtype)

    def gelu(self, x: Tensor) -> Tensor:
        return F.gelu(_wide(x)).to(x.dtype)

    def gelu_tanh(self, x: Tensor) -> Tensor:
        return F.gelu(_wide(x), approximate="tanh").to(x.dtype)

    def relu2(self, x: Tensor) -> Tensor:
        return F.relu(_wide(x)).square().to(x.dtype)

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        return (F.silu(_wide(gate)) * _wide(up)).to(gate.dtype)

    def gelu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        return (F.gelu(_wide(gate)) * _wide(up)).to(gate.dtype)

    def gelu_tanh_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        return (F.gelu(_wide(gate), approximate="tanh") * _wide(up)).to(gate.dtype)

    def softmax(self, x: Tensor) -> Tensor:
        return _wide(x).softmax(-1)

    def top_k(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        values, indices = x.sort(dim=-1, descending=True, stable=True)
        return values[..., :k], indices[..., :k]

    def rope_table(self, positions: Tensor, inv_freq: Tensor, scaling: float = 1.0) -> tuple[Tensor, Tensor]:
        angles = positions.to(self.device)[:, None].float() * inv_freq.to(self.device).float()
        return angles.cos() * scaling, angles.sin() * scaling

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        pairs = cos.shape[-1]
        a, b = _wide(x[..., :pairs]), _wide(x[..., pairs : 2 * pairs])
        c, s = cos[:, None], sin[:, None]
        turned = torch.cat([a * c - b * s, b * c + a * s], dim=-1).to(x.dtype)
        return torch.cat([turned, x[..., 2 * pairs :]], dim=-1)


def _wide(x: Tensor) -> Tensor:
    """x as float32, or as it is when it is float64."""
    return x if x.dtype == torch.float64 else x.float()


def _initial(states: Tensor, s: PackedSequence, dtype: torch.dtype) -> Tensor:
    """A copy of the state that the sequence starts from."""
    if s.has_state:
        return states[s.slot].to(dtype, copy=True)
    return torch.zeros(states.shape[1:], dtype=dtype, device=states.device)


def _emit(states: Tensor, state: Tensor, slot: int | None) -> None:
    if slot is not None:
        states[slot] = state.to(states.dtype)
